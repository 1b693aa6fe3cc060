# SPDX-License-Identifier: Apache-2.0
"""Checksums beside ovirt-imageio's, and what a verified upload costs. `make bench-verify` runs this.

python -m benchmarks.verify [--rounds N] [--only REGEX] [--directory DIR] [--output DIR] [--document]

Images are on tmpfs, since the disk would limit both. The algorithm is blake2b, which is the default of both.
"""

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks import machine, report
from benchmarks.cases import GiB, KiB, MiB
from benchmarks.client import timed
from benchmarks.command import add_places, run_program
from benchmarks.errors import BenchmarkError
from benchmarks.measure import table, turned
from benchmarks.servers import OURS, THEIRS, Server, running
from tests.support.daemon import Certificates
from tests.support.http_client import Connection, connect_unix

#: A checksum that takes longer hangs, seconds.
TIMEOUT = 600.0


class Case(NamedTuple):
    """An image with data in each step, and how many times as fast our checksum shall be; None: not asked for."""

    name: str
    size: int
    piece: int
    step: int
    factor: float | None = None


CASES = (
    Case("full of data", 2 * GiB, 2 * GiB, 2 * GiB, 1.6),
    Case("10 % data, in pieces of 16 MiB", 6 * GiB, 16 * MiB, 160 * MiB, 10.0),
    Case("no data", 6 * GiB, 0, 6 * GiB, 10.0),
    Case("100,000 extents of 4 KiB, 128 KiB apart", 100_000 * 128 * KiB, 4 * KiB, 128 * KiB),
)
#: The seconds of each round, of two ways.
Times = tuple[list[float], list[float]]
#: What is uploaded, by imageio-client.
UPLOAD = "imageio-client upload of 2 GiB"


def make_image(path: Path, case: Case) -> None:
    with path.open("xb", buffering=0) as file:
        file.truncate(case.size)
        for offset in range(0, case.size if case.piece else 0, case.step):
            file.seek(offset)
            for start in range(0, case.piece, 16 * MiB):
                file.write(os.urandom(min(16 * MiB, case.piece - start)))


def checksum(server: Server, ticket: str) -> str:
    """Return the checksum of an image, as the server tells it."""
    with Connection(connect_unix(str(server.directory / "local"), timeout=TIMEOUT)) as connection:
        answer = connection.request("GET", f"/images/{ticket}/checksum")
    if answer.status != 200:
        raise BenchmarkError(f"{server.name} tells no checksum: {answer}")
    return str(json.loads(answer.body)["checksum"])


def measure_checksums(case: Case, servers: list[Server], directory: Path, rounds: int) -> Times:
    """Return the seconds of each server, of which all tell the same checksum."""
    image = directory / "image"
    make_image(image, case)
    tickets = {server.name: server.add_ticket(image, case.size) for server in servers}
    seconds: dict[str, list[float]] = {server.name: [] for server in servers}
    found = set()
    for number in range(rounds):
        for server in turned(servers, number):
            started = time.perf_counter()
            found.add(checksum(server, tickets[server.name]))
            seconds[server.name].append(time.perf_counter() - started)
    for server in servers:
        server.remove_ticket(tickets[server.name])
    image.unlink()
    if len(found) != 1:
        raise BenchmarkError(f"{case.name}: the checksums differ")
    ours, theirs = seconds.values()
    return ours, theirs


def measure_uploads(server: Server, cafile: Path, directory: Path, rounds: int) -> Times:
    """Return the seconds of uploads, and of those that are verified."""
    source, target = directory / "source", directory / "target"
    make_image(source, CASES[0])
    options: list[list[str]] = [[], ["--verify"]]
    seconds: Times = ([], [])
    for number in range(rounds):
        for way in turned(range(len(options)), number):
            target.unlink(missing_ok=True)
            make_image(target, CASES[0]._replace(piece=0))
            url = f"https://localhost:{server.port(server.program.port)}/images/{server.add_ticket(target, 2 * GiB)}"
            program = [sys.executable, "-m", "imageio_daemon.client.cli", "upload", "--quiet", "--no-state"]
            command = [*program, *options[way], "--cafile", str(cafile), str(source), url]
            seconds[way].append(timed(command, server).wall)
    return seconds


# The command

Row = tuple[str, str, str, str, str]


def row(name: str, ours: list[float], other: list[float], factor: float | None) -> Row:
    """Return a line of the table. other: what the factor is wanted beside."""
    medians = statistics.median(ours), statistics.median(other)
    found = medians[1] / medians[0]
    wanted = "" if factor is None else f"≥ {factor:g}: {'pass' if found >= factor else 'MISS'}"
    return name, f"{medians[0]:.2f}", f"{medians[1]:.2f}", f"{found:.2f}", wanted


def main() -> int:
    """Run what the command line asks for, and return the exit status: 1 if it could not be measured."""
    return run_program(_parser(), _run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench-verify", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each (default: 5)")
    parser.add_argument("--only", default="", metavar="REGEX", help="rows whose name matches")
    add_places(parser)
    parser.set_defaults(directory=Path("/dev/shm"))
    return parser


def _run(options: argparse.Namespace) -> None:
    warning, started = machine.busy(), time.monotonic()
    rows: list[Row] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory)))
        description = machine.describe(directory)
        certificates = Certificates.make(directory)
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        servers = [
            stack.enter_context(running(program, certificates, sockets / program.name)) for program in (OURS, THEIRS)
        ]
        for case in CASES:
            if re.search(options.only, case.name):
                times = measure_checksums(case, servers, directory, options.rounds)
                rows.append(row(f"checksum, {case.name}", *times, case.factor))
        if re.search(options.only, UPLOAD):
            plain, verified = measure_uploads(servers[0], certificates.cafile, directory, options.rounds)
            rows.append(row(f"{UPLOAD}: --verify, and without", verified, plain, None))
    how = (
        f"{options.rounds} rounds, in turns; medians in seconds. Checksums beside ovirt-imageio's, a verified upload "
        f"beside one that is not. {time.monotonic() - started:.0f} s in all."
    )
    rates = table(("", "ours", "other", "times as fast", "wanted"), rows)
    text = "\n\n".join((table(("machine", ""), list(description.items())), report.with_warning(how, warning), rates))
    report.publish(text, options, "verify")


if __name__ == "__main__":
    sys.exit(main())
