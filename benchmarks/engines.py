# SPDX-License-Identifier: Apache-2.0
"""What engines and backup programs get, beside what they have otherwise. `make bench-engines` runs this.

python -m benchmarks.engines [--only REGEX] [--rounds N] [--seconds S] [--directory DIR] [--output DIR]

Ranges of an image that qemu-nbd has, beside a server that connects to qemu-nbd anew (benchmarks/anew.py); nbdcopy
through the HTTPS port beside NBD over TLS; the map of a dirty bitmap beside qemu-nbd. All who take part in a row have
their turns in each round.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import machine, report
from benchmarks.cases import KiB, MiB, connections_text
from benchmarks.command import add_places, run_program
from benchmarks.measure import processor_seconds, table
from benchmarks.nbd import make_credentials, secure_uri
from benchmarks.nbdcases import OF_SHORT, run, timed
from benchmarks.rounds import LOAD
from benchmarks.seedcases import Figure, Row
from benchmarks.seeds import measured
from benchmarks.seedservers import OURS, uri_of
from benchmarks.servers import NBD_PORT, OURS_NBD, PROJECT, Server, running
from tests.support.daemon import Certificates
from tests.support.nbdservers import NbdServer, make_qcow2, qemu_nbd

#: Of the image that is read.
SIZE = 512 * MiB
CONNECTIONS = 8
#: Of the disk whose bitmap is read: each of them is an extent, and so is what is between them.
FRAGMENTS = 100_000
#: What is marked, and what is between.
MARK = 64 * KiB
BITMAP = "qemu:dirty-bitmap:changed"


@dataclass(frozen=True)
class Bench:
    """What rows work with."""

    stack: ExitStack
    memory: Path
    certificates: Certificates
    daemon: Server
    seconds: float


# Ranges


def ranges(bench: Bench) -> Iterator[Row]:
    """GET of ranges, 8 connections with TLS."""
    image = bench.memory / "image"
    with image.open("wb") as file:
        for _ in range(SIZE // MiB):
            file.write(os.urandom(MiB))
    server = bench.stack.enter_context(qemu_nbd(image, "raw", "--read-only", "--shared=100"))
    ticket = bench.daemon.add_ticket(server.url, SIZE, ops=["read"])
    ours = (bench.daemon.address("tls"), ticket, bench.daemon.pid)
    for anew in ("request", "piece"):
        theirs = bench.stack.enter_context(stand_in(server, bench.certificates, anew))
        for size, target in ((256 * KiB, 3.0), (4 * MiB, 10.0)):
            ways = {OURS: partial(load, bench, *ours, size), "stand-in": partial(load, bench, *theirs, size)}
            yield Row(f"ranges of {size // KiB} KiB, the other connects anew for each {anew}", "MB/s", ways, target)


@contextmanager
def stand_in(server: NbdServer, certificates: Certificates, anew: str) -> Iterator[tuple[str, str, int]]:
    """Run the other server, and return what the load generator is told: its address, a ticket, and its process."""
    files = (certificates.certfile, certificates.keyfile)
    command = ["/usr/bin/python3", "-P", PROJECT / "benchmarks/anew.py", server.uri, *files, anew]
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"tls:{int(process.stdout.readline())}", "image", process.pid
        finally:
            process.kill()


def load(bench: Bench, address: str, ticket: str, pid: int, size: int) -> Figure:
    """Read ranges for some time; return MB/s and the server's processor time for each."""
    told = json.loads(run(LOAD, address, ticket, "get", size, CONNECTIONS, bench.seconds, SIZE, pid))
    return told["requests"] * size / 1e6 / told["seconds"], 1e6 * told["server_cpu"] / told["requests"]


# nbdcopy


def copies(bench: Bench) -> Iterator[Row]:
    """nbdcopy of a file out of the daemon."""
    ticket = bench.daemon.add_ticket(bench.memory / "image", SIZE)
    credentials = make_credentials(bench.certificates, bench.daemon.directory)
    direct = secure_uri(bench.daemon.port(NBD_PORT), ticket, credentials)
    url = f"https://localhost:{bench.daemon.address('tls').removeprefix('tls:')}/images/{ticket}"
    client = bench.stack.enter_context(upgraded(bench, url))
    for connections in (1, 4):
        ways = {
            "Upgrade: nbd": partial(copy, bench.daemon, client, connections),
            "NBD over TLS": partial(copy, bench.daemon, direct, connections),
        }
        yield Row(f"nbdcopy out, {connections_text(connections)}", "MiB/s", ways, 0.95)


