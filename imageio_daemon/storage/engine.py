# SPDX-License-Identifier: Apache-2.0
"""The asyncio side of the C engine: submissions become futures, completions of a loop are reaped in batches."""

import asyncio
import errno
import itertools
import logging
import os
import threading
from array import array
from typing import Any, NamedTuple, Protocol

from ioutil_ext import ffi, lib

from ..errors import Canceled, NotFast, StorageError, Unavailable
from ..extents import ExtentList
from .base import Operation, ZeroMethod

log = logging.getLogger(__name__)

#: Completions moved in one call. More than one loop turn can have ready; a record is 64 bytes.
REAP_BATCH = 64
#: Worker threads without work end after this many milliseconds.
IDLE_MS = 10_000
#: Operations that took longer are logged.
SLOW_NS = lib.IOU_SLOW_SECONDS * 10**9

#: How C names the methods.
METHODS = {
    lib.IOU_METHOD_NONE: ZeroMethod.NONE,
    lib.IOU_METHOD_PUNCH_HOLE: ZeroMethod.PUNCH_HOLE,
    lib.IOU_METHOD_ZERO_RANGE: ZeroMethod.ZERO_RANGE,
    lib.IOU_METHOD_ALLOCATE: ZeroMethod.ALLOCATE,
    lib.IOU_METHOD_PUNCH_AND_ALLOCATE: ZeroMethod.PUNCH_AND_ALLOCATE,
    lib.IOU_METHOD_BLKZEROOUT: ZeroMethod.BLKZEROOUT,
    lib.IOU_METHOD_WRITE: ZeroMethod.WRITE,
}


class Holder(Protocol):
    """Something that must live until an operation has ended: a buffer, an operation, plain memory."""

    def retain(self) -> None:
        """Count one more user."""

    def release(self) -> None:
        """Count one less."""


class Running(NamedTuple):
    """An operation that a thread is busy with; `seconds` since its start."""

    kind: str
    path: str
    offset: int
    length: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.kind} {self.path} offset={self.offset} length={self.length} for {self.seconds:.0f} s"


class Engine:
    """Own the worker threads of the process. Used from any loop; each gets a queue of its own."""

    def __init__(self, io_threads: int) -> None:
        result = ffi.new("iou_engine **")
        _check(lib.iou_engine_new(io_threads, IDLE_MS, result), "start storage threads")
        self._engine = result[0]
        self._lock = threading.Lock()
        self._queues: dict[asyncio.AbstractEventLoop, _LoopQueue] = {}

    def submit_open(
        self, path: str, *, writable: bool, buffered: bool = False, op: Operation | None = None
    ) -> "asyncio.Future[Any]":
        """Open an image; the future's result has the handle. Nobody may drop that handle without close.

        op: cancelling it ends the open while it waits for a thread.
        """
        flags = (lib.IOU_WRITABLE if writable else 0) | (lib.IOU_BUFFERED if buffered else 0)
        return self._queue().submit_open(path, flags, op)

    def submit(
        self,
        kind: int,
        handle: Any,
        *,
        flags: int = 0,
        offset: int = 0,
        length: int = 0,
        memory: Any = ffi.NULL,
        memory_size: int = 0,
        control: Any = ffi.NULL,
        holders: tuple[Holder, ...] = (),
        name: str = "",
    ) -> "asyncio.Future[Any]":
        """Start an operation on the running loop; the holders are retained until it has ended.

        name: the image's, for errors. The future fails with StorageError, Canceled, NotFast or Unavailable. Cancelling
        it does not end the operation.
        """
        return self._queue().submit(kind, handle, flags, offset, length, memory, memory_size, control, holders, name)

    def submit_extents(
        self, handle: Any, op: Operation, offset: int, length: int, *, most: int, name: str
    ) -> "asyncio.Future[ExtentList]":
        """Start to look at a range; the future's result tells at most so many extents from its beginning.

        They end where the image does. See submit().
        """
        records = _new_records(_RECORDS, most)
        size = most * _RECORD_SIZE
        return self._queue().submit(
            lib.IOU_EXTENTS, handle, 0, offset, length, records, size, op.control, (op,), name, records
        )

    def cancel_queued(self) -> None:
        """End operations that wait for a thread and whose control is cancelled."""
        lib.iou_cancel_queued(self._engine)

    def running(self, most: int = 16) -> list[Running]:
        """Return what threads are busy with, longest first."""
        records = ffi.new("iou_running[]", most)
        count = lib.iou_engine_running(self._engine, records, most)
        return [
            Running(
                ffi.string(lib.iou_kind_name(r.kind)).decode(),
                ffi.string(r.path).decode(errors="replace"),
                r.offset,
                r.length,
                r.elapsed / 1e9,
            )
            for r in records[0:count]
        ]

    def new_lanes(self, memory: int) -> Any:
        """Return what lanes of this engine share, with so many bytes of memory; see lane.py."""
        result = ffi.new("iou_lanes **")
        _check(lib.iou_lanes_new(self._engine, memory, result), "prepare for NBD")
        return result[0]

    async def release_loop(self) -> None:
        """Give up the running loop's queue; waits for its operations."""
        queue = self._queues.get(asyncio.get_running_loop())
        if queue is not None:
            await queue.drain()
            with self._lock:
                del self._queues[queue.loop]
            queue.free()

    def stop(self, timeout: float) -> list[Running]:
        """Refuse new operations and wait, blocking, for those that run; return those that still do after timeout s."""
        if lib.iou_engine_stop(self._engine, int(timeout * 1000)) == 0:
            with self._lock:
                left = list(self._queues.values())
            code = 0 if left else lib.iou_engine_free(self._engine)
            if -code == errno.EBUSY:
                log.warning("threads of connections are left")
            else:
                _check(code, "free storage threads")
            return []
        return self.running()

    def _queue(self) -> "_LoopQueue":
        loop = asyncio.get_running_loop()
        queue = self._queues.get(loop)
        if queue is None:
            queue = _LoopQueue(self._engine, loop)
            with self._lock:
                self._queues[loop] = queue
        return queue


