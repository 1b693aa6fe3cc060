# SPDX-License-Identifier: Apache-2.0
"""Which method zeroes on which storage, and that it always reads as zeros."""

import contextlib
import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from ioutil_ext import lib
from tests.ioutil.disk import fill, first_difference, on_disk
from tests.ioutil.engine_driver import Image
from tests.ioutil.model import Model, random_operation

from .kernel_iscsi import UNMAP, ZEROES, iscsi
from .kernel_stacked import drbd_disk, drbd_pair, logical_volume, nvme_disk, thin_volume, zfs_volume
from .kernel_storage import (
    FILESYSTEM,
    MiB,
    loop_disk,
    mounted,
    nfs_mounted,
    nfs_server,
    null_disk,
    plain_file,
    rpcbind,
    run,
    scsi_disk,
)

LENGTH = 2 * MiB
#: An unaligned range inside of it.
START, END = 100_000, MiB + 500_001

DEALLOCATE, ALLOCATE = 0, lib.IOU_ALLOCATE
WAYS = {
    "deallocate": DEALLOCATE,
    "allocate": ALLOCATE,
    "fast": lib.IOU_FAST_ONLY,
    "fast allocate": lib.IOU_FAST_ONLY | ALLOCATE,
}

Make = Callable[[], AbstractContextManager[Path]]


def scsi(*parameters: str, zeroing_mode: str = "") -> Make:
    @contextlib.contextmanager
    def make() -> Iterator[Path]:
        with scsi_disk(*parameters, zeroing_mode=zeroing_mode) as disk:
            yield disk.path

    return make


def null(**attributes: object) -> Make:
    return lambda: null_disk(**attributes)


def new_file(directory: Path) -> Path:
    path = directory / "image"
    path.write_bytes(bytes(LENGTH))
    return path


def nfs_file(how: str) -> Make:
    @contextlib.contextmanager
    def make() -> Iterator[Path]:
        run("modprobe", "xfs")
        with loop_disk(FILESYSTEM) as device, mounted("xfs", device) as directory, nfs_server(directory):
            with nfs_mounted(how) as mount:
                yield new_file(mount)

    return make


def nfs_3_file() -> Make:
    @contextlib.contextmanager
    def make() -> Iterator[Path]:
        run("modprobe", "xfs")
        with loop_disk(FILESYSTEM) as device, mounted("xfs", device) as directory, rpcbind():
            with nfs_server(directory, "3"), nfs_mounted("nolock", version="3", exported=directory) as mount:
                yield new_file(mount)

    return make


def file_on(filesystem: str) -> Make:
    @contextlib.contextmanager
    def make() -> Iterator[Path]:
        with loop_disk(FILESYSTEM) as device, mounted(filesystem, device) as directory:
            yield new_file(directory)

    return make


def over(below: Make, stacked: Callable[[Path], AbstractContextManager[Path]]) -> Make:
    """Make a device of another one."""

    @contextlib.contextmanager
    def make() -> Iterator[Path]:
        with below() as device, stacked(device) as path:
            yield path

    return make


@contextlib.contextmanager
def thin() -> Iterator[Path]:
    with thin_volume() as volume:
        yield volume.path


NO_OFFLOAD = scsi("lbpu=0", "lbpws=0", "lbpws10=0", zeroing_mode="write")
WRITE_SAME = scsi("lbpu=0", "lbpws=1", "lbpws10=0")


@contextlib.contextmanager
def zvol() -> Iterator[Path]:
    with zfs_volume() as volume:
        yield volume.path


