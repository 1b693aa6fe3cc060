# SPDX-License-Identifier: Apache-2.0
"""This tree beside an earlier build of it, over HTTP and NBD, in turns. `make bench-beside` runs this.

python -m benchmarks.beside CHECKOUT [--only REGEX] [--rounds N] [--seconds S] [--directory DIR] [--output DIR]

CHECKOUT is another work tree of this project in which scripts/setup has run. A ratio is this tree by that one, of each
pair of rounds that follow each other; the table has the geometric mean of the pairs with its 95 % interval.
"""

import argparse
import math
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks import cases, machine, nbd, nbdcases, report, rounds
from benchmarks.cases import GiB, MiB
from benchmarks.command import add_places, run_program
from benchmarks.images import Images
from benchmarks.measure import table, turned
from benchmarks.servers import OURS_NBD, Program, Server, before, running
from tests.support.daemon import Certificates

#: Of Student's distribution, for 1, 2, ... degrees of freedom; 1.96 + 2.4 / degrees past them.
T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)

HTTP_IMAGE, NBD_IMAGE = 1 * GiB, 512 * MiB


class Played(NamedTuple):
    """What one round gave: the rate, in any unit, and the server's processor seconds for a unit of work."""

    rate: float
    cpu: float


class Estimate(NamedTuple):
    """A ratio, and how far it may be off, as a factor."""

    ratio: float
    factor: float

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]]) -> "Estimate":
        """Estimate the ratio of the first to the second; what is 0, below the clock's resolution, tells nothing."""
        logs = [math.log(ours / theirs) for ours, theirs in pairs if ours > 0 and theirs > 0]
        if not logs:
            return cls(1.0, math.inf)
        if len(logs) == 1:
            return cls(math.exp(logs[0]), math.inf)
        degrees = len(logs) - 1
        t = T_95[degrees - 1] if degrees <= len(T_95) else 1.96 + 2.4 / degrees
        error = t * statistics.stdev(logs) / math.sqrt(len(logs))
        return cls(math.exp(statistics.fmean(logs)), math.exp(error))

    def __str__(self) -> str:
        if self.factor == math.inf:
            return f"{self.ratio:.2f}"
        return f"{self.ratio:.2f} ({self.ratio / self.factor:.2f} to {self.ratio * self.factor:.2f})"


@dataclass(frozen=True)
class Result:
    """What one case gave: ratios of this tree to the other."""

    name: str
    rate: Estimate
    cpu: Estimate


def compare(name: str, count: int, players: Sequence[Callable[[], Played]]) -> Result:
    """Play rounds of this tree and the other in turns; one before them warms up and is not counted."""
    played: list[list[Played]] = [[], []]
    for play in players:
        play()
    for number in range(count):
        for which in turned((0, 1), number):
            played[which].append(players[which]())
    pairs = list(zip(*played, strict=True))
    result = Result(
        name,
        Estimate.of([(ours.rate, theirs.rate) for ours, theirs in pairs]),
        Estimate.of([(ours.cpu, theirs.cpu) for ours, theirs in pairs]),
    )
    print(f"{name}: rate {result.rate}, server CPU {result.cpu}", file=sys.stderr)
    return result


def compare_http(case: cases.Case, images: Images, programs: Sequence[Program], count: int, seconds: float) -> Result:
    """Compare one case of benchmarks.transfer."""
    image = images.path(case)

    def play(server: Server, ticket: str) -> Played:
        one = rounds.play(case, server, ticket, images.size, seconds)
        return Played(rounds.rate(case, one), rounds.cpu(case, one))

    with ExitStack() as stack:
        # Not below the images: the path of a unix socket may have 107 bytes.
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        certificates = Certificates.make(directory)
        players = []
        for program in programs:
            server = stack.enter_context(running(program, certificates, directory / program.name))
            ticket = server.add_ticket(image, images.size)
            players.append(lambda server=server, ticket=ticket: play(server, ticket))
        return compare(case.name, count, players)


def compare_nbd(
    case: nbdcases.Case, storage: str, images: nbdcases.Images, programs: Sequence[Program], count: int, seconds: float
) -> Result:
    """Compare one case of benchmarks.nbd."""

    def play(server: nbdcases.Server) -> Played:
        rate, cpu = nbd.play(case, server, images, seconds)
        # fio and qemu-img work for a time, so that the quicker server does more: the time of a unit is compared.
        return Played(rate, cpu / rate)

    with ExitStack() as stack:
        players = []
        for program in programs:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            server = stack.enter_context(nbd.ours(getattr(images, case.image), directory, program, secure=case.secure))
            players.append(lambda server=server: play(server))
        return compare(f"NBD {case.name} on {storage}", count, players)


def main() -> int:
    """Run what the command line asks for, and return the exit status: 1 if it could not be measured."""
    return run_program(_parser(), _run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench-beside", description="Measure beside an earlier build.")
    parser.add_argument("checkout", type=Path, help="a work tree of the earlier version, built by its scripts/setup")
    parser.add_argument("--only", default="", metavar="REGEX", help="only cases whose name matches")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each (default: 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a round (default: 1)")
    add_places(parser)
    return parser


def _run(options: argparse.Namespace) -> None:
    programs = (OURS_NBD, before(options.checkout.resolve()))
    started, warning = time.monotonic(), machine.busy()
    with ExitStack() as stack:
        directory, memory = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="imageio-bench-", dir=where)))
            for where in (options.directory, "/dev/shm")
        )
        description = machine.describe(directory) | {"before": machine.commit(options.checkout)}
        results = {
            "HTTP": _http(options, programs, directory, stack),
            "NBD": _nbd(options, programs, directory, memory),
        }
    how = f"{options.rounds} rounds of {options.seconds:g} s, in turns. {time.monotonic() - started:.0f} s in all."
    report.publish(_document(description, report.with_warning(how, warning), results), options, "beside")


def _http(options: argparse.Namespace, programs: Sequence[Program], directory: Path, stack: ExitStack) -> list[Result]:
    images = Images(directory, HTTP_IMAGE, stack)
    return [
        compare_http(case, images, programs, options.rounds, options.seconds)
        for case in cases.all_cases()
        if re.search(options.only, case.name)
    ]


def _nbd(options: argparse.Namespace, programs: Sequence[Program], directory: Path, memory: Path) -> list[Result]:
    chosen = [
        (case, storage)
        for storage in ("disk", "tmpfs")
        for case in nbdcases.all_cases()
        if re.search(options.only, f"NBD {case.name} on {storage}")
    ]
    if not chosen:
        return []
    source = nbd.make_source(memory, NBD_IMAGE)
    places = {"disk": directory, "tmpfs": memory}
    images = {
        storage: nbdcases.Images.make(places[storage], source, NBD_IMAGE)
        for storage in {storage for _, storage in chosen}
    }
    return [
        compare_nbd(case, storage, images[storage], programs, options.rounds * case.often, options.seconds)
        for case, storage in chosen
    ]


def _document(description: dict[str, str], how: str, results: dict[str, list[Result]]) -> str:
    parts = [table(("machine", ""), list(description.items())), how]
    for protocol, rows in results.items():
        if rows:
            mean = math.exp(statistics.fmean(math.log(row.rate.ratio) for row in rows))
            parts.append(f"{protocol}: geometric mean of the rates' ratios {mean:.3f}, of {len(rows)} cases.")
            lines = [(row.name, str(row.rate), str(row.cpu)) for row in rows]
            parts.append(table(("work", "rate", "server CPU for the same work"), lines))
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
