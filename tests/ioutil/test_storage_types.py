# SPDX-License-Identifier: Apache-2.0
"""Each type of storage: its methods, its allocation, its errors."""

import errno
import random
from pathlib import Path

import pytest

from ioutil_ext import ffi, lib
from tests.support.realstorage import STORAGE_TYPES, Storage

from .disk import filled, first_difference, on_disk
from .engine_driver import Failed, Image, aligned
from .model import Model, random_operation

KiB = 1024
MiB = 1024 * KiB
BLOCK = 4096

# Allocation


ALIGNED_SIZE = MiB


@pytest.mark.parametrize("offset", [0, 128 * KiB])
def test_allocate_leaves_no_hole(storage: Storage, offset: int) -> None:
    path = storage.make(ALIGNED_SIZE)
    with Image(path) as image:
        image.zero(offset, ALIGNED_SIZE - offset, lib.IOU_ALLOCATE)
        image.flush()
    assert storage.allocated(path) >= ALIGNED_SIZE - offset
    assert on_disk(path) == bytes(ALIGNED_SIZE)


def test_allocate_over_data_keeps_it_provisioned(storage: Storage) -> None:
    path, _ = filled(storage, ALIGNED_SIZE)
    with Image(path) as image:
        image.zero(0, ALIGNED_SIZE, lib.IOU_ALLOCATE)
        image.flush()
    assert storage.allocated(path) >= ALIGNED_SIZE
    assert on_disk(path) == bytes(ALIGNED_SIZE)


def test_allocate_past_the_end_leaves_no_hole(file_storage: Storage) -> None:
    path = file_storage.make(0)
    with Image(path) as image:
        image.zero(0, ALIGNED_SIZE, lib.IOU_ALLOCATE)
        image.zero(ALIGNED_SIZE, ALIGNED_SIZE, lib.IOU_ALLOCATE)
        image.flush()
    assert file_storage.allocated(path) >= 2 * ALIGNED_SIZE
    assert on_disk(path) == bytes(2 * ALIGNED_SIZE)


def test_deallocation_frees(storage: Storage) -> None:
    path, _ = filled(storage, ALIGNED_SIZE)
    before = storage.allocated(path)
    with Image(path) as image:
        result = image.zero(0, ALIGNED_SIZE)
        image.flush()
    if storage.offload:
        assert result.method == lib.IOU_METHOD_PUNCH_HOLE
        assert storage.allocated(path) <= before - ALIGNED_SIZE // 2
    assert on_disk(path) == bytes(ALIGNED_SIZE)


def test_trim_frees(storage: Storage) -> None:
    path, content = filled(storage, ALIGNED_SIZE)
    before = storage.allocated(path)
    with Image(path) as image:
        image.trim(1, ALIGNED_SIZE - 2)
        image.flush()
    after = on_disk(path)
    if storage.offload:
        assert storage.allocated(path) <= before - ALIGNED_SIZE // 2
        assert after[BLOCK:-BLOCK] == bytes(ALIGNED_SIZE - 2 * BLOCK)
    assert after[:1] + after[-1:] == bytes(content[:1] + content[-1:])


EXPECTED_METHODS = {
    # name: deallocation allowed, allocate
    "ext4": (lib.IOU_METHOD_PUNCH_HOLE, lib.IOU_METHOD_ZERO_RANGE),
    "xfs": (lib.IOU_METHOD_PUNCH_HOLE, lib.IOU_METHOD_ZERO_RANGE),
    "btrfs": (lib.IOU_METHOD_PUNCH_HOLE, lib.IOU_METHOD_ZERO_RANGE),
    "tmpfs": (lib.IOU_METHOD_PUNCH_HOLE, lib.IOU_METHOD_PUNCH_AND_ALLOCATE),
    "ext2": (lib.IOU_METHOD_PUNCH_HOLE, lib.IOU_METHOD_WRITE),
    "loop512": (lib.IOU_METHOD_PUNCH_HOLE, lib.IOU_METHOD_ZERO_RANGE),
    "loop4096": (lib.IOU_METHOD_PUNCH_HOLE, lib.IOU_METHOD_ZERO_RANGE),
    "loop-no-offload": (lib.IOU_METHOD_ZERO_RANGE, lib.IOU_METHOD_ZERO_RANGE),
}


