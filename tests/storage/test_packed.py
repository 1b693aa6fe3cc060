# SPDX-License-Identifier: Apache-2.0
"""Disks as qcow2 files, before any of it is read; what is read: tests/qcow2/test_packed.py."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from imageio_daemon.errors import Canceled, InvalidRequest, Shortened
from imageio_daemon.image.extents import Extent, ExtentList
from imageio_daemon.storage.backend import Backend
from imageio_daemon.storage.file import FileBackend
from imageio_daemon.storage.packed import LARGEST, PackedDisk, cluster_bits, map_size
from imageio_daemon.units import KiB, MiB, TiB
from tests.ioutil.engine_driver import Image

SIZE = 4 * MiB
DATA = Extent(0, MiB)
HOLE = Extent(MiB, 3 * MiB, zero=True, hole=True)


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Any]:
    (tmp_path / "disk").write_bytes(bytes(SIZE))
    with Image(tmp_path / "disk") as image:
        yield FileBackend(cast(Any, None), image.handle, "disk")


def placed(backend: Backend, *extents: Extent, size: int = SIZE) -> PackedDisk:
    disk = PackedDisk(backend, size)
    disk.tell(ExtentList.of(extents))
    disk.place(1)
    return disk


@pytest.mark.parametrize(
    ("size", "bits"),
    [(0, 16), (1, 16), (2 * TiB, 16), (2 * TiB + 1, 17), (4 * TiB, 17), (32 * TiB + 1, 21), (LARGEST, 21)],
)
def test_clusters_grow_so_that_the_map_does_not(size: int, bits: int) -> None:
    assert cluster_bits(size) == bits
    assert map_size(size) <= 4 * MiB


def test_a_disk_that_is_too_large() -> None:
    assert 64 * TiB == LARGEST
    with pytest.raises(InvalidRequest, match="more than 64 TiB"):
        map_size(LARGEST + 1)


def test_the_length_is_that_of_what_was_told(backend: Backend) -> None:
    disk = placed(backend, DATA, HOLE)
    assert disk.length == MiB + 5 * 64 * KiB
    disk.close()


def test_the_layout_tells_maps_and_sizes_apart(backend: Backend) -> None:
    maps = [
        placed(backend, DATA, HOLE),
        placed(backend, Extent(0, SIZE)),
        placed(backend, DATA, Extent(MiB, 3 * MiB - 1, zero=True), size=SIZE - 1),
        placed(backend, Extent(0, 2 * MiB), Extent(2 * MiB, 2 * MiB, zero=True)),
    ]
    assert len({disk.layout for disk in maps}) == len(maps)
    again = placed(backend, DATA, HOLE)
    assert again.layout == maps[0].layout
    for disk in (*maps, again):
        disk.close()


def test_an_image_that_ends_before_its_size_is_refused(backend: Backend) -> None:
    with pytest.raises(Shortened):
        placed(backend, DATA)


def test_a_closed_image_is_refused(backend: Any) -> None:
    backend._closed = True
    with pytest.raises(Canceled):
        PackedDisk(backend, SIZE)


def test_it_is_closed_once(backend: Backend) -> None:
    disk = placed(backend, DATA, HOLE)
    disk.close()
    disk.close()
