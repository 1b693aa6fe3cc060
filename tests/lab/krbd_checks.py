# SPDX-License-Identifier: Apache-2.0
"""Images on Ceph as devices of the kernel's own client; for the checks in the virtual machine, beside a cluster."""

import contextlib
import json
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ioutil_ext import lib
from tests.ioutil.disk import fill, first_difference, on_disk
from tests.ioutil.engine_driver import Image
from tests.ioutil.model import Model, random_operation
from tests.support.polling import eventually

from .guest_zeroing import ALLOCATE, DEALLOCATE, END, LENGTH, START, WAYS, zero
from .kernel_storage import MiB, new_name, run
from .lost_storage import running_beside
from .small_daemon import Daemon

#: What tests/lab/krbd has put there.
RESULTS = Path("/results")
USER = ("--id", "imageio")
OBJECT = 4 * MiB
#: Of images.
SIZE = 8 * OBJECT
#: Seconds that requests wait for an OSD, if they are not to wait for ever.
PATIENCE = 5


@pytest.fixture(scope="module", autouse=True)
def connected() -> None:
    """Connect this host to the network of the cluster, and give it what docs/storage.md says."""
    run("modprobe", "virtio_net")
    run("modprobe", "rbd")
    run("ip", "address", "add", "10.0.2.15/24", "dev", "eth0")
    network(up=True)
    Path("/etc/ceph").mkdir(exist_ok=True)
    for name in ("ceph.conf", "ceph.client.imageio.keyring"):
        shutil.copy(RESULTS / name, "/etc/ceph")


def network(*, up: bool) -> None:
    """Connect this host, or let it lose its network."""
    run("ip", "link", "set", "eth0", "up" if up else "down")
    if up:
        run("ip", "route", "add", "default", "via", "10.0.2.2")


def rbd(*words: object) -> str:
    return run("rbd", *USER, *words)


class Mapped:
    """An image that is a device."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path

    @property
    def used(self) -> int:
        """Return how many bytes its objects have, as `rbd du` tells: whole objects."""
        (told,) = json.loads(rbd("du", self.name, "--format", "json"))["images"]
        return int(told["used_size"])

    def exported(self) -> bytes:
        """Return what the cluster has."""
        command = ["rbd", *USER, "export", "--no-progress", self.name, "-"]
        return subprocess.run(command, check=True, capture_output=True, timeout=120).stdout


@contextlib.contextmanager
def mapped(*options: str) -> Iterator[Mapped]:
    """Make an image and map it, with options of the kernel's client."""
    name = f"images/{new_name()}"
    rbd("create", name, "--size", f"{SIZE}B")
    path = Path(rbd("map", name, "--options", ",".join(("noudev", *options))))
    try:
        eventually(path.exists, "its node is there")
        yield Mapped(name, path)
    finally:
        run("rbd", "unmap", "--options", "noudev", path)
        rbd("rm", "--no-progress", name)


@pytest.fixture(scope="module")
def disk() -> Iterator[Mapped]:
    with mapped() as disk:
        yield disk


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_beside() as daemon:
        yield daemon


