# SPDX-License-Identifier: Apache-2.0
"""What is measured of NBD: clients, the images that they work on, and what they shall reach."""

import functools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.cases import KiB, MiB, connections_text
from benchmarks.errors import BenchmarkError
from benchmarks.measure import processor_seconds

NAMES = ("imageio-daemon", "qemu-nbd", "nbdkit")
#: Every client command ends in this time, in seconds, or something hangs.
TIMEOUT = 60.0
EXTENTS = 8192
#: Rounds of what takes milliseconds, in place of one: it differs more from one to the next.
OF_SHORT = 3


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
    """What is served: an image full of data, one with many extents, one to be zeroed; and what is copied in."""

    full: Path
    fragmented: Path
    allocated: Path
    source: Path
    size: int

    @classmethod
    def make(cls, directory: Path, source: Path, size: int) -> "Images":
        full, fragmented, allocated = (directory / name for name in ("full", "fragmented", "allocated"))
        shutil.copy(source, full)
        with fragmented.open("wb") as file:
            file.truncate(EXTENTS * 8 * KiB)
            for place in range(0, EXTENTS * 8 * KiB, 8 * KiB):
                os.pwrite(file.fileno(), b"data" * KiB, place)
            os.fsync(file.fileno())
        allocated.touch()
        os.truncate(allocated, size)
        return cls(full, fragmented, allocated, source, size)


@dataclass(frozen=True)
class Case:
    """One thing to do: `run` does it through a server and returns how much of the unit a second."""

    name: str
    unit: str
    run: Callable[[Server, Images, float], float]
    image: str = "full"  # of Images; the allocated one is filled before each round, without a warm-up
    target: float = 0.0
    against: tuple[str, ...] = NAMES[1:]
    often: int = 1
    secure: bool = False


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


def copy_out_extents(connections: int, server: Server, _: Images, __: float) -> float:
    return EXTENTS / timed("nbdcopy", f"--connections={connections}", server.uri, "null:") / 1000


def qemu_bench(options: tuple[str, ...], server: Server, _: Images, seconds: float) -> float:
    count = round(8000 * seconds)
    command = ("qemu-img", "bench", "-f", "raw", "-t", "none", "-c", count, "-d", 16, "-s", 4096, *options, server.uri)
    found = re.search(r"Run completed in ([\d.]+) seconds", run(*command))
    if found is None:
        raise BenchmarkError("qemu-img bench tells no time")
    return count / float(found[1]) / 1000


def fio(how: str, size: str, server: Server, images: Images, seconds: float, *options: str) -> float:
    runtime = f"--runtime={round(1000 * seconds)}ms"
    told = fio_told(how, size, server.uri, f"--size={images.size}", "--time_based", runtime, *options)
    return told["iops"] / 1000 if size == "4k" else told["bw_bytes"] / MiB


def fio_told(how: str, size: str, uri: str, *options: str) -> dict[str, float]:
    """Run fio, 16 requests at a time, and return what it tells of them."""
    printed = run(
        "fio", "--name=nbd", "--ioengine=nbd", f"--uri={uri}", f"--rw={how}", f"--bs={size}", "--iodepth=16",
        "--output-format=json", *options,
    )  # fmt: skip
    told = json.loads(printed[printed.index("{") :])["jobs"][0]
    return {key: told["read"][key] + told["write"][key] for key in ("iops", "bw_bytes", "total_ios")}


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
    yield from copies()
    for how, options in (("read", ()), ("write", ("-w",))):
        yield Case(f"qemu-img bench {how} 4 KiB", "1000/s", functools.partial(qemu_bench, options))
    for how in ("randread", "randwrite"):
        work = functools.partial(fio, how, "4k")
        yield Case(f"fio {how} 4 KiB", "1000/s", work, target=0.4, against=("qemu-nbd",))
    for size in ("256k", "1m"):
        for how in ("read", "write"):
            yield Case(f"fio {how} {size}", "MiB/s", functools.partial(fio, how, size))
    yield Case("zero the image", "GiB/s", zero, image="allocated", target=1.0, often=OF_SHORT)
    yield Case(f"map {EXTENTS * 2} extents at once", "1000/s", map_at_once, image="fragmented", target=1.0)
    yield Case(f"map {EXTENTS * 2} extents one by one", "1000/s", map_one_by_one, image="fragmented", target=1.0)
    for case in copies():
        yield replace(case, name=f"{case.name}, TLS", target=0.0, secure=True)
    work = functools.partial(copy_out_extents, 1)
    yield Case(f"nbdcopy out, {EXTENTS} extents, TLS", "1000/s", work, image="fragmented", secure=True)


def copies() -> Iterator[Case]:
    for connections in (1, 4):
        for how, function in (("out", copy_out), ("in", copy_in)):
            work = functools.partial(function, connections)
            yield Case(f"nbdcopy {how}, {connections_text(connections)}", "MiB/s", work, target=1.0, often=OF_SHORT)
