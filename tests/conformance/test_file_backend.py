# SPDX-License-Identifier: Apache-2.0
"""What is special to files behind the C engine: who owns memory and handles, and for how long."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from imageio_daemon.errors import Canceled, InUse, NotFast, Shortened, StorageError, Unavailable
from imageio_daemon.image.extents import Extent
from imageio_daemon.operations import operations
from imageio_daemon.storage.backend import Backend, Context
from imageio_daemon.storage.buffers import PAGE, BufferPool
from imageio_daemon.storage.engine import Engine
from imageio_daemon.storage.file import FileBackend
from imageio_daemon.storage.operation import Operation, ZeroMethod
from imageio_daemon.transfers.store import TransferStore
from imageio_daemon.transfers.ticket import Access, Ticket
from imageio_daemon.units import KiB, MiB
from ioutil_ext import ffi, lib
from tests.ioutil.syscall_table import replaced
from tests.support.changes import pwrite
from tests.support.realstorage import loop_device, missing, mounted


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(bytes(MiB))
    return path


@pytest.fixture
async def backend(engine: Engine, image: Path) -> AsyncIterator[FileBackend]:
    backend = await FileBackend.open(engine, str(image), writable=True)
    yield backend
    await backend.close()


class StuckWrites:
    """Writes that reached the kernel and stay there until released."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.release = threading.Event()
        self.seen = b""
        self.error = 0
        self._callback = ffi.callback("ssize_t(int, const void *, size_t, int64_t)", self._pwrite)
        self.table = ffi.new("iou_syscalls *", {"pwrite": self._callback})

    def _pwrite(self, fd: int, memory: Any, length: int, offset: int) -> int:
        if self.error:
            ffi.errno = self.error
            return -1
        self.started.set()
        self.release.wait(30)
        self.seen = bytes(ffi.buffer(memory, length))
        return os.pwrite(fd, ffi.buffer(memory, length), offset)


class StuckSize:
    """Questions for the size that stay in the kernel, once told to."""

    def __init__(self) -> None:
        self.hold = threading.Event()
        self.started = threading.Event()
        self.release = threading.Event()
        self._callback = ffi.callback("int(int, uint64_t *)", self._size)
        self.table = ffi.new("iou_syscalls *", {"size": self._callback})

    def _size(self, fd: int, size: Any) -> int:
        if self.hold.is_set():
            self.started.set()
            self.release.wait(30)
        size[0] = os.fstat(fd).st_size
        return 0


@pytest.fixture
def stuck_size() -> Iterator[StuckSize]:
    stuck = StuckSize()
    lib.iou_set_syscalls(stuck.table)
    yield stuck
    stuck.release.set()
    lib.iou_set_syscalls(ffi.NULL)


@pytest.fixture
def stuck() -> Iterator[StuckWrites]:
    stuck = StuckWrites()
    lib.iou_set_syscalls(stuck.table)
    yield stuck
    stuck.release.set()
    lib.iou_set_syscalls(ffi.NULL)


async def reached(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 30)


async def test_cancelling_the_awaiting_task_keeps_buffer_and_operation_until_the_write_ended(
    backend: FileBackend, pool: BufferPool, stuck: StuckWrites, engine: Engine
) -> None:
    ended: list[Operation] = []
    op = Operation(on_end=ended.append)
    buffer = await pool.acquire(PAGE)
    buffer.view[:PAGE] = b"a" * PAGE

    async def write() -> None:
        try:
            await pwrite(backend, op, buffer.slice(0, PAGE), 0)
        finally:
            buffer.release()
            op.release()

    task = asyncio.create_task(write())
    await reached(stuck.started)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pool.in_use == buffer.size
    assert not ended
    stuck.release.set()
    await engine.release()
    assert pool.in_use == 0
    assert ended == [op]
    assert stuck.seen == b"a" * PAGE


async def test_hung_operation_is_named(
    backend: FileBackend, pool: BufferPool, stuck: StuckWrites, engine: Engine, image: Path
) -> None:
    buffer = await pool.acquire(PAGE)
    writing = asyncio.ensure_future(pwrite(backend, Operation(), buffer.slice(0, PAGE), 8 * KiB))
    await reached(stuck.started)
    [running] = engine.running()
    assert (running.kind, running.path, running.offset, running.length) == ("write", str(image), 8 * KiB, PAGE)
    stuck.release.set()
    await writing
    buffer.release()