@contextmanager
def upgraded(bench: Bench, url: str) -> Iterator[str]:
    """Run imageio-client nbd, and yield the URI of its socket."""
    options = ["--no-local", "--cafile", str(bench.certificates.cafile)]
    command = [sys.executable, "-m", "imageio_daemon.client.cli", "nbd", *options, url]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def copy(daemon: Server, uri: str, connections: int) -> Figure:
    """Copy the image to nowhere; return the rate and the daemon's processor time for each MiB."""
    before = daemon.cpu
    seconds = timed("nbdcopy", f"--connections={connections}", uri, "null:")
    return SIZE / MiB / seconds, 1e6 * (daemon.cpu - before) * MiB / SIZE


# The map of a bitmap


def maps(bench: Bench) -> Iterator[Row]:
    """nbdinfo --map of a bitmap, by a ticket for qemu-nbd and by one for the file."""
    size = FRAGMENTS * 2 * MARK
    disk = fragmented(bench.memory / "disk.qcow2", size)
    theirs = bench.stack.enter_context(qemu_nbd(disk, "qcow2", "--read-only", "--bitmap=changed", "--shared=100"))
    tickets = {
        "ticket of its socket": bench.daemon.add_ticket(theirs.url, size, ops=["read"], dirty=True),
        "ticket of the file": bench.daemon.add_ticket(
            disk, size, ops=["read"], dirty=True, format="qcow2", bitmap="changed"
        ),
    }
    expected = run("nbdinfo", f"--map={BITMAP}", theirs.uri)
    for name, ticket in tickets.items():
        uri = uri_of(bench.daemon, ticket)
        assert run("nbdinfo", f"--map={BITMAP}", uri) == expected
        for what, options in (("map", ()), ("map, totals only", ("--totals",))):
            ways = {
                OURS: partial(look, bench.daemon.pid, uri, *options),
                "qemu-nbd": partial(look, server_pid(theirs), theirs.uri, *options),
            }
            yield Row(f"nbdinfo {what}, {2 * FRAGMENTS} extents, {name}", "1000/s", ways, 1.0)


def fragmented(path: Path, size: int) -> Path:
    """Make a disk whose bitmap marks every second piece. What is marked is zeros, so that it takes no room."""
    make_qcow2(path, size)
    run("qemu-img", "bitmap", "--add", "-f", "qcow2", path, "changed")
    lines = "\n".join([*(f"write -q -z {at} {MARK}" for at in range(0, size, 2 * MARK)), "quit\n"])
    subprocess.run(["qemu-io", "-f", "qcow2", path], input=lines, text=True, check=True, stdout=subprocess.DEVNULL)
    return path


def server_pid(server: NbdServer) -> int:
    assert server.process is not None
    return server.process.pid


def look(pid: int, uri: str, *options: str) -> Figure:
    """Print the map; return the rate, and the server's processor time for 1000 extents."""
    before, thousands = processor_seconds(pid), 2 * FRAGMENTS / 1000
    seconds = timed("nbdinfo", *options, f"--map={BITMAP}", uri)
    return thousands / seconds, 1e6 * (processor_seconds(pid) - before) / thousands


# The command


def main() -> int:
    """Run what the command line asks for, and return the exit status: 1 if it could not be measured."""
    return run_program(_parser(), _run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench-engines", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", default="", metavar="REGEX", help="rows whose work matches, such as map")
    parser.add_argument("--rounds", type=int, default=7, help="rounds (default: 7)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round of ranges (default: 2)")
    add_places(parser)
    return parser


def _run(options: argparse.Namespace) -> None:
    warning, lines = machine.busy(), []
    with ExitStack() as stack:
        memory, sockets = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="engines-", dir=where)))
            for where in ("/dev/shm", None)
        )
        certificates = Certificates.make(sockets)
        daemon = stack.enter_context(running(OURS_NBD, certificates, sockets / "ours"))
        bench = Bench(stack, memory, certificates, daemon, options.seconds)
        for rows, often in ((ranges, 1), (copies, 1), (maps, OF_SHORT)):
            rounds = options.rounds * often
            lines += [measured(row, rounds) for row in rows(bench) if re.search(options.only, row.work)]
        description = machine.describe(memory)
    how = (
        f"{options.rounds} rounds in turns, of maps {options.rounds * OF_SHORT}; medians. In brackets: microseconds of "
        "the server's processor time for a request, a MiB or 1000 extents, means."
    )
    header = ("work", "rates", "unit", "ratio", "to reach", "")
    text = [table(("machine", ""), list(description.items())), report.with_warning(how, warning), table(header, lines)]
    report.publish("\n\n".join(text), options, "engines")


if __name__ == "__main__":
    sys.exit(main())
