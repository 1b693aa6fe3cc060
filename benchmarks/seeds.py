# SPDX-License-Identifier: Apache-2.0
"""Five experiments about zeros and qcow2, each beside those that can do the same. `make bench-seeds` runs this.

python -m benchmarks.seeds [--quick] [--only REGEX] [--rounds N] [--directory DIR] [--output DIR] [--document]

All who take part in a row have their turns in each round. Who is not on this machine is named, and not guessed.
"""

import argparse
import re
import statistics
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from benchmarks import machine, report
from benchmarks.command import add_places, run_program
from benchmarks.errors import BenchmarkError
from benchmarks.measure import table, turned
from benchmarks.seedcases import EXPERIMENTS, Bench, Figure, Row
from benchmarks.seedservers import missing
from benchmarks.servers import OURS_NBD, OVIRT_IMAGEIO, THEIRS, running
from tests.support.daemon import Certificates

NEEDED = ("fio", "nbdcopy", "nbdkit", "qemu-nbd")


def main() -> int:
    """Run what the command line asks for, and return the exit status: 1 if it could not be measured."""
    return run_program(_parser(), _run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench-seeds", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="an eighth of the bytes, in one round")
    parser.add_argument("--only", default="", metavar="REGEX", help="experiments whose title matches, such as 2")
    parser.add_argument("--rounds", type=int, help="rounds (default: 5; 1 if quick)")
    add_places(parser)
    return parser


def _run(options: argparse.Namespace) -> None:
    absent = missing()
    if gone := [name for name in NEEDED if name in absent]:
        raise BenchmarkError(f"not installed: {', '.join(gone)}")
    rounds = options.rounds or (1 if options.quick else 5)
    parts = []
    with ExitStack() as stack:
        bench = _bench(stack, options)
        parts.append(table(("machine", ""), list(machine.describe(bench.disk).items())))
        for experiment in EXPERIMENTS:
            if re.search(options.only, experiment.title):
                lines = [measured(row, rounds) for row in experiment.rows(bench)]
                parts.append(f"**{experiment.title}.** Its author has told: {experiment.reported}.")
                parts.append(table(("work", "rates", "unit", "ratio", "to reach", ""), lines))
    parts.append("Not measured: " + "; ".join(f"{name} {why}" for name, why in absent.items()) + ".")
    how = f"{rounds} rounds in turns, medians. In brackets: microseconds of the server's processor time for a request."
    parts.insert(1, report.with_warning(how, machine.busy()))
    report.publish("\n\n".join(parts), options, "seeds")


def _bench(stack: ExitStack, options: argparse.Namespace) -> Bench:
    disk, memory, sockets = (
        Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="seeds-", dir=where)))
        for where in (options.directory, "/dev/shm", None)
    )
    certificates = Certificates.make(sockets)
    daemon = stack.enter_context(running(OURS_NBD, certificates, sockets / "ours"))
    theirs = stack.enter_context(running(THEIRS, certificates, sockets / "theirs")) if OVIRT_IMAGEIO.exists() else None
    return Bench(disk, memory, certificates.cafile, daemon, theirs, 0.125 if options.quick else 1.0)


def measured(row: Row, rounds: int) -> tuple[str, ...]:
    """Measure a row. A way that has failed has the rate 0."""
    figures: defaultdict[str, list[Figure]] = defaultdict(list)
    for number in range(rounds):
        for name in turned(list(row.ways), number):
            figures[name].append(row.ways[name]())
    rates = {name: statistics.median(rate for rate, _ in figures[name]) for name in row.ways}
    best = max(list(rates.values())[1:], default=0.0)
    ratio = next(iter(rates.values())) / best if best else None
    line = (
        row.work,
        ", ".join(f"{name} {rates[name]:.1f}{_processor(figures[name])}" for name in row.ways),
        row.unit,
        "" if ratio is None else f"{ratio:.2f}",
        f"≥ {row.target}" if row.target else "",
        "" if ratio is None or not row.target else "pass" if ratio >= row.target else "MISS",
    )
    print(" | ".join(line), file=sys.stderr)
    return line


def _processor(figures: list[Figure]) -> str:
    told = [microseconds for _, microseconds in figures if microseconds is not None]
    return f" ({statistics.mean(told):.0f})" if told else ""  # of all rounds: the clock has steps of 10 ms


if __name__ == "__main__":
    sys.exit(main())