async def test_open_that_nobody_awaits_any_more_is_closed(engine: Engine, image: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    future = engine.submit_open(str(image), writable=True)
    fds = len(os.listdir("/proc/self/fd"))
    future.cancel()
    await engine.release()
    assert len(os.listdir("/proc/self/fd")) <= max(before, fds)


@pytest.mark.parametrize("path", ["/nonexistent/image", "/", "/dev/null"])
async def test_what_is_no_image_is_refused_with_the_reason(engine: Engine, path: str) -> None:
    with pytest.raises(StorageError, match=f"open {path}"):
        await FileBackend.open(engine, path, writable=False)


async def test_write_to_a_read_only_image_is_refused(engine: Engine, image: Path, pool: BufferPool) -> None:
    backend = await FileBackend.open(engine, str(image), writable=False)
    buffer = await pool.acquire(PAGE)
    with pytest.raises(StorageError):
        await pwrite(backend, Operation(), buffer.slice(0, PAGE), 0)
    buffer.release()
    assert pool.in_use == 0
    await backend.close()


async def test_error_names_image_range_and_system_call(
    backend: FileBackend, image: Path, pool: BufferPool, stuck: StuckWrites
) -> None:
    stuck.error = errno.ENOSPC
    buffer = await pool.acquire(PAGE)
    with pytest.raises(StorageError) as e:
        await pwrite(backend, Operation(), buffer.slice(0, PAGE), 8 * KiB)
    buffer.release()
    assert str(e.value) == f"write {image} offset=8192 length=4096: pwrite: No space left on device (ENOSPC)"


async def test_engine_that_stops_refuses_new_operations(image: Path) -> None:
    engine = Engine(io_threads=1)
    backend = await FileBackend.open(engine, str(image), writable=True)
    await backend.close()
    assert engine.stop(timeout=10) == []
    with pytest.raises(Unavailable):
        await FileBackend.open(engine, str(image), writable=True)


async def test_fast_zero_of_a_range_that_is_not_fast_is_refused(engine: Engine, loop_device: Path) -> None:
    backend = await FileBackend.open(engine, str(loop_device), writable=True)
    with pytest.raises(NotFast):
        await backend.zero(Operation(), 0, PAGE, allocate=True, fast_only=True)
    await backend.close()


async def test_method_of_zeroing_is_told(backend: FileBackend) -> None:
    method = await backend.zero(Operation(), 0, MiB, allocate=False)
    assert method is ZeroMethod.PUNCH_HOLE


async def test_growing_image_tells_its_size(backend: FileBackend, image: Path) -> None:
    os.truncate(image, 2 * MiB)
    await backend.refresh(Operation())
    assert backend.info.size == 2 * MiB


async def test_image_that_is_one_hole_reads_zero_until_written(
    engine: Engine, tmp_path: Path, pool: BufferPool
) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, MiB)
    backend = await FileBackend.open(engine, str(path), writable=True)
    assert await backend.reads_zero(Operation())
    buffer = await pool.acquire(PAGE)
    await pwrite(backend, Operation(), buffer.slice(0, PAGE), 0)
    buffer.release()
    assert not await backend.reads_zero(Operation())
    await backend.close()


async def test_extents_of_an_image_that_got_shorter_fail(backend: FileBackend, image: Path) -> None:
    os.truncate(image, 64 * KiB)
    extents = aiter(backend.extents(Operation(), 0, MiB, Context.ZERO))
    assert list(await anext(extents)) == [Extent(0, 64 * KiB)]
    with pytest.raises(Shortened) as e:
        await asyncio.wait_for(anext(extents), 10)
    assert e.value.size == 64 * KiB


async def test_read_of_what_an_image_has_lost_tells_where_it_ends(
    backend: FileBackend, image: Path, pool: BufferPool
) -> None:
    os.truncate(image, 64 * KiB)
    buffer = await pool.acquire(PAGE)
    with pytest.raises(Shortened) as e:
        await backend.pread(Operation(), buffer.slice(0, PAGE), 128 * KiB)
    buffer.release()
    assert e.value.size == 64 * KiB


async def test_ticket_is_not_removed_while_the_size_is_asked_for(
    engine: Engine, image: Path, stuck_size: StuckSize
) -> None:
    async def open_backend(ticket: Ticket) -> Backend:
        return await FileBackend.open(engine, ticket.path, writable=True)

    store = TransferStore(open_backend, most_tickets=1, most_connections=1)
    transfer = store.add(
        Ticket(ticket_id="t", url=f"file://{image}", size=MiB, ops=(Access.READ,), timeout=60, inactivity_timeout=60)
    )
    await operations.info(transfer)
    stuck_size.hold.set()
    asking = asyncio.create_task(operations.info(transfer))
    await reached(stuck_size.started)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    with pytest.raises(InUse):
        await store.remove("t", timeout=0.1)
    stuck_size.release.set()
    await store.remove("t", timeout=10)


async def test_image_that_was_closed_may_be_asked_about(engine: Engine, image: Path) -> None:
    backend = await FileBackend.open(engine, str(image), writable=True)
    await backend.close()
    with pytest.raises(Canceled):
        _ = backend.info
    assert backend.generation == 0


# What is available


async def available(engine: Engine, path: Path) -> int | None:
    backend = await FileBackend.open(engine, str(path), writable=True)
    try:
        return await backend.available(Operation())
    finally:
        await backend.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    if reason := missing("tmpfs"):
        pytest.skip(reason)
    with mounted("tmpfs", tmp_path, 4 * MiB) as directory:
        yield directory


async def test_what_the_file_has_is_available_to_it(engine: Engine, small: Path) -> None:
    image, other = small / "image", small / "other"
    image.touch()
    os.truncate(image, 100 * MiB)
    assert await available(engine, image) == 4 * MiB
    image.write_bytes(bytes(MiB))
    assert await available(engine, image) == 4 * MiB
    other.write_bytes(bytes(3 * MiB))
    assert await available(engine, image) == MiB


async def test_file_system_without_a_limit_does_not_tell_what_is_available(engine: Engine, tmp_path: Path) -> None:
    if reason := missing("tmpfs"):
        pytest.skip(reason)
    with mounted("tmpfs", tmp_path, 0) as directory:
        (directory / "image").touch()
        assert await available(engine, directory / "image") is None


async def test_block_device_does_not_tell_what_is_available(engine: Engine, image: Path) -> None:
    if reason := missing("ext4"):
        pytest.skip(reason)
    with loop_device(image) as device:
        assert await available(engine, device) is None


async def test_failure_to_learn_what_is_available_is_not_known(engine: Engine, image: Path) -> None:
    def space(fd: int) -> int:
        raise OSError(errno.EIO, "on purpose")

    with replaced(space=space):
        assert await available(engine, image) is None
