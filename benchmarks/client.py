# SPDX-License-Identifier: Apache-2.0
"""imageio-client beside other programs: a sparse image goes up and back. `make bench-client` runs this.

python -m benchmarks.client [--quick] [--rounds N] [--only REGEX] [--directory DIR] [--output DIR] [--document]

6 GiB with 1.2 GiB of data, and 12.2 GiB with 100,000 pieces of 4 KiB; a quarter of that if quick. All programs in
turns, each in a process of its own that ends when all is on stable storage. The source is in the page cache; nothing is
left to be written when a turn begins.
"""

import argparse
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import NamedTuple

from benchmarks import machine, report
from benchmarks.cases import GiB, KiB, MiB
from benchmarks.command import add_places, run_program
from benchmarks.copies import DIRECTIONS, SERVERS, WAYS, Job
from benchmarks.errors import BenchmarkError
from benchmarks.measure import children_seconds, table, turned
from benchmarks.servers import Server, running
from tests.support.daemon import Certificates

#: A piece of data in each step: 19 %.
PIECE, STEP = 16 * MiB, 80 * MiB
#: The image that is fragmented: pieces of 4 KiB, 128 KiB apart.
FRAGMENTS, FRAGMENT, APART = 100_000, 4 * KiB, 128 * KiB
#: A program that takes longer hangs, seconds.
TIMEOUT = 300.0
#: Where development keeps Python from writing bytecode; what is installed has it.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Turn(NamedTuple):
    """What one run took: seconds on the clock, processor seconds of the client and of the server."""

    wall: float
    client: float
    server: float


class Goal(NamedTuple):
    """How many times as fast one way shall be as another."""

    direction: str
    ours: str
    other: str
    factor: float


GOALS = (
    *(Goal(up, "imageio-client, TLS", "ovirt-imageio, TLS", 1.5) for up in DIRECTIONS[:2]),
    *(Goal(up, "imageio-client, TLS", "qemu-img convert -W -m 8, local", 1.0) for up in DIRECTIONS[:2]),
    Goal("down", "imageio-client, TLS", "ovirt-imageio, TLS", 3.0),
    Goal("up, fragmented", "imageio-client, TLS", "qemu-img convert -W -m 8, local", 1.0),
    Goal("down, fragmented", "imageio-client, TLS", "qemu-img convert -W -m 8 and our NBD, unix socket", 1.0),
)

# Rounds

Results = dict[tuple[str, str], list[Turn]]


def measure(stack: ExitStack, directory: Path, size: int, rounds: int, only: str) -> Results:
    certificates = Certificates.make(directory)
    sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
    servers = {
        name: stack.enter_context(running(program, certificates, sockets / str(number)))
        for number, (name, program) in enumerate(SERVERS.items())
    }
    fragments = size * FRAGMENTS // (6 * GiB)
    sources = {
        False: make_source(directory / "source", size, PIECE, STEP),
        True: make_source(directory / "fragmented", fragments * APART, FRAGMENT, APART),
    }
    target = directory / "target"
    cases = [case for case in all_cases() if re.search(only, " ".join(case))]
    results: Results = {case: [] for case in cases}
    for number in range(rounds):
        for direction, name in turned(cases, number):
            way, source = WAYS[name], sources["fragmented" in direction]
            job = Job(direction, source, target, source.stat().st_size, certificates.cafile)
            prepare(job)
            with job.at(servers[way.server]) if way.server else nullcontext(job) as ready:
                results[direction, name].append(timed(way.command(ready), ready.server))
            if number == 0:
                check(job)
            print(f"{number + 1}/{rounds} {direction}: {name}: {results[direction, name][-1]}", file=sys.stderr)
    return results


def all_cases() -> Iterator[tuple[str, str]]:
    for direction in DIRECTIONS:
        for name in WAYS:
            if "fragmented" not in direction or name != "dd, local":  # dd knows no holes
                yield direction, name