class _Pending:
    __slots__ = ("flags", "future", "holders", "kind", "length", "name", "offset", "records")

    def __init__(
        self,
        future: "asyncio.Future[Any]",
        kind: int,
        name: str,
        flags: int,
        offset: int,
        length: int,
        holders: tuple[Holder, ...],
        records: Any = None,
    ) -> None:
        self.future = future
        self.kind = kind
        self.name = name
        self.flags = flags
        self.offset = offset
        self.length = length
        self.holders = holders
        self.records = records  # which C fills

    @property
    def what(self) -> str:
        """Return what was asked of which image, for the log."""
        return describe(self.kind, self.name, self.offset, self.length)


class _LoopQueue:
    """Submit and reap for one loop. All methods run on that loop."""

    def __init__(self, engine: Any, loop: asyncio.AbstractEventLoop) -> None:
        result = ffi.new("iou_queue **")
        _check(lib.iou_queue_new(engine, result), "make a completion queue")
        self.loop = loop
        self._queue = result[0]
        self._cookies = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._completions = ffi.new("iou_completion[]", REAP_BATCH)
        self._drained: asyncio.Future[None] | None = None
        loop.add_reader(lib.iou_queue_fd(self._queue), self._reap)

    def submit_open(self, path: str, flags: int, op: Operation | None) -> "asyncio.Future[Any]":
        holders = () if op is None else (op,)
        pending = _Pending(self.loop.create_future(), lib.IOU_OPEN, path, flags, 0, 0, holders)
        cookie = next(self._cookies)
        control = ffi.NULL if op is None else op.control
        code = lib.iou_submit_open(self._queue, cookie, path.encode(), flags, control)
        return self._submitted(code, cookie, pending)

    def submit(
        self,
        kind: int,
        handle: Any,
        flags: int,
        offset: int,
        length: int,
        memory: Any,
        memory_size: int,
        control: Any,
        holders: tuple[Holder, ...],
        name: str,
        records: Any = None,
    ) -> "asyncio.Future[Any]":
        pending = _Pending(self.loop.create_future(), kind, name, flags, offset, length, holders, records)
        cookie = next(self._cookies)
        code = lib.iou_submit(self._queue, cookie, handle, kind, flags, offset, length, memory, memory_size, control)
        return self._submitted(code, cookie, pending)

    async def drain(self) -> None:
        """Wait until nothing is pending."""
        while self._pending:
            self._drained = self.loop.create_future()
            await self._drained

    def free(self) -> None:
        self.loop.remove_reader(lib.iou_queue_fd(self._queue))
        _check(lib.iou_queue_free(self._queue), "free a completion queue")

    def _submitted(self, code: int, cookie: int, pending: _Pending) -> "asyncio.Future[Any]":
        """Note what C has accepted. It cannot be reaped before this, because this thread does that."""
        if -code == errno.ESHUTDOWN:
            raise Unavailable("The server is shutting down")
        if code:
            raise StorageError(-code, pending.what, "submit")
        for holder in pending.holders:
            holder.retain()
        self._pending[cookie] = pending
        return pending.future

    def _reap(self) -> None:
        # When more than a batch was ready the eventfd stays readable, so the rest has the loop's next turn.
        count = lib.iou_reap(self._queue, self._completions, REAP_BATCH)
        for i in range(count):
            completion = self._completions[i]
            pending = self._pending.pop(completion.cookie)
            try:
                self._finish(pending, completion)
            except Exception as e:  # noqa: BLE001 - a bug in a holder is told and costs nobody else a completion
                message = f"after the end of {pending.what}"
                self.loop.call_exception_handler({"message": message, "exception": e})
        if not self._pending and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _finish(self, pending: _Pending, completion: Any) -> None:
        future = pending.future
        if future.cancelled():
            self._abandon(pending, completion)
        elif completion.error:
            future.set_exception(_failure(pending, completion))
            # Who awaited may be gone; the error is then the connection's, which is logged where it ended.
            future.exception()
        elif pending.kind == lib.IOU_ZERO:
            future.set_result(METHODS[completion.method])
        elif pending.kind == lib.IOU_OPEN:
            future.set_result(completion.handle)
        elif pending.kind == lib.IOU_EXTENTS:
            future.set_result(_extent_list(pending, completion.count))
        else:
            future.set_result(None)
        for holder in pending.holders:
            holder.release()
        _tell(pending, completion)  # last: whatever goes wrong here, nobody waits for ever

    def _abandon(self, pending: _Pending, completion: Any) -> None:
        if completion.error and completion.error != errno.ECANCELED:
            log.warning("%s", _failure(pending, completion))
        if completion.handle:
            self.submit(lib.IOU_CLOSE, completion.handle, 0, 0, 0, ffi.NULL, 0, ffi.NULL, (), pending.name)


