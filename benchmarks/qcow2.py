# SPDX-License-Identifier: Apache-2.0
"""Upload of a file-system image into qcow2, beside ovirt-imageio and qemu-img convert, and into a raw file.

python -m benchmarks.qcow2 [--rounds N] [--size GIB] [--data MIB] [--directory DIR] [--output DIR] [--document]

The same load goes to both servers: PUT of 4 MiB of data at most, PATCH zero of each hole, on 1 or 4 connections to the
unix socket, and a flush at the end. Then each product's own client sends the image to its own server, through the unix
socket, too. Ours opens the qcow2 file itself; the others have a qemu-nbd. `make bench ONLY=qcow2` runs this.
"""

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks import client, machine, report
from benchmarks.cases import GiB, KiB, MiB, connections_text
from benchmarks.command import add_places, run_program
from benchmarks.copies import DIRECTIONS, Job, imageio_client, ovirt_client
from benchmarks.errors import BenchmarkError
from benchmarks.measure import children_seconds, processor_seconds, table, turned
from benchmarks.servers import OURS, PROGRAMS, THEIRS, Server, running
from tests.support.daemon import Certificates
from tests.support.http_client import Connection, connect_unix
from tests.support.nbdservers import make_qcow2, qemu_nbd

CONNECTIONS = (1, 4)
PIECE = 4 * MiB
#: What each product sends an image with.
CLIENTS = {OURS: imageio_client(), THEIRS: ovirt_client}
CONVERT = "qemu-img convert"
#: qemu-nbd as production runs it; without direct I/O where the file system has none.
DIRECT = ("--cache=none", "--aio=native")
#: What ours is to reach into qcow2, as a multiple of ovirt-imageio's speed.
GOAL = 2.5
#: The rows of uploads into a raw file by the same loads.
RAW = ", into raw"


class Upload(NamedTuple):
    """One upload: seconds on the clock until it is on stable storage, and processor seconds."""

    seconds: float
    server_cpu: float
    nbd_cpu: float


#: Sends an image to a server, with a ticket.
Send = Callable[[Server, str], None]


class Part(NamedTuple):
    """A part of the image: data, or a hole."""

    start: int
    length: int
    data: bool


def main() -> int:
    """Run what the command line asks for, and return the exit status: 1 if it could not be measured."""
    return run_program(_parser(), _run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench ONLY=qcow2", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each program (default: 5)")
    parser.add_argument("--size", type=int, default=6, metavar="GIB", help="size of the image (default: 6)")
    parser.add_argument("--data", type=int, default=1100, metavar="MIB", help="data in it (default: 1100)")
    add_places(parser)
    return parser


def _run(options: argparse.Namespace) -> None:
    warning = machine.busy()
    if warning:
        print(f"bench: {warning}", file=sys.stderr)
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="imageio-bench-", dir=options.directory))
        )
        description = machine.describe(directory)
        source = _make_source(directory, options.size * GiB, options.data * MiB)
        parts = list(_parts(source))
        direct = DIRECT if _takes_direct_io(directory) else ()
        # Not below the images: the path of a unix socket may have 107 bytes.
        run_directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        certificates = Certificates.make(run_directory)
        servers = [
            stack.enter_context(running(program, certificates, run_directory / program.name)) for program in PROGRAMS
        ]
        loads = {
            _way(server.name, connections): (server, partial(_send_all, source, parts, connections))
            for connections in CONNECTIONS
            for server in servers
        }
        clients = {
            f"{server.name}, its own client": (server, partial(_run_client, source, certificates.cafile))
            for server in servers
        }
        size = source.stat().st_size
        ways: dict[str, Callable[[Path], Upload]] = {}
        for name, (server, send) in (loads | clients).items():
            if server.program is OURS:
                ways[name] = partial(_upload_to_file, server, send, size)
                ways[name + RAW] = partial(_upload_to_raw, server, send, size)
            else:
                ways[name] = partial(_upload, server, send, size, direct)
        ways[CONVERT] = partial(_convert, source, direct)
        results: dict[str, list[Upload]] = {name: [] for name in ways}
        for number in range(options.rounds):
            for name in turned(list(ways), number):
                target = make_qcow2(directory / "target.qcow2", size)
                results[name].append(ways[name](target))
                if number == 0 and not name.endswith(RAW):
                    _check(source, target)
                target.unlink()
                print(f"{number + 1}/{options.rounds} {name}: {results[name][-1].seconds:.2f} s", file=sys.stderr)
        data = sum(part.length for part in parts if part.data)
    report.publish(_document(description, results, data, len(parts), warning), options, "qcow2")
    figures = {name: [upload._asdict() for upload in uploads] for name, uploads in results.items()}
    (options.output / "qcow2.json").write_text(json.dumps(figures, indent=1) + "\n")


