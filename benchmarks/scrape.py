# SPDX-License-Identifier: Apache-2.0
"""What it costs that metrics are asked for each second: this tree with that, and without. `make bench-scrape`.

python -m benchmarks.scrape [--only REGEX] [--rounds N] [--seconds S] [--directory DIR] [--output DIR] [--document]

Both in turns, the cases of a quick `make bench`. A ratio is with scrapes by without them, of each pair of rounds that
follow each other; the table has the geometric mean of the pairs with its 95 % interval.
"""

import argparse
import contextlib
import http.client
import math
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks import cases, machine, report, rounds
from benchmarks.beside import HTTP_IMAGE, Played, Result, compare
from benchmarks.command import add_places, run_program
from benchmarks.errors import BenchmarkError
from benchmarks.images import Images
from benchmarks.measure import table
from benchmarks.servers import OURS, Server, running
from tests.support.daemon import Certificates

#: The part of its rate that the daemon has to keep.
TARGET = 0.98
#: Seconds between two scrapes. Prometheus asks each 15 s to 60 s.
INTERVAL = 1.0

SCRAPED = replace(OURS, name="scraped", configuration=OURS.configuration + "\n[metrics]\nenable = true\nport = 0\n")
ALONE = replace(OURS, name="alone")
#: Where its log tells the port of the metrics.
METRICS_PORT = r"listening.*\bservice=metrics\b.*\bport=(\d+)"


@contextlib.contextmanager
def scrapes(server: Server) -> Iterator[None]:
    """Ask for the metrics now and each second, until the end of the block. Raises BenchmarkError if one has failed."""
    port, end, failures = int(server.port(METRICS_PORT)), threading.Event(), []

    def scrape() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=INTERVAL * 10)
        try:
            while True:
                connection.request("GET", "/metrics")
                answer = connection.getresponse()
                if b"imageio_requests_total" not in answer.read():
                    failures.append(f"a scrape is answered {answer.status}")
                if end.wait(INTERVAL):
                    return
        except (OSError, http.client.HTTPException) as e:
            failures.append(f"a scrape fails: {e}")
        finally:
            connection.close()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
    if failures:
        raise BenchmarkError(failures[0])


def compare_case(case: cases.Case, images: Images, count: int, seconds: float) -> Result:
    """Compare one case."""
    image = images.path(case)

    def play(server: Server, ticket: str) -> Played:
        one = rounds.play(case, server, ticket, images.size, seconds)
        return Played(rounds.rate(case, one), rounds.cpu(case, one))

    def play_scraped(server: Server, ticket: str) -> Played:
        with scrapes(server):
            return play(server, ticket)

    with ExitStack() as stack:
        # Not below the images: the path of a unix socket may have 107 bytes.
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        certificates = Certificates.make(directory)
        players = []
        for program, how in ((SCRAPED, play_scraped), (ALONE, play)):
            server = stack.enter_context(running(program, certificates, directory / program.name))
            ticket = server.add_ticket(image, images.size)
            players.append(lambda how=how, server=server, ticket=ticket: how(server, ticket))
        return compare(case.name, count, players)


def main() -> int:
    """Run what the command line asks for, and return the exit status: 1 if it could not be measured."""
    return run_program(_parser(), _run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench-scrape", description="Measure what scrapes cost.")
    parser.add_argument("--only", default="", metavar="REGEX", help="only cases whose name matches")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each (default: 5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a round (default: 2)")
    add_places(parser)
    return parser


def _run(options: argparse.Namespace) -> None:
    started, warning = time.monotonic(), machine.busy()
    with tempfile.TemporaryDirectory(prefix="imageio-bench-", dir=options.directory) as name, ExitStack() as stack:
        directory = Path(name)
        description = machine.describe(directory)
        images = Images(directory, HTTP_IMAGE, stack)
        results = [
            compare_case(goal.case, images, options.rounds, options.seconds)
            for goal in cases.GOALS
            if re.search(options.only, goal.case.name)
        ]
    how = f"{options.rounds} rounds of {options.seconds:g} s, in turns. {time.monotonic() - started:.0f} s in all."
    report.publish(document(description, report.with_warning(how, warning), results), options, "scrape")


def document(description: dict[str, str], how: str, results: Sequence[Result]) -> str:
    """Return all that a run has to say, as Markdown."""
    lines = [(row.name, str(row.rate), str(row.cpu)) for row in results]
    mean = math.exp(statistics.fmean(math.log(row.rate.ratio) for row in results)) if results else 1.0
    told = f"Geometric mean of the rates' ratios {mean:.3f}, {TARGET} wanted."
    header = ("work", "rate, scraped by alone", "server CPU for the same work")
    return "\n\n".join((table(("machine", ""), list(description.items())), how, told, table(header, lines)))


if __name__ == "__main__":
    sys.exit(main())