def describe(kind: int, name: str, offset: int, length: int) -> str:
    """Return what was asked of which image, for the log."""
    where = f" offset={offset} length={length}" if length else ""
    return f"{_KINDS[kind]} {name}{where}"


def _tell(pending: _Pending, completion: Any) -> None:
    if completion.elapsed > SLOW_NS or pending.kind in _ZEROING:
        tell(pending.what, pending.name, completion.elapsed, completion.given_up)


def tell(what: str, name: str, elapsed: int, given_up: Any) -> None:
    """Log what is worth knowing of the storage, whatever became of the operation. elapsed in ns."""
    if elapsed > SLOW_NS:
        log.warning("slow storage: %s took %.1f s", what, elapsed / 1e9)
    for syscall, code in enumerate(given_up, lib.IOU_SYS_PUNCH_HOLE):
        if code:
            log.info("no %s on %s: %s", syscall_name(syscall), name, os.strerror(code))


_ZEROING = (lib.IOU_ZERO, lib.IOU_TRIM)
_KINDS = {
    kind: ffi.string(lib.iou_kind_name(kind)).decode()
    for kind in (
        lib.IOU_OPEN,
        lib.IOU_CLOSE,
        lib.IOU_STAT,
        lib.IOU_READ,
        lib.IOU_WRITE,
        lib.IOU_ZERO,
        lib.IOU_TRIM,
        lib.IOU_FLUSH,
        lib.IOU_EXTENTS,
    )
}


def _extent_list(pending: _Pending, count: int) -> ExtentList:
    """Return what C has told, without a step of Python for each extent."""
    numbers = memoryview(ffi.buffer(pending.records, count * _RECORD_SIZE)).cast("Q")
    bounds = array("Q", numbers[::3].tobytes())
    bounds.append(numbers[-3] + numbers[-2] if count else pending.offset)
    return ExtentList(bounds, bytes(numbers[2::3].tolist()))  # C's 1 is ZERO


_RECORDS = ffi.typeof("iou_extent[]")
_RECORD_SIZE = ffi.sizeof("iou_extent")
#: Without zeroing them: C fills what is read.
_new_records = ffi.new_allocator(should_clear_after_alloc=False)


def _failure(pending: _Pending, completion: Any) -> Exception:
    code = completion.error
    if code == errno.ECANCELED:
        return Canceled()
    if code == errno.ENOTSUP and pending.flags & lib.IOU_FAST_ONLY:
        return NotFast()
    return StorageError(code, pending.what, syscall_name(completion.syscall))


def syscall_name(number: int) -> str:
    """Return the name for the log."""
    return str(ffi.string(lib.iou_syscall_name(number)).decode())


def _check(code: int, what: str) -> None:
    if code:
        raise StorageError(-code, what, "engine")
