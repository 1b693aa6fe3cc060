# SPDX-License-Identifier: Apache-2.0
"""What every backend keeps, whatever it is made of."""

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest

from imageio_daemon.errors import Canceled, Error, NotFound
from imageio_daemon.storage.backend import Backend, Context
from imageio_daemon.storage.buffers import PAGE, BufferPool
from imageio_daemon.storage.file import FileBackend
from imageio_daemon.storage.operation import Operation
from imageio_daemon.units import KiB
from tests.support.backends import MemoryBackend, extents_of
from tests.support.changes import pwrite, trim

from .conftest import SIZE

RANGES = [
    (0, 0),
    (0, 1),
    (0, 512),
    (0, 4096),
    (4096, 65536),
    (1, 1),
    (511, 2),
    (4095, 2),
    (100, 70000),
    (SIZE - 1, 1),
    (0, SIZE),
]


async def write(
    backend: Backend, pool: BufferPool, offset: int, data: bytes, *, phase: int = 0, fua: bool = False
) -> None:
    buffer = await pool.acquire(phase + len(data) or 1)
    try:
        piece = buffer.slice(phase, phase + len(data))
        piece.view[:] = data
        await pwrite(backend, Operation(), piece, offset, fua=fua)
    finally:
        buffer.release()


async def read(backend: Backend, pool: BufferPool, offset: int, length: int, *, phase: int = 0) -> bytes:
    buffer = await pool.acquire(phase + length or 1)
    try:
        piece = buffer.slice(phase, phase + length)
        await backend.pread(Operation(), piece, offset)
        return bytes(piece.view)
    finally:
        buffer.release()


@pytest.mark.parametrize(("offset", "length"), RANGES)
@pytest.mark.parametrize("phase", [0, 7])
async def test_what_was_written_is_read(
    backend: Backend, pool: BufferPool, offset: int, length: int, phase: int
) -> None:
    data = os.urandom(length)
    await write(backend, pool, offset, data, phase=phase)
    expected = bytes(offset) + data + bytes(SIZE - offset - length)
    assert await read(backend, pool, 0, SIZE) == expected
    assert await read(backend, pool, offset, length, phase=phase) == data


@pytest.mark.parametrize(("offset", "length"), RANGES)
@pytest.mark.parametrize("allocate", [False, True])
async def test_zeroed_range_reads_as_zeros(
    backend: Backend, pool: BufferPool, offset: int, length: int, allocate: bool
) -> None:
    data = os.urandom(SIZE)
    await write(backend, pool, 0, data)
    await backend.zero(Operation(), offset, length, allocate=allocate)
    assert await read(backend, pool, 0, SIZE) == data[:offset] + bytes(length) + data[offset + length :]


async def test_trim_leaves_what_is_outside(backend: Backend, pool: BufferPool) -> None:
    data = os.urandom(SIZE)
    await write(backend, pool, 0, data)
    await trim(backend, Operation(), 100, 300 * KiB)
    content = await read(backend, pool, 0, SIZE)
    assert content[:100] == data[:100]
    assert content[100 + 300 * KiB :] == data[100 + 300 * KiB :]


async def test_size_is_known_and_kept(backend: Backend, pool: BufferPool) -> None:
    await write(backend, pool, SIZE - 10, b"0123456789")
    await backend.refresh(Operation())
    assert backend.info.size == SIZE


async def test_read_past_the_end_fails(backend: Backend, pool: BufferPool) -> None:
    with pytest.raises(Error):
        await read(backend, pool, SIZE - 1, 2)


async def test_write_past_the_end_grows_the_image_or_fails(backend: Backend, pool: BufferPool) -> None:
    if backend.info.can_grow:
        await write(backend, pool, SIZE + 5, b"abc")
        assert backend.info.size == SIZE + 8
        assert await read(backend, pool, SIZE, 8) == bytes(5) + b"abc"
    else:
        with pytest.raises(Error):
            await write(backend, pool, SIZE - 1, b"abc")
        assert await read(backend, pool, SIZE - 1, 1) == b"\0"


async def test_flush_succeeds_again_and_again(backend: Backend, pool: BufferPool) -> None:
    await write(backend, pool, 1, b"x")
    for _ in range(3):
        await backend.flush(Operation())


async def test_what_was_written_is_unflushed_until_a_flush(backend: Backend, pool: BufferPool) -> None:
    """Who has a file himself does not know what others have written to it."""
    always = isinstance(backend, FileBackend | MemoryBackend)
    await write(backend, pool, 1, b"x")
    assert backend.info.unflushed
    await backend.flush(Operation())
    assert backend.info.unflushed == always


async def test_write_with_fua_is_written(backend: Backend, pool: BufferPool) -> None:
    buffer = await pool.acquire(PAGE)
    buffer.view[:PAGE] = b"y" * PAGE
    await pwrite(backend, Operation(), buffer.slice(0, PAGE), 0, fua=True)
    buffer.release()
    assert await read(backend, pool, 0, PAGE) == b"y" * PAGE


@pytest.mark.parametrize("call", ["pread", "pwrite", "zero"])
async def test_progress_is_counted(backend: Backend, pool: BufferPool, call: str) -> None:
    op = Operation()
    buffer = await pool.acquire(100 * KiB)
    if call == "zero":
        await backend.zero(op, 3, 100 * KiB, allocate=True)
    elif call == "pread":
        await backend.pread(op, buffer.slice(0, 100 * KiB), 3)
    else:
        await pwrite(backend, op, buffer.slice(0, 100 * KiB), 3)
    buffer.release()
    assert op.done == 100 * KiB


@pytest.mark.parametrize("call", ["pread", "pwrite", "zero", "flush"])
async def test_cancelled_operation_ends_as_such(backend: Backend, pool: BufferPool, call: str) -> None:
    op = Operation()
    op.cancel()
    buffer = await pool.acquire(PAGE)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "pread": lambda: backend.pread(op, buffer.slice(0, PAGE), 0),
        "pwrite": lambda: pwrite(backend, op, buffer.slice(0, PAGE), 0),
        "zero": lambda: backend.zero(op, 0, PAGE, allocate=True),
        "flush": lambda: backend.flush(op),
    }
    with pytest.raises(Canceled):
        await calls[call]()
    buffer.release()


async def test_extents_cover_the_range_in_order(backend: Backend, pool: BufferPool) -> None:
    await write(backend, pool, 300 * KiB, os.urandom(64 * KiB))
    found = await extents_of(backend, 0, SIZE)
    position = 0
    for extent in found:
        assert extent.start == position
        assert extent.length > 0
        position = extent.end
    assert position == SIZE


async def test_zero_extents_read_as_zeros(backend: Backend, pool: BufferPool) -> None:
    data = os.urandom(64 * KiB)
    await write(backend, pool, 300 * KiB, data)
    for extent in await extents_of(backend, 0, SIZE):
        if extent.zero:
            assert await read(backend, pool, extent.start, extent.length) == bytes(extent.length)


async def test_dirty_extents_without_bitmap_are_not_found(backend: Backend) -> None:
    with pytest.raises(NotFound):
        await extents_of(backend, 0, SIZE, Context.DIRTY)


async def test_concurrent_writes_inside_one_block_all_arrive(backend: Backend, pool: BufferPool) -> None:
    await asyncio.gather(*(write(backend, pool, i * 100, bytes([i + 1]) * 100) for i in range(40)))
    content = await read(backend, pool, 0, 4000)
    assert content == b"".join(bytes([i + 1]) * 100 for i in range(40))
