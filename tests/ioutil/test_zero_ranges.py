# SPDX-License-Identifier: Apache-2.0
"""Zero and trim at any alignment, past the end of a file, and with FUA, whatever the storage can."""

import errno
import itertools

import pytest

from ioutil_ext import ffi, lib
from tests.support.realstorage import Storage

from .engine_driver import Image
from .fake_image import CONTENT, MODES, SIZE, Call, FakeImage, KiB, opened, zeroed
from .policy_table import REAL, REFUSED, UNSUPPORTED, ZEROING_CALLS, calls_of
from .syscall_table import real_fallocate, real_pread, real_pwrite, replaced

OFFSET, LENGTH = 64 * KiB, 64 * KiB

# Alignment


UNALIGNED = [(1, 1), (511, 2), (100, 511), (1000, 5000), (4096, 100), (8192 - 100, 100), (3, 100_001), (0, SIZE - 1)]


@pytest.mark.parametrize(("offset", "length"), UNALIGNED)
@pytest.mark.parametrize("allocate", [False, True], ids=["deallocate", "allocate"])
def test_unaligned_zero_keeps_neighbours_whatever_the_method(
    fake: FakeImage, kind: str, offset: int, length: int, allocate: bool
) -> None:
    flags = lib.IOU_ALLOCATE if allocate else 0
    calls = calls_of(kind)[:-1]
    for numbers in itertools.product((0, errno.EOPNOTSUPP), repeat=len(calls)):
        with opened(fake, **dict(zip(calls, numbers, strict=True))) as image:
            result = image.zero(offset, length, flags)
            assert result.done == length
        assert bytes(fake.content) == zeroed(offset, length), numbers


@pytest.mark.parametrize(("offset", "length"), UNALIGNED)
def test_a_device_zeroes_only_whole_blocks(fake_block: FakeImage, offset: int, length: int) -> None:
    calls = calls_of("block")[:-1]
    for numbers in itertools.product((0, errno.EOPNOTSUPP), repeat=len(calls)):
        with opened(fake_block, **dict(zip(calls, numbers, strict=True))) as image:
            image.zero(offset, length)
            block = image.info.block_size
        moved = [call for call in fake_block.calls if call.name in calls]
        assert [call for call in moved if call.offset % block or call.length % block] == []


def test_direct_io_of_a_device_is_in_whole_blocks(block_storage: Storage) -> None:
    """On a real device: the kernel would refuse anything else, after the neighbours were at stake."""
    calls: list[Call] = []

    def pread(fd: int, buffer: memoryview, offset: int) -> int:
        calls.append(Call("pread", offset, len(buffer)))
        return real_pread(fd, buffer, offset)

    def pwrite(fd: int, buffer: memoryview, offset: int) -> int:
        calls.append(Call("pwrite", offset, len(buffer)))
        return real_pwrite(fd, buffer, offset)

    def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
        calls.append(Call(MODES[mode], offset, length))
        real_fallocate(fd, mode, offset, length)

    path = block_storage.make(SIZE)
    path.write_bytes(CONTENT)
    with replaced(pread=pread, pwrite=pwrite, fallocate=fallocate), Image(path) as image:
        block = image.info.block_size
        calls.clear()
        for offset, length in UNALIGNED:
            image.zero(offset, length)
            image.write(offset, CONTENT[offset : offset + length])
            assert image.read(offset, length) == CONTENT[offset : offset + length]
    assert {call.name for call in calls} >= {"pread", "pwrite"}
    assert [call for call in calls if call.offset % block or call.length % block] == []
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("allocate", [False, True], ids=["deallocate", "allocate"])
def test_a_file_takes_the_exact_range(fake_file: FakeImage, allocate: bool) -> None:
    with opened(fake_file) as image:
        image.zero(1001, 100_003, lib.IOU_ALLOCATE if allocate else 0)
    assert [call for call in fake_file.calls if call.name in ZEROING_CALLS] == [
        Call("zero_range" if allocate else "punch_hole", 1001, 100_003)
    ]