#: Storage, and the method of each way there; - is ENOTSUP, and nothing changed.
STORAGE: dict[str, tuple[Make, str]] = {
    "scsi, no offload": (NO_OFFLOAD, "zero zero - -"),
    "scsi, write same": (scsi("lbpu=0", "lbpws=0", "lbpws10=0"), "punch zero punch -"),
    "scsi, write same with unmap": (WRITE_SAME, "punch zero punch -"),
    "scsi, write same 10 with unmap": (scsi("lbpu=0", "lbpws=0", "lbpws10=1"), "punch zero punch -"),
    "scsi, unmap only": (scsi("lbpu=1", "lbpws=0", "lbpws10=0", zeroing_mode="write"), "zero zero - -"),
    "scsi, all, 4096": (scsi("lbpu=1", "lbpws=1", "lbpws10=1", "sector_size=4096"), "punch zero punch -"),
    "null_blk": (null(), "zero zero - -"),
    "null_blk, discard": (null(discard=1), "zero zero - -"),
    "null_blk, discard, 4096": (null(discard=1, blocksize=4096), "zero zero - -"),
    "xfs": (file_on("xfs"), "punch zero punch zero"),
    "ext4": (file_on("ext4"), "punch zero punch zero"),
    "nfs 4.2, hard": (nfs_file("hard"), "punch punch+allocate punch -"),
    "nfs 4.2, soft": (nfs_file("soft"), "punch punch+allocate punch -"),
    "nfs 3": (nfs_3_file(), "write write - -"),
    "iscsi, a file": (over(plain_file, iscsi()), "punch zero punch -"),
    "iscsi, no offload": (over(NO_OFFLOAD, iscsi()), "punch zero punch -"),
    "iscsi, write same with unmap, zeroes": (over(WRITE_SAME, iscsi(**UNMAP, **ZEROES)), "punch zero punch -"),
    "lvm, no offload": (over(NO_OFFLOAD, logical_volume), "zero zero - -"),
    "lvm, write same with unmap": (over(WRITE_SAME, logical_volume), "punch zero punch -"),
    "lvm-thin": (thin, "zero zero - -"),
    "nvme-of, no offload": (over(NO_OFFLOAD, nvme_disk), "punch zero punch -"),
    "nvme-of, write same with unmap": (over(WRITE_SAME, nvme_disk), "punch zero punch -"),
    "nvme-of, a file": (over(plain_file, nvme_disk), "punch zero punch -"),
    "zfs volume": (zvol, "zero zero - -"),
    "drbd, no offload": (over(NO_OFFLOAD, drbd_disk), "zero zero - -"),
    "drbd, write same with unmap": (over(WRITE_SAME, drbd_disk), "zero zero - -"),
    "drbd with a peer, no offload": (over(NO_OFFLOAD, drbd_pair), "punch zero punch -"),
    "drbd with a peer, write same with unmap": (over(WRITE_SAME, drbd_pair), "punch zero punch -"),
}

#: Where operations at any alignment bring down the kernel: Linux 6.12's null_blk takes memory that is aligned to 512
#: bytes, and with larger blocks copies past the end of its page then.
OVERFLOWS = {"null_blk, discard, 4096"}

#: Where extents tell of holes.
HAVE_HOLES = {"xfs", "ext4", "nfs 4.2, hard", "nfs 4.2, soft"}

SHORT = {
    lib.IOU_METHOD_PUNCH_HOLE: "punch",
    lib.IOU_METHOD_ZERO_RANGE: "zero",
    lib.IOU_METHOD_ALLOCATE: "allocate",
    lib.IOU_METHOD_PUNCH_AND_ALLOCATE: "punch+allocate",
    lib.IOU_METHOD_BLKZEROOUT: "blkzeroout",
    lib.IOU_METHOD_WRITE: "write",
}


@pytest.fixture(params=STORAGE, scope="module")
def named(request: pytest.FixtureRequest) -> Iterator[tuple[str, Path]]:
    """Each storage: its name and the path of an image on it."""
    make, _ = STORAGE[request.param]
    with make() as path:
        yield request.param, path


def zero(path: Path, start: int, end: int, flags: int) -> str:
    """Zero a range and return the method, as the table has it."""
    with Image(path) as image:
        result = image.attempt(lib.IOU_ZERO, start, end - start, flags)
        image.flush()
    if result.error == errno.ENOTSUP:
        return "-"
    assert result.error == 0, os.strerror(result.error)
    return SHORT[result.method]


def test_methods_are_those_of_the_table(named: tuple[str, Path]) -> None:
    name, path = named
    told = []
    for flags in WAYS.values():
        content = fill(path, LENGTH, seed=1)
        method = zero(path, MiB // 2, 3 * MiB // 2, flags)
        if method != "-":
            content[MiB // 2 : 3 * MiB // 2] = bytes(MiB)
        assert not first_difference(on_disk(path)[:LENGTH], content), method
        told.append(method)
    print(f"METHODS | {name} | {' | '.join(told)} |")
    assert " ".join(told) == STORAGE[name][1]


def test_only_some_files_tell_of_holes(named: tuple[str, Path]) -> None:
    name, path = named
    fill(path, LENGTH, seed=1)
    zero(path, MiB // 2, 3 * MiB // 2, DEALLOCATE)
    with Image(path) as image:
        holes = [extent for extent in image.extents(0, LENGTH) if extent.hole]
    assert bool(holes) == (name in HAVE_HOLES), holes


@pytest.mark.parametrize("way", WAYS)
def test_unaligned_range_reads_as_zeros_and_its_neighbours_stay(named: tuple[str, Path], way: str) -> None:
    _, path = named
    content = fill(path, LENGTH, seed=2)
    if zero(path, START, END, WAYS[way]) != "-":
        content[START:END] = bytes(END - START)
    assert not first_difference(on_disk(path)[:LENGTH], content)


@pytest.mark.parametrize("seed", range(3))
def test_anything_done_is_what_the_model_says(named: tuple[str, Path], seed: int) -> None:
    name, path = named
    if name in OVERFLOWS:
        pytest.skip("this kernel's null_blk overflows its pages (docs/lab.md)")
    chance = random.Random(seed)
    content = fill(path, MiB, seed)
    with Image(path) as image:
        model = Model(image, 0, content)
        for _ in range(60):
            random_operation(chance, model)
        image.flush()
    assert not first_difference(on_disk(path)[:MiB], model.content)
