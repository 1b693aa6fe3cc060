# SPDX-License-Identifier: Apache-2.0
"""Uploads to Ceph beside `qemu-img convert` and `rbd import`, in turn, each to a new image: medians of some rounds.

    tests/lab/ceph -s tests/lab/ceph_rates.py

The cluster is one OSD in memory, on the host of the programs, which share its processors, or behind a link with a rate.
So these are no rates of Ceph; their ratios count.
"""

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from .ceph_cluster import POOL, USER, Cluster, connect_hosts, run
from .small_daemon import PORT, Daemon, running_daemon

MiB = 1 << 20
GiB = 1 << 30
ROUNDS = 5
#: What an upload has to reach, as a multiple of the rate of `qemu-img convert`, and with zeros of that of `rbd import`.
LEAST = 0.9
LEAST_WITH_ZEROS = 2.0
#: Size, and bytes of data, in pieces of 1 MiB all over it. The small one takes little longer than the start of two
#: programs in place of one: it is shown, and compared with `rbd import` only.
IMAGES = {"dense": (GiB, GiB), "sparse": (64 * GiB, 256 * MiB), "small": (16 * GiB, 64 * MiB)}
#: Hosts, by the rate of their link to the cluster, as tc-tbf(8) has it. The first has none, and is the cluster's.
HOSTS = {"here": "", "behind 1 Gbit/s": "1gbit", "behind 10 Gbit/s": "10gbit"}
#: The allocator with which Ceph's own packages are built; those of Debian are not. Without it the OSD gives the memory
#: of each write of 2 MiB back to the kernel, if it has more than one at a time: 40 % more processor time for 1 GiB.
ALLOCATOR = "libtcmalloc_minimal.so.4"

Host = tuple[Daemon, Sequence[str]]


def names() -> dict[str, str]:
    """Return the network namespace of each host that is not the cluster's."""
    return {host: f"host{number}" for number, host in enumerate(HOSTS) if HOSTS[host]}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    connect_hosts(*names().values())
    for host, name in names().items():
        # A veth hands over 64 KiB and more at once.
        shape = ("tbf", "rate", HOSTS[host], "burst", "1mb", "latency", "50ms")
        run("tc", "-netns", name, "qdisc", "add", "dev", "eth0", "root", *shape)
        run("tc", "qdisc", "add", "dev", name, "root", *shape)
    made = Cluster(Path("/tmp/cluster"), osd_environment={"LD_PRELOAD": ALLOCATOR})  # in memory
    run("fallocate", "--length", 8 * GiB, made.osd_data)  # the first use of memory takes time, and not always the same
    yield made
    made.stop()


@pytest.fixture(scope="module", params=HOSTS)
def host(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Host]:
    """The daemon of a host, and the words before a command that runs there."""
    more = f"[backend_rbd]\nconf = {cluster.conf}\nuser = {USER}\nallowed_pools = {POOL}\n"
    there = ("ip", "netns", "exec", names()[request.param]) if HOSTS[request.param] else ()
    with running_daemon(PORT, more=more, command=there) as daemon:
        yield daemon, there


@pytest.fixture
def source(tmp_path: Path, kind: str) -> Iterator[Path]:
    """The image to upload, which is in memory, as the images of the cluster are."""
    size, data = IMAGES[kind]
    path = tmp_path / "source"
    with path.open("wb") as file:
        for n in range(data // MiB):
            file.seek(n * (size // (data // MiB)))
            file.write(random.Random(n).randbytes(MiB))
        file.truncate(size)
    yield path
    path.unlink()


@pytest.mark.parametrize("kind", IMAGES)
def test_uploads_are_as_fast_as_other_programs(
    cluster: Cluster, host: Host, source: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    size, data = IMAGES[kind]
    daemon, there = host
    if kind == "small" and there:
        pytest.skip("the start of the programs does not depend on the link")
    target = f"driver=rbd,pool={POOL},image=new,conf={cluster.conf},user={USER}"
    upload: list[object] = [
        *there,
        sys.executable,
        "-m",
        "imageio_daemon.client.cli",
        "upload",
        "--quiet",
        "--no-state",
    ]
    upload += [f"--unix-socket={daemon.local}", source, daemon.url("new")]
    convert = [*there, "qemu-img", "convert", "-n", "-f", "raw"]
    copied = ["--target-image-opts", source, target]
    ways: dict[str, Callable[[], object]] = {
        "imageio-client upload": lambda: run(*upload),
        "qemu-img convert": lambda: run(*convert, *copied),
        "qemu-img convert -W": lambda: run(*convert, "-W", *copied),
        "rbd import": lambda: run(
            *there, "rbd", "import", f"--conf={cluster.conf}", f"--id={USER}", "--no-progress", source, f"{POOL}/new"
        ),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for round_number in range(ROUNDS + 1):  # the first one, in which programs and memory are new, does not count
        order = list(ways)
        for name in order[round_number % len(order) :] + order[: round_number % len(order)]:
            seconds = upload_anew(cluster, daemon, size, ways, name)
            if round_number:
                took[name].append(seconds)
    medians = {name: statistics.median(times) for name, times in took.items()}
    where = request.node.callspec.params["host"]
    print(f"\n{kind} ({size // MiB} MiB with {data // MiB} MiB of data), {where}: s, MiB/s of data (all s)")
    for name, times in took.items():
        every = " ".join(f"{seconds:.2f}" for seconds in times)
        print(f"  {name:22} {medians[name]:5.2f} {data / MiB / medians[name]:6.0f}   ({every})")
    ours = medians["imageio-client upload"]
    ratio, other = medians["qemu-img convert"] / ours, medians["rbd import"] / ours
    print(f"  {ratio:.2f} times the rate of qemu-img convert, {other:.2f} times that of rbd import")
    assert data == size or other >= LEAST_WITH_ZEROS
    assert kind == "small" or ratio >= LEAST


def upload_anew(cluster: Cluster, daemon: Daemon, size: int, ways: dict[str, Callable[[], object]], name: str) -> float:
    """Return the seconds of an upload to a new image, which is removed afterwards."""
    if name != "rbd import":
        cluster.rbd("create", f"{POOL}/new", "--size", f"{size}B")
    if name == "imageio-client upload":
        daemon.add_ticket("new", f"rbd:{POOL}/new", size)
    began = time.monotonic()
    ways[name]()
    seconds = time.monotonic() - began
    if name == "imageio-client upload":
        daemon.remove_ticket("new")
    cluster.rbd("rm", f"{POOL}/new")
    return seconds
