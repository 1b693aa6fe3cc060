# SPDX-License-Identifier: Apache-2.0
"""The NBD service beside qemu-nbd and nbdkit on the same images. `make bench-nbd` runs this.

python -m benchmarks.nbd [--quick] [--only REGEX] [--rounds N] [--directory DIR] [--output DIR] [--document]

All three serve a unix socket, in turns, past the page cache: ours and qemu-nbd with O_DIRECT, nbdkit by dropping what
it read and wrote. It drops late, and what it read ahead not at all: 94 % of 512 MiB are there after a copy (fincore).
So the page cache of the image is emptied before each round, for all three. On tmpfs, which is memory, the server is
all that is measured.
"""

import argparse
import functools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import machine, report
from benchmarks.cases import KiB, MiB
from benchmarks.command import add_places, run_program
from benchmarks.errors import BenchmarkError
from benchmarks.measure import drop_cache, processor_seconds, table, turned
from benchmarks.servers import OURS_NBD, running
from tests.support.daemon import Certificates
from tests.support.polling import eventually

NAMES = ("imageio-daemon", "qemu-nbd", "nbdkit")
#: Every client command ends in this time, in seconds, or something hangs.
TIMEOUT = 60.0
EXTENTS = 8192


@dataclass(frozen=True)
class Server:
    """A running server: how clients reach an image of it, and its process."""

    name: str
    uri: str
    pid: int

    @property
    def cpu(self) -> float:
        """Processor seconds of all threads so far."""
        return processor_seconds(self.pid)


@dataclass(frozen=True)
class Images:
    """What is served: an image full of data, one with many extents, and one to be zeroed; and what is copied in."""

    full: Path
    fragmented: Path
    zeroed: Path
    source: Path
    size: int

    @classmethod
    def make(cls, directory: Path, source: Path, size: int) -> "Images":
        full, fragmented, zeroed = (directory / name for name in ("full", "fragmented", "zeroed"))
        shutil.copy(source, full)
        with fragmented.open("wb") as file:
            file.truncate(EXTENTS * 8 * KiB)
            for place in range(0, EXTENTS * 8 * KiB, 8 * KiB):
                os.pwrite(file.fileno(), b"data" * KiB, place)
            os.fsync(file.fileno())
        zeroed.touch()
        os.truncate(zeroed, size)
        return cls(full, fragmented, zeroed, source, size)


@dataclass(frozen=True)
class Case:
    """One thing to do: `run` does it through a server and returns how much of the unit a second."""

    name: str
    unit: str
    run: Callable[[Server, Images, float], float]
    image: str = "full"
    target: float = 0.0
    against: tuple[str, ...] = NAMES[1:]


@dataclass
class Result:
    """All rounds of a case, by server."""

    case: Case
    storage: str
    rates: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in NAMES})
    cpu: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in NAMES})

    def rate(self, name: str) -> float:
        return statistics.median(self.rates[name])

    @property
    def ratio(self) -> float:
        """Ours to the best of those that it is compared with."""
        return self.rate(NAMES[0]) / max(self.rate(name) for name in self.case.against)

    @property
    def verdict(self) -> str:
        if not self.case.target:
            return ""
        return "pass" if self.ratio >= self.case.target else "MISS"


# Servers


@contextmanager
def ours(path: Path, directory: Path) -> Iterator[Server]:
    with running(OURS_NBD, Certificates.make(directory), directory / "run") as server:
        ticket = server.add_ticket(path, path.stat().st_size, sparse=True)
        yield Server(NAMES[0], f"nbd+unix:///{ticket}?socket={directory}/run/nbd", server.pid)


@contextmanager
def theirs(name: str, path: Path, directory: Path) -> Iterator[Server]:
    socket = directory / "socket"
    commands = {
        "qemu-nbd": ["qemu-nbd", "-f", "raw", "-k", socket, "--persistent", "-e", "8", "--discard=unmap",
                     "--cache=none", "--aio=native", path],
        "nbdkit": ["nbdkit", "--foreground", "-U", socket, "file", path, "cache=none"],
    }  # fmt: skip
    process = subprocess.Popen([str(word) for word in commands[name]], stderr=subprocess.PIPE)
    try:
        eventually(socket.exists, f"{name} listens", timeout=20)
        yield Server(name, f"nbd+unix:///?socket={socket}", process.pid)
    finally:
        process.kill()
        process.communicate()


