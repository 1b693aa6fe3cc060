# SPDX-License-Identifier: Apache-2.0
"""What zeroing and trimming free on the storage below a device that the kernel makes of others; no room there."""

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import pytest

from ioutil_ext import lib
from tests.ioutil.disk import fill
from tests.ioutil.engine_driver import Image

from .kernel_iscsi import UNMAP, ZEROES, iscsi
from .kernel_stacked import drbd_disk, drbd_pair, logical_volume, nvme_disk, thin_volume, zfs_volume
from .kernel_storage import SIZE, MiB, loop_disk, plain_file, run
from .small_daemon import running_daemon


class Place(NamedTuple):
    """A device, and how many bytes are allocated for it."""

    path: Path
    used: Callable[[], int]


Make = Callable[[], AbstractContextManager[Place]]


def allocated(path: Path) -> int:
    """Return how much space a file takes once all is written to it."""
    os.sync()
    return path.stat().st_blocks * 512


def on_loop(stacked: Callable[[Path], AbstractContextManager[Path]]) -> Make:
    """Make a device of a loop device, which frees what is punched in its file."""

    @contextlib.contextmanager
    def make() -> Iterator[Place]:
        with loop_disk() as below, stacked(below) as path:
            backing = Path(Path("/sys/block", below.name, "loop/backing_file").read_text().strip())
            yield Place(path, lambda: allocated(backing))

    return make


def on_file(stacked: Callable[[Path], AbstractContextManager[Path]]) -> Make:
    """Make a device of a file."""

    @contextlib.contextmanager
    def make() -> Iterator[Place]:
        with plain_file() as backing, stacked(backing) as path:
            yield Place(path, lambda: allocated(backing))

    return make


@contextlib.contextmanager
def thin() -> Iterator[Place]:
    with thin_volume() as volume:
        yield Place(volume.path, lambda: volume.used)


def zvol(*options: str) -> Make:
    @contextlib.contextmanager
    def make() -> Iterator[Place]:
        with zfs_volume(*options) as volume:
            yield Place(volume.path, lambda: volume.used)

    return make


#: Storage, and how many of 2 MiB are free after zero, zero that keeps the space, and trim.
FREED: dict[str, tuple[Make, str]] = {
    "iscsi, a file": (on_file(iscsi()), "0 0 0"),
    "iscsi, a file, unmap": (on_file(iscsi(**UNMAP)), "0 0 0"),
    "iscsi, a file, unmap that zeroes": (on_file(iscsi(**UNMAP, **ZEROES)), "2 0 2"),
    "iscsi, a device": (on_loop(iscsi()), "0 0 0"),
    "iscsi, a device, unmap that zeroes": (on_loop(iscsi(**UNMAP, **ZEROES)), "2 0 2"),
    "lvm": (on_loop(logical_volume), "2 0 2"),
    "lvm-thin": (thin, "0 0 0"),
    "nvme-of, a device": (on_loop(nvme_disk), "2 2 2"),
    "nvme-of, a file": (on_file(nvme_disk), "0 0 0"),
    "zfs volume": (zvol(), "2 2 0"),
    "zfs volume, no compression": (zvol("-o", "compression=off"), "0 0 0"),
    "drbd": (on_loop(drbd_disk), "0 0 0"),
    "drbd with a peer": (on_loop(drbd_pair), "2 0 2"),
}
WAYS = ((lib.IOU_ZERO, 0), (lib.IOU_ZERO, lib.IOU_ALLOCATE), (lib.IOU_TRIM, 0))


@pytest.mark.parametrize("name", FREED)
def test_space_is_freed_as_the_table_says(name: str) -> None:
    make, expected = FREED[name]
    freed = []
    with make() as place:
        for kind, flags in WAYS:
            fill(place.path, 4 * MiB, seed=1)
            before = place.used()
            with Image(place.path) as image:
                image.run(kind, MiB, 2 * MiB, flags)
                image.flush()
            freed.append(str(round((before - place.used()) / MiB)))
    print(f"FREED | {name} | {' | '.join(freed)} |")
    assert " ".join(freed) == expected


def test_a_new_thin_volume_is_allocated_by_zeros() -> None:
    with thin_volume() as volume, Image(volume.path) as image:
        assert volume.used == 0
        image.zero(0, 4 * MiB)
        image.flush()
        assert volume.used == 4 * MiB


@pytest.mark.parametrize("options", [("--errorwhenfull", "y"), ()], ids=["fails", "waits"])
def test_upload_to_a_thin_pool_that_is_full_is_answered_507(options: tuple[str, ...]) -> None:
    run("modprobe", "dm-thin-pool")
    Path("/sys/module/dm_thin_pool/parameters/no_space_timeout").write_text("5")
    with thin_volume(*options, size=4 * MiB) as volume, running_daemon() as daemon:
        daemon.add_ticket("thin", volume.path, SIZE)
        daemon.upload("thin", 0, b"x" * 2 * MiB, flush=True)
        daemon.upload("thin", 2 * MiB, b"y" * 4 * MiB, flush=True, status=507)
        daemon.remove_ticket("thin")
        assert volume.path.read_bytes()[: 2 * MiB] == b"x" * 2 * MiB
