# SPDX-License-Identifier: Apache-2.0
"""What benchmarks.seeds measures: five experiments, each of which has rows."""

import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.cases import GiB, KiB, MiB, connections_text
from benchmarks.copies import Job, imageio_client, ovirt_client
from benchmarks.nbdcases import Server, fio_told, timed
from benchmarks.seedservers import OURS, QEMU, ZEROING, Zeroing, new_qcow2, passed_on, served
from benchmarks.servers import Server as Daemon

#: A rate, and the microseconds of the server's processor time for each request; None: there are none to count.
Figure = tuple[float, float | None]


@dataclass(frozen=True)
class Bench:
    """What experiments work with. theirs: ovirt-imageio, if it is here. scale: 1; less for a quick look."""

    disk: Path
    memory: Path
    cafile: Path
    daemon: Daemon
    theirs: Daemon | None
    scale: float

    def scaled(self, size: int) -> int:
        """Return fewer bytes, whole MiB."""
        return max(round(size * self.scale) // MiB, 16) * MiB


@dataclass(frozen=True)
class Row:
    """A line of a table. ways: who is measured. The first one is divided by the best of the others."""

    work: str
    unit: str
    ways: Mapping[str, Callable[[], Figure]]
    target: float = 0.0


def half_sparse(path: Path, size: int) -> Path:
    """Make a file in which each second MiB has data."""
    with path.open("wb") as file:
        file.truncate(size)
        for at in range(0, size, 2 * MiB):
            os.pwrite(file.fileno(), random.randbytes(MiB), at)
    return path


# 0: into servers that zero fast, slowly, or not at all


def zeroing(bench: Bench) -> Iterator[Row]:
    """qemu-img convert -n of a half-sparse image, straight to nbdkit, and through tickets for it."""
    size = bench.scaled(GiB)
    source = half_sparse(bench.memory / "half", size)
    for kind in ZEROING:
        ways = {name: partial(convert, bench, source, kind, hops) for name, hops in ((OURS, 1), ("nbdkit", 0))}
        yield Row(f"zeroing: {kind.name}", "MiB/s", ways, target=0.8)
        ways = {name: partial(convert, bench, source, kind, hops) for name, hops in (("3 tickets", 3), ("nbdkit", 0))}
        yield Row(f"a chain of 3 tickets, zeroing: {kind.name}", "MiB/s", ways)


def convert(bench: Bench, source: Path, kind: Zeroing, hops: int) -> Figure:
    """Copy to a new server, through so many tickets of our daemon, one for the other."""
    size = source.stat().st_size
    with kind.serve(size) as server, ExitStack() as stack:
        uri = server.uri
        for _ in range(hops):
            uri = stack.enter_context(passed_on(bench.daemon, uri, size))
        return size / MiB / timed("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, uri), None


# 1: copies from qcow2 to qcow2, in memory


def copies(bench: Bench) -> Iterator[Row]:
    """nbdcopy between two images, of which the server has both."""
    size = bench.scaled(2 * GiB)
    half_sparse(bench.memory / "half", size)
    source = bench.memory / "source.qcow2"
    subprocess.check_call(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", bench.memory / "half", source])
    (bench.memory / "half").unlink()
    for connections in (1, 4):
        for request in (128 * KiB, 2 * MiB):
            options = (f"--connections={connections}", f"--request-size={request}")
            ways = {name: partial(copy, bench, source, size, name, options) for name in (OURS, *QEMU)}
            yield Row(f"nbdcopy, {connections_text(connections)}, {request // KiB} KiB", "MiB/s", ways, target=1.2)


def copy(bench: Bench, source: Path, size: int, name: str, options: tuple[str, ...]) -> Figure:
    """Copy an image into a new one."""
    target = new_qcow2(bench.memory / "target.qcow2", size)
    with served(name, bench.daemon, source, size) as first, served(name, bench.daemon, target, size) as second:
        return size / MiB / timed("nbdcopy", "--flush", *options, first.uri, second.uri), None


# 2 and 4: small requests


def first_writes(bench: Bench) -> Iterator[Row]:
    """4 KiB at random into an empty image, none of them twice."""
    for cluster, target in ((64 * KiB, 2.0), (MiB, 4.0)):
        ways = {name: partial(into_empty, bench, name, cluster, "4k") for name in (OURS, *QEMU)}
        yield Row(f"first writes of 4 KiB, clusters of {cluster // KiB} KiB", "1000/s", ways, target)


def small_requests(bench: Bench) -> Iterator[Row]:
    """4 KiB and 512 KiB over an empty image, one whose tables are there, and one full of data."""
    ways = {name: partial(into_empty, bench, name, 64 * KiB, "512k") for name in (OURS, *QEMU)}
    yield Row("first writes of 512 KiB", "1000/s", ways)
    ways = {name: partial(into_empty, bench, name, 64 * KiB, "4k", "preallocation=metadata") for name in (OURS, *QEMU)}
    yield Row("writes of 4 KiB, tables are there", "1000/s", ways)
    size = bench.scaled(GiB)
    full = new_qcow2(bench.disk / "full.qcow2", size)
    with served(QEMU[0], bench.daemon, full, size) as server:
        fio_told("write", "1m", server.uri, f"--size={size}")
    for how, target in (("randread", 1.3), ("randwrite", 2.0), ("randrw", 1.6)):
        ways = {name: partial(over_full, bench, full, name, how, "4k") for name in (OURS, *QEMU)}
        yield Row(f"{how} of 4 KiB over data", "1000/s", ways, target)
    for how in ("randread", "randwrite"):
        ways = {name: partial(over_full, bench, full, name, how, "512k") for name in (OURS, *QEMU)}
        yield Row(f"{how} of 512 KiB over data", "1000/s", ways, target=1.2)


def into_empty(bench: Bench, name: str, cluster: int, request: str, *options: str) -> Figure:
    """Write a part of a new image at random."""
    size = bench.scaled(GiB)
    part = bench.scaled(64 * MiB if request == "4k" else GiB)
    image = new_qcow2(bench.disk / "image.qcow2", size, f"cluster_size={cluster}", *options)
    with served(name, bench.daemon, image, size) as server:
        return requests(server, "randwrite", request, f"--size={size}", f"--io_size={part}")


def over_full(bench: Bench, image: Path, name: str, how: str, request: str) -> Figure:
    """Work for a time on an image that has data everywhere."""
    size, seconds = bench.scaled(GiB), max(1.0, 4 * bench.scale)
    with served(name, bench.daemon, image, size) as server:
        return requests(server, how, request, f"--size={size}", "--time_based", f"--runtime={round(1000 * seconds)}ms")


def requests(server: Server, how: str, request: str, *options: str) -> Figure:
    """Run fio; return thousands a second."""
    before = server.cpu
    told = fio_told(how, request, server.uri, *options)
    return told["iops"] / 1000, 1e6 * (server.cpu - before) / told["total_ios"]


# 3: imports

#: As in a disk that virt-v2v has read: so many pieces of data, a third of the disk.
PIECES, IMPORTS = 1059, 10


def imports(bench: Bench) -> Iterator[Row]:
    """Disks of many pieces, each sent by a program of its own, all at once; and one beside local copies."""
    size = bench.scaled(2 * GiB)
    source, rng = bench.disk / "pieces", random.Random(1)
    with source.open("wb") as file:
        file.truncate(size)
        length = size // 3 // PIECES & ~4095
        for at in sorted(rng.sample(range(size // (2 * length)), PIECES)):
            os.pwrite(file.fileno(), rng.randbytes(length), at * 2 * length)
    ours = {OURS: partial(send, bench, source, bench.daemon, IMPORTS)}
    theirs = {} if bench.theirs is None else {"ovirt-imageio": partial(send, bench, source, bench.theirs, IMPORTS)}
    yield Row(f"{IMPORTS} imports at once", "MiB/s", ours | theirs, target=2.0)
    target = bench.disk / "copy"
    dd = ("dd", f"if={source}", f"of={target}", "bs=8M", "conv=sparse,fsync", "status=none")
    qemu = ("qemu-img", "convert", "-f", "raw", "-O", "raw", "-W", "-t", "none", source, target)
    local = {name: partial(locally, source, target, command) for name, command in (("dd", dd), ("qemu-img", qemu))}
    yield Row("one import", "MiB/s", {OURS: partial(send, bench, source, bench.daemon, 1)} | local)


def locally(source: Path, target: Path, command: tuple[object, ...]) -> Figure:
    """Copy a file without a server."""
    target.unlink(missing_ok=True)
    return source.stat().st_size / MiB / timed(*command), None


def send(bench: Bench, source: Path, server: Daemon, count: int) -> Figure:
    """Send a disk to so many images at once, each by the client of the server's own product."""
    command = imageio_client() if server is bench.daemon else ovirt_client
    size, jobs = source.stat().st_size, []
    for number in range(count):
        target = bench.disk / f"target-{number}"
        with target.open("wb") as file:
            file.truncate(size)
        ticket = server.add_ticket(target, size, sparse=True)
        jobs.append(Job("up, sparse", source, target, size, bench.cafile, server, ticket))
    start = time.perf_counter()
    programs = [subprocess.Popen(command(job)) for job in jobs]
    failed = [program.wait() for program in programs]
    seconds = time.perf_counter() - start
    for job in jobs:
        server.remove_ticket(job.ticket)
        job.target.unlink()
    return (0.0 if any(failed) else count * size / MiB / seconds), None


@dataclass(frozen=True)
class Experiment:
    """A table. reported: what its author has told, on another machine, as ratios."""

    title: str
    reported: str
    rows: Callable[[Bench], Iterator[Row]]


EXPERIMENTS = (
    Experiment(
        "0. Half-sparse images, into servers that zero fast, slowly, or not at all",
        "with fast zero in 0.50 of the time of writing zeros if the server is fast, in 0.98 if it is slow, where "
        "zeroing blindly took 1.46",
        zeroing,
    ),
    Experiment(
        "1. Copies from qcow2 to qcow2 in memory",
        "nbdcopy through qemu-nbd 1.7 times as fast as qemu-img, with 4 connections 1.25 times as with one",
        copies,
    ),
    Experiment(
        "2. First writes into empty images",
        "without copies of what is empty 1 to 11 times as fast with clusters of 64 KiB, 2.5 to 157 with 1 MiB",
        first_writes,
    ),
    Experiment(
        "3. Imports of disks with many pieces",
        "an upload in 0.29 of the time of dd, in 0.24 of that of qemu-img",
        imports,
    ),
    Experiment(
        "4. 4 KiB and 512 KiB, over empty images and full ones",
        "a server with a transport of the kernel 1.9 to 5.0 times as fast as qemu-nbd over empty images, 3.6 to 4.6 "
        "over full ones, 2.0 with 512 KiB",
        small_requests,
    ),
)