@contextmanager
def served(name: str, path: Path, parent: Path) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="s-", dir=parent) as text:
        directory = Path(text)
        with ours(path, directory) if name == NAMES[0] else theirs(name, path, directory) as server:
            yield server


# Clients


def run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode:
        raise BenchmarkError(f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def timed(*command: object) -> float:
    start = time.perf_counter()
    run(*command)
    return time.perf_counter() - start


def copy_out(connections: int, server: Server, images: Images, _: float) -> float:
    return images.size / MiB / timed("nbdcopy", f"--connections={connections}", server.uri, "null:")


def copy_in(connections: int, server: Server, images: Images, _: float) -> float:
    command = ("nbdcopy", "--flush", f"--connections={connections}", images.source, server.uri)
    return images.size / MiB / timed(*command)


def qemu_bench(options: tuple[str, ...], server: Server, _: Images, seconds: float) -> float:
    count = round(8000 * seconds)
    command = ("qemu-img", "bench", "-f", "raw", "-t", "none", "-c", count, "-d", 16, "-s", 4096, *options, server.uri)
    found = re.search(r"Run completed in ([\d.]+) seconds", run(*command))
    if found is None:
        raise BenchmarkError("qemu-img bench tells no time")
    return count / float(found[1]) / 1000


def fio(how: str, size: str, server: Server, images: Images, seconds: float) -> float:
    printed = run(
        "fio", "--name=nbd", "--ioengine=nbd", f"--uri={server.uri}", f"--rw={how}", f"--bs={size}", "--iodepth=16",
        f"--size={images.size}", "--time_based", f"--runtime={round(1000 * seconds)}ms", "--output-format=json",
    )  # fmt: skip
    told = json.loads(printed[printed.index("{") :])["jobs"][0]["read" if "read" in how else "write"]
    return float(told["iops"] / 1000 if size == "4k" else told["bw_bytes"] / MiB)


def shell(script: str, server: Server) -> float:
    """Run Python with libnbd's handle `h`, and return the seconds that the script took, connecting apart."""
    program = f"""
import time
h.add_meta_context("base:allocation")
h.connect_uri({server.uri!r})
size = h.get_size()
start = time.perf_counter()
{script}
print("seconds", time.perf_counter() - start)
"""
    return float(run("/usr/bin/python3", "-m", "nbd", "-c", program).split()[-1])


def zero(server: Server, images: Images, _: float) -> float:
    return images.size / MiB / shell("h.zero(size, 0)\nh.flush()", server) / 1024


def map_at_once(server: Server, _: Images, __: float) -> float:
    script = """
found = []
def extent(context, offset, entries, error):
    found.extend(entries[::2])
while sum(found) < size:
    h.block_status(size - sum(found), sum(found), extent)
"""
    return EXTENTS * 2 / shell(script, server) / 1000


def map_one_by_one(server: Server, _: Images, __: float) -> float:
    return EXTENTS * 2 / timed("qemu-img", "map", "-f", "raw", "--output=json", server.uri) / 1000


def all_cases() -> Iterator[Case]:
    for connections in (1, 4):
        for how, function in (("out", copy_out), ("in", copy_in)):
            work = functools.partial(function, connections)
            yield Case(f"nbdcopy {how}, {connections} connections", "MiB/s", work, target=1.0)
    for how, options in (("read", ()), ("write", ("-w",))):
        yield Case(f"qemu-img bench {how} 4 KiB", "1000/s", functools.partial(qemu_bench, options))
    for how in ("randread", "randwrite"):
        work = functools.partial(fio, how, "4k")
        yield Case(f"fio {how} 4 KiB", "1000/s", work, target=0.4, against=("qemu-nbd",))
    for size in ("256k", "1m"):
        for how in ("read", "write"):
            yield Case(f"fio {how} {size}", "MiB/s", functools.partial(fio, how, size))
    yield Case("zero the image", "GiB/s", zero, image="zeroed", target=1.0)
    yield Case(f"map {EXTENTS * 2} extents at once", "1000/s", map_at_once, image="fragmented", target=1.0)
    yield Case(f"map {EXTENTS * 2} extents one by one", "1000/s", map_one_by_one, image="fragmented", target=1.0)


# Rounds


def measure(case: Case, storage: str, images: Images, rounds: int, seconds: float, parent: Path) -> Result:
    result = Result(case, storage)
    path: Path = getattr(images, case.image)
    with ExitStack() as stack:
        servers = [stack.enter_context(served(name, path, parent)) for name in NAMES]
        if case.image != "zeroed":
            for server in servers:  # a first round warms up what is not measured
                case.run(server, images, seconds / 4)
        for number in range(rounds):
            for server in turned(servers, number):
                if case.image == "zeroed":
                    refill(path, images.size)
                with path.open("r+b") as file:
                    drop_cache(file.fileno())
                before = server.cpu
                rate = case.run(server, images, seconds)
                result.rates[server.name].append(rate)
                result.cpu[server.name].append(server.cpu - before)
    return result


def refill(path: Path, size: int) -> None:
    """Allocate the image anew: what is to be zeroed was zeroed in the last turn."""
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, size)
        os.pwrite(file.fileno(), b"x" * MiB, size // 2)
        os.fsync(file.fileno())


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    def figure(value: float) -> str:
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}"

    return [
        (
            result.case.name,
            result.storage,
            *(figure(result.rate(name)) for name in NAMES),
            result.case.unit,
            f"{result.ratio:.2f}",
            " / ".join(f"{1000 * statistics.median(result.cpu[name]):.0f}" for name in NAMES),
            f"≥ {result.case.target} x {result.case.against[0] if len(result.case.against) == 1 else 'the best'}"
            if result.case.target
            else "",
            result.verdict,
        )
        for result in results
    ]