# Past the end of a file


@pytest.mark.parametrize("offset", [SIZE - 5000, SIZE, SIZE + 1, SIZE + 5000, SIZE + 64 * KiB])
@pytest.mark.parametrize("allocate", [False, True], ids=["deallocate", "allocate"])
def test_zeros_past_the_end_grow_the_file_right_to_the_byte(fake_file: FakeImage, offset: int, allocate: bool) -> None:
    calls = calls_of("file")[:-1]
    for numbers in itertools.product((0, errno.EOPNOTSUPP, errno.EINVAL), repeat=len(calls)):
        faults = dict(zip(calls, numbers, strict=True))
        with opened(fake_file, **faults) as image:
            result = image.zero(offset, 10_001, lib.IOU_ALLOCATE if allocate else 0)
            assert image.info.size == offset + 10_001
        size = offset + 10_001
        expected = (CONTENT + bytes(size))[:size]
        assert bytes(fake_file.content) == expected[:offset] + bytes(10_001), faults
        assert result.done == 10_001


@pytest.mark.parametrize("offset", [SIZE, SIZE + 64 * KiB])
def test_past_the_end_allocation_alone_is_enough(fake_file: FakeImage, offset: int) -> None:
    with opened(fake_file, zero_range=errno.EOPNOTSUPP, punch_hole=errno.EOPNOTSUPP) as image:
        result = image.zero(offset, LENGTH, lib.IOU_ALLOCATE)
    assert result.method == lib.IOU_METHOD_ALLOCATE
    assert "pwrite" not in fake_file.names()


def test_allocation_alone_is_not_used_inside_the_file(fake_file: FakeImage) -> None:
    with opened(fake_file, zero_range=errno.EOPNOTSUPP, punch_hole=errno.EOPNOTSUPP) as image:
        result = image.zero(SIZE - 4096, LENGTH, lib.IOU_ALLOCATE)
    assert result.method == lib.IOU_METHOD_WRITE
    assert bytes(fake_file.content) == CONTENT[:-4096] + bytes(LENGTH)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EIO])
def test_an_error_of_growing_is_told(fake_file: FakeImage, number: int) -> None:
    with opened(fake_file, ftruncate=number) as image:
        result = image.attempt(lib.IOU_ZERO, SIZE + 4096, LENGTH)
    assert (result.error, result.syscall) == (number, lib.IOU_SYS_FTRUNCATE)
    assert bytes(fake_file.content) == CONTENT


def test_zeros_past_the_end_of_a_device_fail_and_change_nothing(fake_block: FakeImage) -> None:
    with opened(fake_block) as image:
        result = image.attempt(lib.IOU_ZERO, SIZE - 4096, 8192)
    assert result.error != 0
    assert bytes(fake_block.content) == CONTENT


# Partial effects


def test_a_hole_punched_in_vain_still_ends_in_zeros(fake_file: FakeImage) -> None:
    for number in (*UNSUPPORTED, *REFUSED):
        with opened(fake_file, zero_range=errno.EOPNOTSUPP, fallocate=number) as image:
            result = image.zero(OFFSET, LENGTH, lib.IOU_ALLOCATE)
        assert result.method == lib.IOU_METHOD_WRITE
        assert bytes(fake_file.content) == zeroed(OFFSET, LENGTH)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOMEM])
@pytest.mark.parametrize("operation", [lib.IOU_ZERO, lib.IOU_WRITE])
def test_an_error_of_reading_an_edge_is_told_and_nothing_is_written(
    fake_file: FakeImage, operation: int, number: int
) -> None:
    with opened(fake_file, pread=number, punch_hole=errno.EOPNOTSUPP, zero_range=errno.EOPNOTSUPP) as image:
        if not image.info.direct:
            pytest.skip("no direct I/O here: the kernel fills the edges")
        result = image.attempt(operation, OFFSET + 100, 50, buffer=ffi.from_buffer(bytes(50)))
    assert (result.error, result.syscall, result.done) == (number, lib.IOU_SYS_PREAD, 0)
    assert bytes(fake_file.content) == CONTENT


