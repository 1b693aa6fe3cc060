# SPDX-License-Identifier: Apache-2.0
"""Reads and writes: whole or failed, whatever the kernel does with them."""

import errno
import os
from pathlib import Path

import pytest

from ioutil_ext import ffi, lib

from .engine_driver import Failed, Image, aligned, running_engine
from .syscall_table import real_open, real_pread, real_pwrite, replaced

KiB = 1024
SIZE = 256 * KiB
ORIGINAL = bytes(range(256)) * (SIZE // 256)

# Interruptions and short transfers


def test_short_and_interrupted_transfers_are_completed(image: Path) -> None:
    turns = iter(range(10_000))

    def pread(fd: int, buffer: memoryview, offset: int) -> int:
        if next(turns) % 2:
            raise InterruptedError(errno.EINTR, "interrupted")
        return real_pread(fd, buffer[: max(512, len(buffer) // 2 // 512 * 512)], offset)

    def pwrite(fd: int, buffer: memoryview, offset: int) -> int:
        if next(turns) % 2:
            raise InterruptedError(errno.EINTR, "interrupted")
        return real_pwrite(fd, buffer[: max(512, len(buffer) // 2 // 512 * 512)], offset)

    data = os.urandom(100_000)
    with replaced(pread=pread, pwrite=pwrite), running_engine() as engine:
        queue = engine.queue()
        handle = queue.open(image)
        queue.run(lib.IOU_WRITE, handle, 512, len(data), buffer=data)
        buffer = bytearray(len(data))
        assert queue.run(lib.IOU_READ, handle, 512, len(data), buffer=buffer).done == len(data)
        queue.close_handle(handle)
    assert buffer == data
    assert image.read_bytes()[512 : 512 + len(data)] == data


def test_an_interrupted_flush_is_repeated(image: Path) -> None:
    answers = iter([errno.EINTR, errno.EINTR])

    def fdatasync(fd: int) -> None:
        if number := next(answers, 0):
            raise OSError(number, "interrupted")
        os.fdatasync(fd)

    with replaced(fdatasync=fdatasync), running_engine() as engine:
        queue = engine.queue()
        handle = queue.open(image)
        queue.run(lib.IOU_FLUSH, handle)
        queue.close_handle(handle)


def test_a_write_that_makes_no_progress_fails(image: Path) -> None:
    calls: list[int] = []

    def pwrite(fd: int, buffer: memoryview, offset: int) -> int:
        calls.append(offset)
        if len(calls) > 1000:
            raise OSError(errno.ENODATA, "it spins")
        return 0

    with replaced(pwrite=pwrite), running_engine() as engine:
        queue = engine.queue()
        handle = queue.open(image)
        result = queue.wait(queue.submit(lib.IOU_WRITE, handle, 0, 4096, buffer=bytes(4096)))
        queue.close_handle(handle)
    assert result.error not in (0, errno.ENODATA)
    assert result.syscall == lib.IOU_SYS_PWRITE


@pytest.mark.parametrize(("offset", "length"), [(SIZE - 512, 1024), (SIZE, 512), (SIZE + 4096, 100), (SIZE - 1, 2)])
def test_a_read_past_the_end_fails_and_is_never_padded(image: Path, offset: int, length: int) -> None:
    with running_engine() as engine:
        queue = engine.queue()
        handle = queue.open(image)
        buffer = bytearray(b"?" * length)
        result = queue.wait(queue.submit(lib.IOU_READ, handle, offset, length, buffer=buffer))
        queue.close_handle(handle)
    assert result.error != 0
    assert result.done <= max(0, SIZE - offset)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EPERM, errno.ESTALE])
def test_an_error_of_a_transfer_names_the_call(image: Path, number: int) -> None:
    def fails(fd: int, buffer: memoryview, offset: int) -> int:
        if offset >= 8192:
            raise OSError(number, "injected")
        return real_pread(fd, buffer, offset)

    with replaced(pread=fails, pwrite=fails), running_engine() as engine:
        queue = engine.queue()
        handle = queue.open(image)
        read = queue.wait(queue.submit(lib.IOU_READ, handle, 8192, 4096, buffer=bytearray(4096)))
        written = queue.wait(queue.submit(lib.IOU_WRITE, handle, 8192, 4096, buffer=bytes(4096)))
        queue.close_handle(handle)
    assert (read.error, read.syscall) == (number, lib.IOU_SYS_PREAD)
    assert (written.error, written.syscall) == (number, lib.IOU_SYS_PWRITE)


@pytest.mark.parametrize("offset", [2**60, 2**63 - 4096])
@pytest.mark.parametrize("operation", [lib.IOU_WRITE, lib.IOU_ZERO])
def test_an_offset_beyond_the_file_system_is_an_error_and_the_size_stays(
    image: Path, offset: int, operation: int
) -> None:
    with Image(image) as opened:
        result = opened.attempt(operation, offset, 4095, buffer=ffi.from_buffer(bytes(4095)))
        assert result.error in (errno.EFBIG, errno.EINVAL)
        assert opened.info.size == SIZE
        assert opened.attempt(lib.IOU_TRIM, offset, 4095).error == 0
    assert image.stat().st_size == SIZE


# Direct I/O


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_that_refuses_direct_io_is_used_through_the_page_cache(image: Path, number: int) -> None:
    def refuses(path: str, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(number, "no direct I/O")
        return real_open(path, flags)

    with replaced(open=refuses), Image(image) as opened:
        assert opened.info.direct == 0
        opened.write(1001, b"x" * 7)
        opened.zero(2001, 7)
        opened.flush()
        assert opened.read(1000, 9) == bytes([1000 % 256]) + b"x" * 7 + bytes([1008 % 256])
    assert image.read_bytes()[2001:2008] == bytes(7)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EMFILE, errno.ENXIO])
def test_an_error_of_opening_is_told(image: Path, number: int) -> None:
    def fails(path: str, flags: int) -> int:
        raise OSError(number, "injected")

    with replaced(open=fails), pytest.raises(Failed) as failed:
        Image(image)
    assert (failed.value.errno, failed.value.result.syscall) == (number, lib.IOU_SYS_OPEN)


def test_an_error_of_asking_the_size_is_told(image: Path) -> None:
    def fails(fd: int) -> int:
        raise OSError(errno.EIO, "injected")

    before = len(os.listdir("/proc/self/fd"))
    with replaced(size=fails), pytest.raises(Failed) as failed:
        Image(image)
    assert (failed.value.errno, failed.value.result.syscall) == (errno.EIO, lib.IOU_SYS_FSTAT)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("offset", range(0, 4096, 509))
@pytest.mark.parametrize("shift", [0, 1, 64, 512])
def test_any_memory_address_works_with_any_offset(image: Path, offset: int, shift: int) -> None:
    memory = aligned(bytes(shift) + os.urandom(20_000))
    with Image(image) as opened, memoryview(memory) as view, view[shift:] as data:
        opened.run(lib.IOU_WRITE, offset, len(data), buffer=ffi.from_buffer(data))
        back = aligned(bytes(shift + len(data)))
        with memoryview(back) as back_view, back_view[shift:] as target:
            opened.run(lib.IOU_READ, offset, len(target), buffer=ffi.from_buffer(target))
            assert target == data
    content = image.read_bytes()
    assert content[offset : offset + 20_000] == memory[shift:]
    assert content[:offset] + content[offset + 20_000 :] == ORIGINAL[:offset] + ORIGINAL[offset + 20_000 :]