def _way(program: str, connections: int) -> str:
    return f"{program}, {connections_text(connections)}"


def _make_source(directory: Path, size: int, data: int) -> Path:
    """Make an ext4 image with files of many sizes, of bytes that do not compress."""
    files, image = directory / "files", directory / "source.raw"
    files.mkdir()
    left, length = data, 64 * KiB
    while left > 0:
        with (files / f"{left}").open("wb") as file:
            for start in range(0, min(length, left), MiB):
                file.write(os.urandom(min(MiB, length - start)))
        left -= length
        length = length * 2 if length < 64 * MiB else 64 * KiB
    subprocess.check_call(["mke2fs", "-q", "-t", "ext4", "-d", str(files), str(image), f"{size // MiB}M"])
    subprocess.check_call(["rm", "-r", str(files)])
    return image


def _parts(image: Path) -> Iterator[Part]:
    """Yield data, in pieces, and holes, in order."""
    with image.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        start = 0
        while start < end:
            try:
                data = os.lseek(file.fileno(), start, os.SEEK_DATA)
            except OSError:  # ENXIO: the rest is a hole
                data = end
            if data > start:
                yield Part(start, data - start, False)
            start = data
            hole = os.lseek(file.fileno(), start, os.SEEK_HOLE) if start < end else end
            for piece in range(start, hole, PIECE):
                yield Part(piece, min(PIECE, hole - piece), True)
            start = hole


def _takes_direct_io(directory: Path) -> bool:
    try:
        os.close(os.open(directory / "direct", os.O_CREAT | os.O_RDWR | os.O_DIRECT))
    except OSError:
        return False
    return True


def _upload(server: Server, send: Send, size: int, options: Sequence[str], target: Path) -> Upload:
    with qemu_nbd(target, "qcow2", *options) as nbd:
        assert nbd.process is not None
        ticket = server.add_ticket(nbd.url, size, sparse=True)
        server_cpu, nbd_cpu = server.cpu, processor_seconds(nbd.process.pid)
        started = time.monotonic()
        send(server, ticket)
        seconds = time.monotonic() - started
        used = Upload(seconds, server.cpu - server_cpu, processor_seconds(nbd.process.pid) - nbd_cpu)
        server.remove_ticket(ticket)
        nbd.stop()
    server.check()
    return used


def _upload_to_file(server: Server, send: Send, size: int, target: Path, image_format: str = "qcow2") -> Upload:
    ticket = server.add_ticket(target, size, sparse=True, format=image_format, shared=False)
    server_cpu, started = server.cpu, time.monotonic()
    send(server, ticket)
    used = Upload(time.monotonic() - started, server.cpu - server_cpu, 0)
    server.remove_ticket(ticket)
    server.check()
    return used


def _upload_to_raw(server: Server, send: Send, size: int, target: Path) -> Upload:
    raw = target.with_suffix(".raw")
    with raw.open("wb") as file:
        file.truncate(size)
    try:
        return _upload_to_file(server, send, size, raw, "raw")
    finally:
        raw.unlink()


def _run_client(source: Path, cafile: Path, server: Server, ticket: str) -> None:
    job = Job(DIRECTIONS[0], source, source, source.stat().st_size, cafile, server, ticket)
    client.timed(CLIENTS[server.program](job), None)