# TRIM


@pytest.mark.parametrize(("offset", "length"), [(0, SIZE), (OFFSET, LENGTH), (1, SIZE - 2), (5000, 20_000)])
def test_trim_punches_whole_blocks_inside_the_range(fake: FakeImage, offset: int, length: int) -> None:
    with opened(fake) as image:
        result = image.trim(offset, length)
        block = image.info.block_size
    start = -(-offset // block) * block
    end = (offset + length) // block * block
    assert [call for call in fake.calls if call.name in ZEROING_CALLS] == [Call("punch_hole", start, end - start)]
    assert result.error == 0
    assert bytes(fake.content) == zeroed(start, end - start)


@pytest.mark.parametrize(("offset", "length"), [(0, 0), (1, 511), (OFFSET - 100, 200), (SIZE + 4096, 8192)])
def test_trim_without_a_whole_block_of_the_image_changes_nothing(
    fake: FakeImage, kind: str, offset: int, length: int
) -> None:
    if kind == "block" and offset > SIZE:
        pytest.skip("past the end of a device is an error")
    with opened(fake) as image:
        image.trim(offset, length)
    assert set(fake.names("ftruncate", *ZEROING_CALLS)) <= {"punch_hole"}
    assert bytes(fake.content) == CONTENT


@pytest.mark.parametrize("number", [*UNSUPPORTED, *REFUSED])
def test_trim_that_is_not_supported_is_success_and_nothing_done(fake: FakeImage, number: int) -> None:
    with opened(fake, punch_hole=number) as image:
        image.trim(OFFSET, LENGTH)
        assert image.info.can_punch_hole == (0 if number in UNSUPPORTED else 1)
    assert fake.names(*ZEROING_CALLS) == ["punch_hole"]
    assert bytes(fake.content) == CONTENT


@pytest.mark.parametrize("number", REAL)
def test_an_error_of_trim_is_told(fake: FakeImage, number: int) -> None:
    with opened(fake, punch_hole=number) as image:
        result = image.attempt(lib.IOU_TRIM, OFFSET, LENGTH)
    assert (result.error, result.syscall) == (number, lib.IOU_SYS_PUNCH_HOLE)


# FUA


@pytest.mark.parametrize("operation", [lib.IOU_WRITE, lib.IOU_ZERO, lib.IOU_TRIM])
def test_fua_syncs_after_the_work(fake: FakeImage, operation: int) -> None:
    data = ffi.from_buffer(bytes(LENGTH))
    with opened(fake) as image:
        image.run(operation, OFFSET, LENGTH, lib.IOU_FUA, buffer=data if operation == lib.IOU_WRITE else ffi.NULL)
    assert fake.names()[-1] == "fdatasync"
    assert fake.names("fdatasync", *ZEROING_CALLS)[0] != "fdatasync"


@pytest.mark.parametrize("operation", [lib.IOU_WRITE, lib.IOU_ZERO, lib.IOU_TRIM])
def test_without_fua_nothing_is_synced(fake: FakeImage, operation: int) -> None:
    data = ffi.from_buffer(bytes(LENGTH))
    with opened(fake) as image:
        image.run(operation, OFFSET, LENGTH, buffer=data if operation == lib.IOU_WRITE else ffi.NULL)
    assert "fdatasync" not in fake.names()


@pytest.mark.parametrize("operation", [lib.IOU_ZERO, lib.IOU_TRIM])
def test_fua_that_fails_to_sync_fails(fake: FakeImage, operation: int) -> None:
    with opened(fake, fdatasync=errno.EIO) as image:
        result = image.attempt(operation, OFFSET, LENGTH, lib.IOU_FUA)
    assert (result.error, result.syscall) == (errno.EIO, lib.IOU_SYS_FDATASYNC)
