# SPDX-License-Identifier: Apache-2.0
"""Data and holes of real files and devices, in batches."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ioutil_ext import ffi, lib
from tests.support.realstorage import Storage

from .engine_driver import Extent, Image
from .syscall_table import real_lseek, replaced

KiB = 1024
MiB = 1024 * KiB


def sparse_file(path: Path, size: int, data: list[tuple[int, int]]) -> Path:
    """Make a file of holes with data at the given ranges."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(size)
        for offset, length in data:
            file.seek(offset)
            file.write(b"d" * length)
        file.flush()
        os.fsync(file.fileno())
    return path


def assert_no_gaps(extents: list[Extent], offset: int, length: int) -> None:
    for extent in extents:
        assert extent.start == offset
        assert extent.length > 0
        offset += extent.length
        length -= extent.length
    assert length == 0


def test_holes_and_data_of_every_file_system(file_storage: Storage) -> None:
    path = sparse_file(file_storage.make(4 * MiB), 4 * MiB, [(0, MiB), (2 * MiB, MiB)])
    with Image(path) as image:
        extents = image.extents(0, 4 * MiB)
    assert extents == [
        Extent(0, MiB, False),
        Extent(MiB, MiB, True),
        Extent(2 * MiB, MiB, False),
        Extent(3 * MiB, MiB, True),
    ]


def test_an_empty_image_is_one_hole(file_storage: Storage) -> None:
    with Image(file_storage.make(4 * MiB)) as image:
        assert image.extents(0, 4 * MiB) == [Extent(0, 4 * MiB, True)]
        assert image.info.reads_zero == 1


def test_a_device_is_one_data_extent(block_storage: Storage) -> None:
    with Image(block_storage.make(4 * MiB)) as image:
        assert image.extents(0, 4 * MiB) == [Extent(0, 4 * MiB, False)]
        assert image.extents(MiB, MiB) == [Extent(MiB, MiB, False)]
        assert image.info.can_seek_hole == 0
        assert image.info.reads_zero == 0


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, MiB), (1, 1), (100, 3 * MiB), (MiB - 1, 2), (MiB, 1), (2 * MiB + 5, 10), (3 * MiB, MiB), (4 * MiB - 1, 1)],
)
def test_a_part_of_the_image_is_cut_to_the_range(tmp_path: Path, offset: int, length: int) -> None:
    whole = [(0, MiB, False), (MiB, MiB, True), (2 * MiB, MiB, False), (3 * MiB, MiB, True)]
    path = sparse_file(tmp_path / "image", 4 * MiB, [(0, MiB), (2 * MiB, MiB)])
    with Image(path) as image:
        extents = image.extents(offset, length)
    assert extents == [
        Extent(max(start, offset), min(start + size, offset + length) - max(start, offset), hole)
        for start, size, hole in whole
        if start < offset + length and start + size > offset
    ]


@pytest.mark.parametrize("most", [1, 2, 3, 7, 100])
def test_batches_add_up(tmp_path: Path, most: int) -> None:
    data = [(index * 128 * KiB, 64 * KiB) for index in range(32)]
    path = sparse_file(tmp_path / "image", 4 * MiB, data)
    with Image(path) as image:
        whole = image.extents(0, 4 * MiB)
        assert len(whole) == 64
        collected: list[Extent] = []
        position = 0
        while position < 4 * MiB:
            batch = image.extents(position, 4 * MiB - position, most)
            assert 1 <= len(batch) <= most
            assert_no_gaps(batch, position, sum(extent.length for extent in batch))
            position += sum(extent.length for extent in batch)
            collected += batch
        assert merged(collected) == whole


def merged(extents: list[Extent]) -> list[Extent]:
    result: list[Extent] = []
    for extent in extents:
        if result and result[-1].hole == extent.hole:
            result[-1] = Extent(result[-1].start, result[-1].length + extent.length, extent.hole)
        else:
            result.append(extent)
    return result


def test_zeroed_ranges_become_holes(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "image", 4 * MiB, [(0, 4 * MiB)])
    with Image(path) as image:
        assert image.extents(0, 4 * MiB) == [Extent(0, 4 * MiB, False)]
        image.zero(MiB, MiB)
        assert image.extents(0, 4 * MiB) == [
            Extent(0, MiB, False),
            Extent(MiB, MiB, True),
            Extent(2 * MiB, 2 * MiB, False),
        ]


def test_extents_of_an_odd_sized_image_end_at_its_size(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "image", MiB + 123, [(0, 64 * KiB)])
    with Image(path) as image:
        assert_no_gaps(image.extents(0, MiB + 123), 0, MiB + 123)


