# SPDX-License-Identifier: Apache-2.0
"""Upload of a file-system image into qcow2 through qemu-nbd, beside ovirt-imageio and qemu-img convert.

python -m benchmarks.qcow2 [--rounds N] [--size GIB] [--data MIB] [--directory DIR] [--output DIR]

The same client sends the same requests to both servers: PUT of 4 MiB of data at most, PATCH zero of each hole, on 1 or
4 connections to the unix socket, and a flush at the end. `make bench ONLY=qcow2` runs this.
"""

import argparse
import json
import os
import queue
import resource
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

from benchmarks import machine
from benchmarks.cases import GiB, MiB
from benchmarks.command import run_program
from benchmarks.errors import BenchmarkError
from benchmarks.measure import table
from benchmarks.servers import OURS, PROGRAMS, PROJECT, THEIRS, Server, running
from tests.support.daemon import Certificates
from tests.support.http_client import Connection, connect_unix
from tests.support.nbdservers import make_qcow2, qemu_nbd

CONNECTIONS = (1, 4)
PIECE = 4 * MiB
CONVERT = "qemu-img convert"
#: qemu-nbd as production runs it; without direct I/O where the file system has none.
DIRECT = ("--cache=none", "--aio=native")
#: What ours is to reach, as a multiple of ovirt-imageio's speed.
GOAL = 1.2


class Upload(NamedTuple):
    """One upload: seconds on the clock until it is on stable storage, and processor seconds."""

    seconds: float
    server_cpu: float
    nbd_cpu: float


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
    parser.add_argument("--directory", type=Path, default=Path(os.environ.get("TMPDIR", "/var/tmp")))
    parser.add_argument("--output", type=Path, default=PROJECT / "build/bench", help="where results go")
    return parser


def _run(options: argparse.Namespace) -> None:
    warning = machine.busy()
    if warning:
        print(f"bench: {warning}", file=sys.stderr)
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="imageio-bench-", dir=options.directory))
        )
        source = _make_source(directory, options.size * GiB, options.data * MiB)
        parts = list(_parts(source))
        direct = DIRECT if _takes_direct_io(directory) else ()
        # Not below the images: the path of a unix socket may have 107 bytes.
        run_directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        certificates = Certificates.make(run_directory)
        servers = [
            stack.enter_context(running(program, certificates, run_directory / program.name)) for program in PROGRAMS
        ]
        ways: dict[str, Callable[[Path], Upload]] = {
            _way(server.name, connections): partial(_upload, server, source, parts, direct, connections)
            for connections in CONNECTIONS
            for server in servers
        }
        ways[CONVERT] = partial(_convert, source, direct)
        results: dict[str, list[Upload]] = {name: [] for name in ways}
        for number in range(options.rounds):
            names = list(ways)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                target = make_qcow2(directory / "target.qcow2", source.stat().st_size)
                results[name].append(ways[name](target))
                if number == 0:
                    _check(source, target)
                target.unlink()
                print(f"{number + 1}/{options.rounds} {name}: {results[name][-1].seconds:.2f} s", file=sys.stderr)
        data = sum(part.length for part in parts if part.data)
        _write(options.output, results, data, len(parts), warning)


def _way(program: str, connections: int) -> str:
    return f"{program}, {connections} connection{'s' if connections > 1 else ''}"


def _make_source(directory: Path, size: int, data: int) -> Path:
    """Make an ext4 image with files of many sizes, of bytes that do not compress."""
    files, image = directory / "files", directory / "source.raw"
    files.mkdir()
    left, length = data, 64 * 1024
    while left > 0:
        with (files / f"{left}").open("wb") as file:
            for start in range(0, min(length, left), MiB):
                file.write(os.urandom(min(MiB, length - start)))
        left -= length
        length = length * 2 if length < 64 * MiB else 64 * 1024
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


def _upload(
    server: Server, source: Path, parts: Sequence[Part], options: Sequence[str], connections: int, target: Path
) -> Upload:
    size = source.stat().st_size
    with qemu_nbd(target, "qcow2", *options) as nbd:
        assert nbd.process is not None
        ticket = server.add_ticket(nbd.url, size, sparse=True, ops=["write"])
        server_cpu, nbd_cpu = _cpu(server.pid), _cpu(nbd.process.pid)
        started = time.monotonic()
        _send_all(server, f"/images/{ticket}", source, parts, connections)
        seconds = time.monotonic() - started
        used = Upload(seconds, _cpu(server.pid) - server_cpu, _cpu(nbd.process.pid) - nbd_cpu)
        server.remove_ticket(ticket)
        nbd.stop()
    server.check()
    return used


def _send_all(server: Server, url: str, source: Path, parts: Sequence[Part], connections: int) -> None:
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
        before, nbd_cpu = _children_cpu(), _cpu(nbd.process.pid)
        started = time.monotonic()
        command = ["qemu-img", "convert", "-n", "-W", "-f", "raw", "-O", "raw", str(source), f"{nbd.url}"]
        subprocess.check_call(command)
        used = Upload(time.monotonic() - started, _children_cpu() - before, _cpu(nbd.process.pid) - nbd_cpu)
        nbd.stop()
    return used


def _check(source: Path, target: Path) -> None:
    command = ["qemu-img", "compare", "-q", "-f", "raw", "-F", "qcow2", str(source), str(target)]
    if subprocess.call(command) != 0:
        raise BenchmarkError(f"{target} is not the image that was uploaded")


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _write(output: Path, results: dict[str, list[Upload]], data: int, parts: int, warning: str | None) -> None:
    rows = []
    for name, uploads in results.items():
        seconds, cpu, nbd = (statistics.median(column) for column in zip(*uploads, strict=True))
        rival = name.replace(OURS.name, THEIRS.name) if name != CONVERT else _way(THEIRS.name, CONNECTIONS[-1])
        ratio = statistics.median(upload.seconds for upload in results[rival]) / seconds
        rate = data / MiB / seconds
        rows.append((name, f"{seconds:.2f}", f"{rate:.0f}", f"{ratio:.2f}", f"{cpu:.2f}", f"{nbd:.2f}"))
    header = ("into qcow2 through qemu-nbd", "s", "MiB/s of data", f"speed / {THEIRS.name}", "CPU s", "qemu-nbd CPU s")
    rounds = len(next(iter(results.values())))
    text = (
        f"{data // MiB} MiB of data in {parts} parts, {rounds} rounds in turns, medians; "
        f"to reach: {GOAL} times the speed of {THEIRS.name}.\n\n{table(header, rows)}"
    )
    if warning:
        text += f"\n\n**{warning[0].upper()}{warning[1:]}.**"
    output.mkdir(parents=True, exist_ok=True)
    (output / "qcow2.md").write_text(text + "\n")
    figures = {name: [upload._asdict() for upload in uploads] for name, uploads in results.items()}
    (output / "qcow2.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    sys.exit(main())