def test_methods_are_those_of_the_table(disk: Mapped) -> None:
    told = []
    for flags in WAYS.values():
        content = fill(disk.path, LENGTH, seed=1)
        method = zero(disk.path, MiB // 2, 3 * MiB // 2, flags)
        if method != "-":
            content[MiB // 2 : 3 * MiB // 2] = bytes(MiB)
        assert not first_difference(on_disk(disk.path)[:LENGTH], content), method
        told.append(method)
    print(f"METHODS | krbd | {' | '.join(told)} |")
    assert " ".join(told) == "punch zero punch -"


def test_extents_tell_of_no_holes(disk: Mapped) -> None:
    with Image(disk.path) as image:
        image.zero(0, SIZE)
        assert not [extent for extent in image.extents(0, SIZE) if extent.hole]


@pytest.mark.parametrize("way", WAYS)
def test_unaligned_range_reads_as_zeros_and_its_neighbours_stay(disk: Mapped, way: str) -> None:
    content = fill(disk.path, LENGTH, seed=2)
    if zero(disk.path, START, END, WAYS[way]) != "-":
        content[START:END] = bytes(END - START)
    assert not first_difference(on_disk(disk.path)[:LENGTH], content)


@pytest.mark.parametrize("seed", range(3))
def test_anything_done_is_what_the_model_says(disk: Mapped, seed: int) -> None:
    chance = random.Random(seed)
    content = fill(disk.path, MiB, seed)
    with Image(disk.path) as image:
        model = Model(image, 0, content)
        for _ in range(60):
            random_operation(chance, model)
        image.flush()
    assert not first_difference(disk.exported()[:MiB], model.content)


#: How many objects it frees: of two, and of a range in the middle of one.
FREED: dict[str, tuple[Callable[[Image, int, int], object], str]] = {
    "zero": (lambda image, start, length: image.zero(start, length, DEALLOCATE), "2 0"),
    "zero, allocate": (lambda image, start, length: image.zero(start, length, ALLOCATE), "2 0"),
    "trim": (lambda image, start, length: image.trim(start, length), "2 0"),
}


@pytest.mark.parametrize("what", FREED)
def test_objects_are_freed_as_the_table_says(disk: Mapped, what: str) -> None:
    free, expected = FREED[what]
    freed = []
    with Image(disk.path) as image:
        for start, length in ((OBJECT, 2 * OBJECT), (OBJECT + MiB, 2 * MiB)):
            image.write(0, b"x" * 4 * OBJECT)
            image.flush()
            before = disk.used
            free(image, start, length)
            image.flush()
            freed.append(str((before - disk.used) // OBJECT))
    print(f"FREED | krbd | {what} | {' | '.join(freed)} |")
    assert " ".join(freed) == expected


# Through the daemon


def client(command: str, *words: object) -> None:
    run("/opt/env/bin/imageio-client", command, "--insecure", *words)  # the daemon has no TLS


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "allocated"])
def test_uploaded_image_is_in_the_cluster_and_comes_back(daemon: Daemon, tmp_path: Path, sparse: bool) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    content = bytearray(SIZE)
    content[5 * MiB : 7 * MiB] = random.Random(3).randbytes(2 * MiB)
    source.write_bytes(content)
    with mapped() as disk:
        daemon.add_ticket("krbd", disk.path, SIZE, ops=["read", "write"], sparse=sparse)
        client("upload", "--verify", source, daemon.url("krbd"))
        client("download", daemon.url("krbd"), back)
        daemon.remove_ticket("krbd")
        assert not first_difference(disk.exported(), content)
        assert not first_difference(back.read_bytes(), content)
        assert disk.used == OBJECT


def test_upload_waits_for_the_network(daemon: Daemon) -> None:
    with mapped() as disk, ThreadPoolExecutor(1) as pool:
        daemon.add_ticket("krbd", disk.path, SIZE)
        daemon.upload("krbd", 0, b"x" * 4096, flush=True)
        network(up=False)
        upload = pool.submit(daemon.upload, "krbd", 0, b"y" * MiB, flush=True)
        eventually(lambda: daemon.status("krbd")["storage_wait"] > 0, "it waits", timeout=60)
        daemon.upload("other", 0, b"o" * 4096, flush=True)
        assert not upload.done()
        network(up=True)
        upload.result()
        daemon.remove_ticket("krbd")
        assert disk.exported()[:MiB] == b"y" * MiB


def test_upload_is_answered_500_after_the_time_out_of_the_map_options(daemon: Daemon) -> None:
    with mapped(f"osd_request_timeout={PATIENCE}") as disk:
        daemon.add_ticket("krbd", disk.path, SIZE)
        daemon.upload("krbd", 0, b"x" * 4096, flush=True)
        network(up=False)
        daemon.upload("krbd", 0, b"y" * 4096, flush=True, status=500)
        daemon.upload("other", 0, b"o" * 4096, flush=True)
        daemon.remove_ticket("krbd")
        network(up=True)
        with Image(disk.path) as image:
            eventually(lambda: image.attempt(lib.IOU_ZERO, 0, 4096).error == 0, "the cluster is back", timeout=60)
            image.flush()
        daemon.add_ticket("krbd", disk.path, SIZE)
        daemon.upload("krbd", 4096, b"z" * 4096, flush=True)
        daemon.remove_ticket("krbd")
        assert disk.exported()[4096:8192] == b"z" * 4096