def make_source(path: Path, size: int, piece: int, step: int) -> Path:
    with path.open("xb") as file:
        file.truncate(size)
        for offset in range(0, size // step * step, step):
            file.seek(offset)
            file.write(os.urandom(piece))
    return path


def prepare(job: Job) -> None:
    """Make the target of an upload, and let the disk become quiet."""
    job.target.unlink(missing_ok=True)
    if job.is_up:
        with job.target.open("xb") as file:
            if job.is_sparse:
                file.truncate(job.size)
            else:
                os.posix_fallocate(file.fileno(), 0, job.size)
    os.sync()


def timed(command: list[str], server: Server | None) -> Turn:
    before, of_server = children_seconds(), server.cpu if server else 0.0
    started = time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT, env=ENVIRONMENT)
    wall, client = time.perf_counter() - started, children_seconds() - before
    if done.returncode != 0:
        raise BenchmarkError(f"{command[0]} failed: {done.stderr.strip()}")
    return Turn(wall, client, server.cpu - of_server if server else 0.0)


def check(job: Job) -> None:
    command = ["qemu-img", "compare", "-f", "raw", "-F", "raw", str(job.source), str(job.target)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        raise BenchmarkError(f"{job.direction}: the target is not the source")


# The command


def document(description: dict[str, str], how: str, results: Results) -> str:
    """Return all that a run has to say, as Markdown."""
    rows = [
        (*case, *(f"{statistics.median(column):.2f}" for column in zip(*turns, strict=True)))
        for case, turns in results.items()
    ]
    rates = table(("direction", "program", "seconds", "client CPU", "server CPU"), rows)
    parts = [table(("machine", ""), list(description.items())), how, goals(results), rates]
    return "\n\n".join(part for part in parts if part)


def goals(results: Results) -> str:
    """Return the table of what is to be reached, for what was measured."""
    medians = {case: statistics.median(turn.wall for turn in turns) for case, turns in results.items()}
    rows = []
    for goal in GOALS:
        ours, other = ((goal.direction, name) for name in (goal.ours, goal.other))
        if ours in medians and other in medians:
            factor = medians[other] / medians[ours]
            verdict = "pass" if factor >= goal.factor else "MISS"
            rows.append((goal.direction, goal.ours, goal.other, f"{factor:.2f} (≥ {goal.factor})", verdict))
    return table(("to reach", "", "beside", "times as fast", ""), rows) if rows else ""


def main() -> int:
    """Run what the command line asks for, and return the exit status: 1 if it could not be measured."""
    return run_program(_parser(), _run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench-client", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a smaller image, fewer rounds")
    parser.add_argument("--rounds", type=int, help="rounds of each program (default: 5; 3 if quick)")
    parser.add_argument("--only", default="", metavar="REGEX", help='cases whose "direction program" matches')
    add_places(parser)
    return parser


def _run(options: argparse.Namespace) -> None:
    for program in ("qemu-img", "nbdcopy"):
        if shutil.which(program) is None:
            raise BenchmarkError(f"{program} is not installed")
    rounds, size = options.rounds or (3 if options.quick else 5), (3 * GiB // 2 if options.quick else 6 * GiB)
    warning, started = machine.busy(), time.monotonic()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory)))
        description = machine.describe(directory)
        results = measure(stack, directory, size, rounds, options.only)
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    how = (
        f"{rounds} rounds, in turns; medians. {size / GiB:g} GiB, of which {size // STEP * PIECE // MiB} MiB are data; "
        f"fragmented: {size * FRAGMENTS // (6 * GiB)} pieces of 4 KiB, 128 KiB apart. "
        f"Peak memory of any of the clients: {memory} MiB. {time.monotonic() - started:.0f} s in all."
    )
    text = document(description, report.with_warning(how, warning), results)
    report.publish(text, options, "client")


if __name__ == "__main__":
    sys.exit(main())