@pytest.mark.parametrize("allocate", [False, True], ids=["deallocate", "allocate"])
def test_each_storage_is_zeroed_by_its_best_method(storage: Storage, allocate: bool) -> None:
    path, _ = filled(storage, ALIGNED_SIZE)
    with Image(path) as image:
        result = image.zero(0, ALIGNED_SIZE, lib.IOU_ALLOCATE if allocate else 0)
    assert result.method == EXPECTED_METHODS[storage.name][allocate]


def test_every_storage_type_has_its_methods_listed() -> None:
    assert [storage_type.name for storage_type in STORAGE_TYPES] == list(EXPECTED_METHODS)


# What is known of an image


def test_block_size_and_type_are_those_of_the_storage(storage: Storage) -> None:
    path = storage.make(ALIGNED_SIZE)
    with Image(path) as image:
        info = image.info
    assert info.type == (lib.IOU_BLOCK if storage.is_block else lib.IOU_FILE)
    assert info.size == ALIGNED_SIZE
    assert info.direct == 1
    assert info.block_size >= 512
    assert info.block_size & (info.block_size - 1) == 0
    if storage.is_block:
        assert info.block_size == storage.type.sector_size
        assert info.device == path.stat().st_rdev
    else:
        assert info.device == path.stat().st_dev


def test_a_buffered_image_works_the_same(storage: Storage) -> None:
    path, content = filled(storage, 64 * KiB)
    with Image(path, buffered=True) as image:
        assert image.info.direct == 0
        model = Model(image, 0, content)
        dice = random.Random(5)
        for _ in range(60):
            random_operation(dice, model)
        image.flush()
    assert first_difference(on_disk(path), model.content) == ""


def test_a_write_past_the_end_of_a_device_fails(block_storage: Storage) -> None:
    path, content = filled(block_storage, 64 * KiB)
    with Image(path) as image:
        for offset in (64 * KiB - 4096, 64 * KiB - 100, 64 * KiB, MiB):
            result = image.attempt(lib.IOU_WRITE, offset, 8192, buffer=ffi.from_buffer(bytes(8192)))
            assert (result.error, result.done) == (errno.ENOSPC, 0)
    assert first_difference(on_disk(path), content) == ""


# Broken storage


def test_a_full_file_system_is_told(full_filesystem: Path) -> None:
    with Image(full_filesystem) as image:
        with pytest.raises(Failed) as failed:
            image.write(0, bytes([1]) * 64 * KiB)
        assert failed.value.errno == errno.ENOSPC
        with pytest.raises(Failed) as failed:
            image.zero(0, 64 * KiB, lib.IOU_ALLOCATE)
        assert failed.value.errno == errno.ENOSPC
        image.zero(0, 64 * KiB)
        assert image.read(0, 64 * KiB) == bytes(64 * KiB)
    assert full_filesystem.stat().st_size == MiB


def test_a_read_error_of_a_device_is_told(unreadable_device: Path) -> None:
    with Image(unreadable_device) as image:
        assert image.read(0, 64 * KiB) == bytes(64 * KiB)
        with pytest.raises(Failed) as failed:
            image.read(6 * MiB, 64 * KiB)
        assert (failed.value.errno, failed.value.result.syscall) == (errno.EIO, lib.IOU_SYS_PREAD)
        with pytest.raises(Failed) as failed:
            image.write(6 * MiB + 100, b"edge")
        assert (failed.value.errno, failed.value.result.syscall) == (errno.EIO, lib.IOU_SYS_PREAD)


def test_a_write_error_of_a_device_is_told(unwritable_device: Path) -> None:
    with Image(unwritable_device) as image:
        with pytest.raises(Failed) as failed:
            image.write(0, aligned(b"x" * 64 * KiB))
        assert failed.value.errno in (errno.EIO, errno.ENOSPC)
        assert failed.value.result.syscall == lib.IOU_SYS_PWRITE


def test_a_failed_flush_of_a_device_is_sticky(unwritable_device: Path) -> None:
    with Image(unwritable_device, buffered=True) as image:
        image.write(0, b"x" * 64 * KiB)  # only as far as the page cache
        for _ in range(3):
            with pytest.raises(Failed) as failed:
                image.flush()
            assert failed.value.result.syscall == lib.IOU_SYS_FDATASYNC
        assert image.info.flush_failed == 1
