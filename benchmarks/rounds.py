# SPDX-License-Identifier: Apache-2.0
"""Rounds of load on two servers in turns, and what they say."""

import dataclasses
import json
import operator
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cases import Case, GiB
from benchmarks.errors import BenchmarkError
from benchmarks.images import Images
from benchmarks.servers import OURS, PROGRAMS, PROJECT, THEIRS, Server, running
from tests.support.daemon import Certificates

LOAD = PROJECT / ".cache/load"

#: A load that takes this much longer than it should is stuck.
LOAD_TIMEOUT = 60.0  # seconds


@dataclass(frozen=True)
class Round:
    """What one server did in one round. Times are in seconds; processor time is that of all threads."""

    requests: int
    seconds: float  # from the first request to the last answer
    flush_seconds: float  # of the flush that follows
    server_cpu: float
    load_cpu: float
    p50: float
    p99: float
    peak_memory: int


Metric = Callable[[Round], float]


@dataclass(frozen=True)
class Measured:
    """All rounds of a case, by the program's name."""

    case: Case
    rounds: dict[str, list[Round]]
    disk_rate: float | None  # bytes per second, only for streams

    def median(self, program: str, metric: Metric) -> float:
        return statistics.median(metric(one) for one in self.rounds[program])

    def ratio(self, metric: Metric) -> float:
        """Return ours/theirs; 0 where processor time is below the clock's resolution."""
        theirs = self.median(THEIRS.name, metric)
        return self.median(OURS.name, metric) / theirs if theirs else 0.0

    def rate(self, one: Round) -> float:
        return rate(self.case, one)

    def cpu(self, one: Round) -> float:
        return cpu(self.case, one)

    def to_json(self) -> dict[str, object]:
        """Return every figure of every round, with the medians and ratios."""
        metrics: dict[str, Metric] = {"rate": self.rate, "cpu": self.cpu}
        metrics |= {name: operator.attrgetter(name) for name in ("p50", "p99", "peak_memory", "load_cpu")}
        return {
            "case": dataclasses.asdict(self.case),
            "rate_unit": "bytes/s" if self.case.streams else "requests/s",
            "cpu_unit": "s/GiB" if self.case.streams else "s/1000 requests",
            "disk_rate": self.disk_rate,
            "medians": {
                program: {name: self.median(program, metric) for name, metric in metrics.items()}
                for program in self.rounds
            },
            "ratios": {name: self.ratio(metric) for name, metric in metrics.items()},
            "rounds": {program: [dataclasses.asdict(one) for one in rounds] for program, rounds in self.rounds.items()},
        }


def rate(case: Case, one: Round) -> float:
    """Return bytes per second of a stream until it is on stable storage, else requests per second."""
    if case.streams:
        return one.requests * case.size / (one.seconds + one.flush_seconds)
    return one.requests / one.seconds


def cpu(case: Case, one: Round) -> float:
    """Return the server's processor seconds per GiB of a stream, else per 1000 requests."""
    return one.server_cpu / one.requests * (GiB / case.size if case.streams else 1000)


def memory(one: Round) -> float:
    """Return the peak of resident memory, in bytes."""
    return one.peak_memory


def measure(case: Case, images: Images, certificates: Certificates, rounds: int, seconds: float) -> Measured:
    """Run a case on servers that were started for it: a peak of memory is of this case alone."""
    image = images.path(case)
    results: dict[str, list[Round]] = {program.name: [] for program in PROGRAMS}
    with ExitStack() as stack:
        # Not below the images: the path of a unix socket may have 107 bytes.
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        servers = [
            stack.enter_context(running(program, certificates, directory / program.name)) for program in PROGRAMS
        ]
        tickets = {server.name: server.add_ticket(image, images.size) for server in servers}
        for _ in range(rounds):
            for server in servers:
                results[server.name].append(play(case, server, tickets[server.name], images.size, seconds))
        disk_rate = images.disk_rate(case, seconds) if case.streams else None
    return Measured(case, results, disk_rate)


def play(case: Case, server: Server, ticket: str, length: int, seconds: float) -> Round:
    """Put one round of a case's load on a server, on the first length bytes of the ticket's image."""
    server.reset_peak_memory()
    arguments = (server.address(case.transport), ticket, case.operation, case.size, case.connections, seconds, length)
    try:
        result = subprocess.run(
            [str(LOAD), *map(str, arguments), str(server.pid)],
            check=False,
            capture_output=True,
            text=True,
            timeout=seconds + LOAD_TIMEOUT,
        )
    except subprocess.TimeoutExpired as e:
        raise BenchmarkError(f"{server.name} does not answer: {case.name}") from e
    server.check()
    if result.returncode != 0:
        raise BenchmarkError(f"{case.name} on {server.name}: {result.stderr.strip()}")
    return Round(**json.loads(result.stdout), peak_memory=server.peak_memory())
