# SPDX-License-Identifier: Apache-2.0
"""fast_only on real storage: without data I/O, or refused within milliseconds and not a byte changed."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ioutil_ext import lib
from tests.support.realstorage import STORAGE_TYPES, Storage, StorageType

from .engine_driver import Image, Result
from .syscall_table import replaced

KiB = 1024
MiB = 1024 * KiB
SIZE = 8 * MiB

#: "At once": three orders of magnitude below writing a large range, well above a busy machine's hiccups.
AT_ONCE = 0.1


@pytest.fixture
def refusing_device(make_storage: Callable[[StorageType], Storage]) -> Path:
    """Return a device that can't punch."""
    return next(make_storage(kind) for kind in STORAGE_TYPES if kind.sector_size and not kind.offload).make(SIZE)


def random_image(storage: Storage) -> tuple[Path, bytes]:
    content = os.urandom(SIZE)
    path = storage.make(SIZE)
    with path.open("r+b") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return path, content


def attempt(image: Image, offset: int, length: int, flags: int = 0) -> tuple[Result, float]:
    start = time.monotonic()
    result = image.attempt(lib.IOU_ZERO, offset, length, flags | lib.IOU_FAST_ONLY)
    return result, time.monotonic() - start


RANGES = [(0, SIZE), (MiB, MiB), (4096, 512), (100, 100), (MiB + 1, 4 * MiB), (SIZE - 700, 700)]


def is_fast(storage: Storage, offset: int, length: int, *, allocate: bool) -> bool:
    if not storage.is_block:
        return storage.type.allocates or not allocate
    sector = storage.type.sector_size
    return storage.offload and not allocate and offset % sector == 0 and length % sector == 0


@pytest.mark.parametrize(("offset", "length"), RANGES)
@pytest.mark.parametrize("allocate", [False, True], ids=["deallocate", "allocate"])
def test_fast_zero_is_fast_or_changes_nothing(storage: Storage, offset: int, length: int, allocate: bool) -> None:
    path, content = random_image(storage)
    flags = lib.IOU_ALLOCATE if allocate else 0
    expected = content
    with Image(path) as image:
        result, seconds = attempt(image, offset, length, flags)
        again, _ = attempt(image, offset, length, flags)
        if is_fast(storage, offset, length, allocate=allocate):
            assert (result.error, result.done) == (0, length)
            assert result.method in (
                lib.IOU_METHOD_PUNCH_HOLE,
                lib.IOU_METHOD_ZERO_RANGE,
                lib.IOU_METHOD_PUNCH_AND_ALLOCATE,
            )
            expected = content[:offset] + bytes(length) + content[offset + length :]
        else:
            assert (result.error, result.done) == (errno.ENOTSUP, 0)
            assert seconds < AT_ONCE
        assert again.error == result.error
        assert image.read(0, SIZE) == expected
    assert path.read_bytes() == expected


def test_a_fast_zero_that_is_refused_does_not_grow_the_file(file_storage: Storage) -> None:
    path, content = random_image(file_storage)
    with Image(path) as image:
        result, _ = attempt(image, SIZE - 100, MiB, lib.IOU_ALLOCATE)
    if file_storage.type.allocates:
        assert result.error == 0
        assert path.read_bytes() == content[:-100] + bytes(MiB)
    else:
        assert result.error == errno.ENOTSUP
        assert path.read_bytes() == content


def test_refusal_leaves_the_allocation_as_it_was(file_storage: Storage) -> None:
    path = file_storage.make(SIZE)
    before = file_storage.allocated(path)
    with Image(path) as image:
        result, _ = attempt(image, 0, SIZE, lib.IOU_ALLOCATE)
    if result.error:
        assert file_storage.allocated(path) == before
    else:
        assert file_storage.allocated(path) >= SIZE


def test_refusal_of_a_large_range_takes_milliseconds(storage: Storage) -> None:
    """Larger than what could be written meanwhile."""
    size = 192 * MiB
    path = storage.make(size)
    with Image(path) as image:
        result, seconds = attempt(image, 0, size, lib.IOU_ALLOCATE)
    if not is_fast(storage, 0, size, allocate=True):
        assert result.error == errno.ENOTSUP
        assert seconds < AT_ONCE


@pytest.mark.parametrize("operation", [lib.IOU_TRIM, lib.IOU_ZERO])
@pytest.mark.parametrize("through", ["buffered", "direct"])
def test_a_refusal_does_not_undo_buffered_writes(block_storage: Storage, operation: int, through: str) -> None:
    """The kernel drops dirty pages of a device before it finds out that it can't punch."""
    path, content = random_image(block_storage)
    with Image(path) as direct, Image(path, buffered=True) as buffered:
        data = os.urandom(MiB)
        buffered.write(MiB, data)
        image = buffered if through == "buffered" else direct
        flags = lib.IOU_FAST_ONLY if operation == lib.IOU_ZERO else 0
        result = image.attempt(operation, MiB, MiB, flags)
        assert result.error == (errno.ENOTSUP if operation == lib.IOU_ZERO else 0)
        assert buffered.read(0, SIZE) == content[:MiB] + data + content[2 * MiB :]


@pytest.mark.parametrize("operation", [lib.IOU_TRIM, lib.IOU_ZERO])
@pytest.mark.parametrize("offset", [MiB, MiB + 512], ids=["pages", "sectors"])
def test_a_refusal_does_not_undo_what_other_processes_wrote(refusing_device: Path, operation: int, offset: int) -> None:
    data = os.urandom(SIZE)
    with refusing_device.open("r+b", buffering=0) as other, Image(refusing_device) as image:
        other.write(data)
        result = image.attempt(operation, offset, MiB, lib.IOU_FAST_ONLY if operation == lib.IOU_ZERO else 0)
        assert (result.error, result.method) == (errno.ENOTSUP if operation == lib.IOU_ZERO else 0, lib.IOU_METHOD_NONE)
        assert os.pread(other.fileno(), SIZE, 0) == data
        assert image.read(0, SIZE) == data


def test_pages_that_can_not_be_written_back_fail_the_punch_and_every_flush(
    refusing_device: Path,
) -> None:
    def write_back(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.EIO, "lost")

    with Image(refusing_device) as image, Image(refusing_device) as other:
        with replaced(write_back=write_back):
            result = image.attempt(lib.IOU_TRIM, 0, MiB)
            assert (result.error, result.syscall) == (errno.EIO, lib.IOU_SYS_SYNC_FILE_RANGE)
        for handle in (image, other):
            assert handle.attempt(lib.IOU_FLUSH).error == errno.EIO