@pytest.mark.parametrize("offset", [64 * KiB, MiB - 1])
def test_extents_of_what_an_image_has_lost_are_an_error(tmp_path: Path, offset: int) -> None:
    path = sparse_file(tmp_path / "image", MiB, [(0, MiB)])
    with Image(path) as image:
        os.truncate(path, 64 * KiB)
        records = ffi.new("iou_extent[]", 4)
        result = image.attempt(lib.IOU_EXTENTS, offset, MiB, buffer=records, buffer_size=ffi.sizeof(records))
        assert (result.error, result.syscall, result.count) == (errno.ENODATA, lib.IOU_SYS_NONE, 0)
        assert result.size == 64 * KiB
        assert image.extents(0, MiB) == [Extent(0, 64 * KiB, False)]
        assert image.extents(MiB, MiB) == []


def test_an_unwritten_tail_of_data_is_covered(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "image", 10_000, [(0, 10_000)])
    with Image(path) as image:
        assert image.extents(0, 10_000) == [Extent(0, 10_000, False)]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_holes_is_all_data(tmp_path: Path, number: int) -> None:
    calls: list[int] = []

    def lseek(fd: int, offset: int, whence: int) -> int:
        calls.append(whence)
        raise OSError(number, "not here")

    path = sparse_file(tmp_path / "image", MiB, [])
    with replaced(lseek=lseek), Image(path) as image:
        assert image.extents(0, MiB) == [Extent(0, MiB, False)]
        assert image.info.can_seek_hole == 0
        calls.clear()
        assert image.extents(4096, 4096) == [Extent(4096, 4096, False)]
    assert calls == [], "it was asked again"


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_an_error_of_seeking_is_told(tmp_path: Path, number: int) -> None:
    path = sparse_file(tmp_path / "image", MiB, [(0, 4096)])
    with Image(path) as image, replaced(lseek=raising(number)):
        result = image.attempt(
            lib.IOU_EXTENTS, 0, MiB, buffer=(records := ffi.new("iou_extent[]", 4)), buffer_size=ffi.sizeof(records)
        )
    assert (result.error, result.syscall, result.count) == (number, lib.IOU_SYS_LSEEK, 0)


def raising(number: int) -> Callable[[int, int, int], int]:
    def lseek(fd: int, offset: int, whence: int) -> int:
        raise OSError(number, "injected")

    return lseek


def test_a_hole_that_appears_between_two_seeks_does_no_harm(tmp_path: Path) -> None:
    """Another thread may punch between SEEK_DATA and SEEK_HOLE; no empty record, no gap."""
    path = sparse_file(tmp_path / "image", MiB, [(0, MiB)])
    turns = iter(range(100))

    def lseek(fd: int, offset: int, whence: int) -> int:
        if next(turns) == 0:
            os.truncate(path, 0)
            os.truncate(path, MiB)
            return offset if whence == os.SEEK_DATA else MiB
        return real_lseek(fd, offset, whence)

    with Image(path) as image:
        turns = iter(range(100))
        with replaced(lseek=lseek):
            assert_no_gaps(image.extents(0, MiB), 0, MiB)


def test_a_hole_and_the_data_after_it_take_two_seeks(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "image", MiB, [(64 * KiB, 64 * KiB), (192 * KiB, 64 * KiB)])
    seeks: list[int] = []

    def lseek(fd: int, offset: int, whence: int) -> int:
        seeks.append(whence)
        return real_lseek(fd, offset, whence)

    with Image(path) as image, replaced(lseek=lseek):
        seeks.clear()
        assert len(image.extents(0, 256 * KiB)) == 4
    assert seeks == [os.SEEK_DATA, os.SEEK_HOLE] * 2


# reads_zero


def test_reads_zero_ends_with_the_first_write(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "image", MiB, [])
    with Image(path) as image, Image(path) as other:
        assert image.info.reads_zero == 1
        other.write(1000, b"x")
        assert image.info.reads_zero == 0
        assert other.info.reads_zero == 0


def test_reads_zero_ends_when_another_process_has_written(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "image", MiB, [])
    with Image(path) as image:
        image.stat()
        assert image.info.reads_zero == 1
        with path.open("r+b") as file:
            file.write(b"x")
        image.stat()
        assert image.info.reads_zero == 0
        with path.open("r+b") as file:
            file.truncate(0)
            file.truncate(MiB)
        image.stat()
        assert image.info.reads_zero == 0


def test_an_image_with_data_does_not_read_zero(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "image", MiB, [(MiB - 4096, 100)])
    with Image(path) as image:
        assert image.info.reads_zero == 0


def test_zeroing_keeps_reads_zero_or_ends_it_but_never_lies(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "image", MiB, [])
    with Image(path) as image:
        image.zero(0, 4096)
        image.trim(0, 4096)
        if image.info.reads_zero:
            assert path.read_bytes() == bytes(MiB)