def document(description: dict[str, str], how: str, results: Sequence[Result]) -> str:
    """Return all that a run has to say, as Markdown."""
    header = ("work", "on", *NAMES, "unit", "ratio", "server CPU ms", "to reach", "")
    return "\n\n".join((table(("machine", ""), list(description.items())), how, table(header, rows(results))))


# The command


def main() -> int:
    """Run what the command line asks for, and return the exit status: 1 if it could not be measured."""
    return run_program(_parser(), _run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench-nbd", description="Measure NBD beside qemu-nbd and nbdkit.")
    parser.add_argument("--quick", action="store_true", help="only what is to be reached, in at most 2 minutes")
    parser.add_argument("--only", default="", metavar="REGEX", help='cases whose "name on storage" matches')
    parser.add_argument("--rounds", type=int, help="rounds of each server (default: 7; 3 if quick)")
    add_places(parser)
    return parser


def _run(options: argparse.Namespace) -> None:
    for program in ("qemu-nbd", "qemu-img", "nbdkit", "nbdcopy", "nbdsh", "fio"):
        if shutil.which(program) is None:
            raise BenchmarkError(f"{program} is not installed")
    rounds, seconds = options.rounds or (3 if options.quick else 7), 0.4 if options.quick else 1.0
    size = (256 if options.quick else 512) * MiB
    started, warning = time.monotonic(), machine.busy()
    results = []
    with ExitStack() as stack:
        directory, memory = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nbd-bench-", dir=where)))
            for where in (options.directory, "/dev/shm")
        )
        source = memory / "source"
        with source.open("wb") as file:
            for _ in range(size // MiB):
                file.write(os.urandom(MiB))
        description = machine.describe(directory) | versions()
        for storage, where in (("disk", directory), ("tmpfs", memory)):
            images = Images.make(where, source, size)
            for case in all_cases():
                if not re.search(options.only, f"{case.name} on {storage}") or (options.quick and not case.target):
                    continue
                results.append(measure(case, storage, images, rounds, seconds, directory))
                print(" | ".join(rows(results[-1:])[0]), file=sys.stderr)
    how = f"{rounds} rounds, in turns; medians. Images of {size // MiB} MiB. {time.monotonic() - started:.0f} s in all."
    text = document(description, report.with_warning(how, warning), results)
    report.publish(text, options, "nbd")


def versions() -> dict[str, str]:
    return {name: run(name, "--version").splitlines()[0] for name in ("qemu-nbd", "nbdkit", "nbdcopy", "fio")}


if __name__ == "__main__":
    sys.exit(main())