def _send_all(source: Path, parts: Sequence[Part], connections: int, server: Server, ticket: str) -> None:
    url = f"/images/{ticket}"
    todo: queue.SimpleQueue[Part] = queue.SimpleQueue()
    for part in parts:
        todo.put(part)
    failures: list[Exception] = []
    threads = [
        threading.Thread(target=_send_some, args=(server, url, source, todo, failures)) for _ in range(connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise BenchmarkError(f"{server.name}: {failures[0]}")
    with Connection(connect_unix(str(server.directory / "local"), timeout=600)) as connection:
        _expect_success(server, connection.patch(url, {"op": "flush"}).status)


def _send_some(
    server: Server, url: str, source: Path, todo: "queue.SimpleQueue[Part]", failures: list[Exception]
) -> None:
    try:
        with (
            source.open("rb") as file,
            Connection(connect_unix(str(server.directory / "local"), timeout=600)) as connection,
        ):
            while not failures:
                part = todo.get_nowait()
                if part.data:
                    head = (
                        f"PUT {url}?flush=n HTTP/1.1\r\nHost: localhost\r\nContent-Length: {part.length}\r\n"
                        f"Content-Range: bytes {part.start}-{part.start + part.length - 1}/*\r\n\r\n"
                    )
                    connection.sock.sendall(head.encode())
                    connection.sock.sendfile(file, part.start, part.length)
                    _expect_success(server, connection.receive().status)
                else:
                    operation = {"op": "zero", "offset": part.start, "size": part.length, "flush": False}
                    _expect_success(server, connection.patch(url, operation).status)
    except queue.Empty:
        pass
    except (OSError, BenchmarkError, AssertionError) as e:
        failures.append(e)


def _expect_success(server: Server, status: int) -> None:
    if status != 200:
        raise BenchmarkError(f"{server.name} answers {status}")


def _convert(source: Path, options: Sequence[str], target: Path) -> Upload:
    """Copy with qemu-img through a qemu-nbd of its own, as the servers do."""
    with qemu_nbd(target, "qcow2", *options) as nbd:
        assert nbd.process is not None
        before, nbd_cpu = children_seconds(), processor_seconds(nbd.process.pid)
        started = time.monotonic()
        command = ["qemu-img", "convert", "-n", "-W", "-f", "raw", "-O", "raw", str(source), f"{nbd.url}"]
        subprocess.check_call(command)
        used = Upload(
            time.monotonic() - started, children_seconds() - before, processor_seconds(nbd.process.pid) - nbd_cpu
        )
        nbd.stop()
    return used


def _check(source: Path, target: Path) -> None:
    command = ["qemu-img", "compare", "-q", "-f", "raw", "-F", "qcow2", str(source), str(target)]
    if subprocess.call(command) != 0:
        raise BenchmarkError(f"{target} is not the image that was uploaded")


def _document(
    description: dict[str, str], results: dict[str, list[Upload]], data: int, parts: int, warning: str | None
) -> str:
    """Return all that a run has to say, as Markdown."""
    rounds = len(next(iter(results.values())))
    how = report.with_warning(
        f"{data // MiB} MiB of data in {parts} parts, {rounds} rounds in turns; medians.", warning
    )
    header = (
        "into qcow2", "s", "MiB/s of data", f"speed / {THEIRS.name}", "to reach", "",
        "server CPU s", "qemu-nbd CPU s",
    )  # fmt: skip
    rows = table(header, [_row(name, results, data) for name in results])
    return "\n\n".join((table(("machine", ""), list(description.items())), how, rows))


def _row(name: str, results: dict[str, list[Upload]], data: int) -> tuple[str, ...]:
    seconds, cpu, nbd = (statistics.median(column) for column in zip(*results[name], strict=True))
    rival = (
        name.removesuffix(RAW).replace(OURS.name, THEIRS.name)
        if name != CONVERT
        else _way(THEIRS.name, CONNECTIONS[-1])
    )
    ratio = statistics.median(upload.seconds for upload in results[rival]) / seconds
    has_goal = name.startswith(OURS.name) and not name.endswith(RAW)
    verdict = (f"≥ {GOAL}", "pass" if ratio >= GOAL else "MISS") if has_goal else ("", "")
    return name, f"{seconds:.2f}", f"{data / MiB / seconds:.0f}", f"{ratio:.2f}", *verdict, f"{cpu:.2f}", f"{nbd:.2f}"


if __name__ == "__main__":
    sys.exit(main())
