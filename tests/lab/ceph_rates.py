# SPDX-License-Identifier: Apache-2.0
"""Uploads to Ceph beside `qemu-img convert` and `rbd import`, in turn, each to a new image: medians of some rounds.

    tests/lab/ceph -s tests/lab/ceph_rates.py

The cluster is the same, with one OSD in memory (3 GiB), so these are no rates of Ceph; their ratios count.
"""

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from .ceph_cluster import POOL, USER, Cluster, connect_hosts
from .small_daemon import Daemon, running_daemon

MiB = 1 << 20
GiB = 1 << 30
ROUNDS = 3
#: What an upload of the sparse image has to reach, as a multiple of the rate of `rbd import`.
LEAST = 2.0
#: Size, and bytes of data, in pieces of 1 MiB all over it.
IMAGES = {"dense": (512 * MiB, 512 * MiB), "sparse": (16 * GiB, 64 * MiB)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    connect_hosts()
    made = Cluster(Path("/tmp/cluster"))  # in memory
    yield made
    made.stop()


@pytest.fixture(scope="module")
def daemon(cluster: Cluster) -> Iterator[Daemon]:
    more = f"[backend_rbd]\nconf = {cluster.conf}\nuser = {USER}\nallowed_pools = {POOL}\n"
    with running_daemon(more=more) as daemon:
        yield daemon


def make_source(path: Path, size: int, data: int) -> None:
    with path.open("wb") as file:
        for n in range(data // MiB):
            file.seek(n * (size // (data // MiB)))
            file.write(random.Random(n).randbytes(MiB))
        file.truncate(size)


def run(command: Sequence[object]) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True)


@pytest.mark.parametrize("kind", IMAGES)
def test_uploads_are_as_fast_as_other_programs(cluster: Cluster, daemon: Daemon, tmp_path: Path, kind: str) -> None:
    size, data = IMAGES[kind]
    source = tmp_path / "source"
    make_source(source, size, data)
    target = f"driver=rbd,pool={POOL},image=new,conf={cluster.conf},user={USER}"
    upload: list[object] = [sys.executable, "-m", "imageio_daemon.client.cli", "upload", "--quiet", "--no-state"]
    upload += [f"--unix-socket={daemon.local}", source, daemon.url("new")]
    convert = ["qemu-img", "convert", "-n", "-f", "raw", "--target-image-opts", source, target]
    ways: dict[str, Callable[[], None]] = {
        "imageio-client upload": lambda: run(upload),
        "qemu-img convert": lambda: run(convert),
        "qemu-img convert -W": lambda: run([*convert[:2], "-W", *convert[2:]]),
        "rbd import": lambda: run(
            ["rbd", "import", f"--conf={cluster.conf}", f"--id={USER}", "--no-progress", source, f"{POOL}/new"]
        ),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for round_number in range(ROUNDS):
        order = list(ways)
        for name in order[round_number % len(order) :] + order[: round_number % len(order)]:
            if name != "rbd import":
                cluster.rbd("create", f"{POOL}/new", "--size", f"{size}B")
            if name == "imageio-client upload":
                daemon.add_ticket("new", f"rbd:{POOL}/new", size)
            began = time.monotonic()
            ways[name]()
            took[name].append(time.monotonic() - began)
            if name == "imageio-client upload":
                daemon.remove_ticket("new")
            cluster.rbd("rm", f"{POOL}/new")
    medians = {name: statistics.median(times) for name, times in took.items()}
    print(f"\n{kind}: {size // MiB} MiB with {data // MiB} MiB of data. Median of {ROUNDS}: s, MiB/s of data (all s)")
    for name, times in took.items():
        every = " ".join(f"{seconds:.2f}" for seconds in times)
        print(f"  {name:22} {medians[name]:5.2f} {data / MiB / medians[name]:6.0f}   ({every})")
    if kind == "sparse":
        ratio = medians["rbd import"] / medians["imageio-client upload"]
        assert ratio >= LEAST, f"{ratio:.2f} times the rate of rbd import"
