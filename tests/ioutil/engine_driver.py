# SPDX-License-Identifier: Apache-2.0
"""The C storage engine for tests: the same code by a call (Image) and through queues (Engine, Queue)."""

import mmap
import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ioutil_ext import ffi, lib

#: Nothing here may take this long; a test that waits so long has failed.
DEADLINE = 20.0


@dataclass(frozen=True)
class Result:
    """A completion, copied out of C."""

    cookie: int
    handle: Any
    done: int
    elapsed: int
    queued: int
    error: int
    syscall: int
    method: int
    count: int
    size: int
    given_up: tuple[int, ...]


class Extent(NamedTuple):
    start: int
    length: int
    hole: bool


class Failed(OSError):
    """An operation that completed with an error."""

    def __init__(self, result: Result) -> None:
        name = ffi.string(lib.iou_syscall_name(result.syscall)).decode()
        super().__init__(result.error, f"{name}: {os.strerror(result.error)}")
        self.result = result


@dataclass(frozen=True)
class Info:
    """iou_info, copied out of C."""

    size: int
    device: int
    step: int
    type: int
    writable: int
    direct: int
    block_size: int
    mem_align: int
    can_punch_hole: int
    can_zero_range: int
    can_fallocate: int
    can_blkzeroout: int
    can_seek_hole: int
    reads_zero: int
    flush_failed: int
    locked: int
    writers: int


def handle_info(handle: Any) -> Info:
    info = ffi.new("iou_info *")
    lib.iou_handle_info(handle, info)
    return Info(**{name: getattr(info, name) for name in Info.__dataclass_fields__})


class Control:
    """iou_control: progress and cancellation."""

    def __init__(self) -> None:
        self.memory = ffi.new("iou_control *")

    @property
    def done(self) -> int:
        return int(self.memory.done)

    def cancel(self) -> None:
        self.memory.canceled = 1


def execute(
    kind: int,
    handle: Any = ffi.NULL,
    *,
    flags: int = 0,
    offset: int = 0,
    length: int = 0,
    buffer: Any = ffi.NULL,
    buffer_size: int = 0,
    control: Control | None = None,
) -> Result:
    """Run an operation in this thread; the GIL is released meanwhile."""
    completion = ffi.new("iou_completion *")
    memory = ffi.NULL if control is None else control.memory
    status = lib.iou_execute(handle, kind, flags, offset, length, buffer, buffer_size, memory, completion)
    result = _copied(completion[0])
    assert status == -result.error, f"returned {status}, completion says {result.error}"
    return result


class Image:
    """An open image, each operation run in the calling thread. Methods raise Failed."""

    def __init__(
        self, path: Path | str, *, writable: bool = True, buffered: bool = False, shared: bool = False
    ) -> None:
        flags = (
            (lib.IOU_WRITABLE if writable else 0)
            | (lib.IOU_BUFFERED if buffered else 0)
            | (lib.IOU_SHARED if shared else 0)
        )
        name = ffi.new("char[]", os.fsencode(path))
        self.handle = _checked(execute(lib.IOU_OPEN, flags=flags, buffer=name, buffer_size=len(name))).handle

    @property
    def info(self) -> Info:
        return handle_info(self.handle)

    @property
    def generation(self) -> int:
        return int(lib.iou_handle_generation(self.handle))

    def read(self, offset: int, length: int) -> bytes:
        buffer = bytearray(length)
        self.run(lib.IOU_READ, offset, length, buffer=ffi.from_buffer(buffer))
        return bytes(buffer)

    def write(self, offset: int, data: bytes | bytearray | mmap.mmap, flags: int = 0) -> Result:
        return self.run(lib.IOU_WRITE, offset, len(data), flags, buffer=ffi.from_buffer(data))

    def zero(self, offset: int, length: int, flags: int = 0, control: Control | None = None) -> Result:
        return self.run(lib.IOU_ZERO, offset, length, flags, control=control)

    def trim(self, offset: int, length: int, flags: int = 0) -> Result:
        return self.run(lib.IOU_TRIM, offset, length, flags)

    def flush(self) -> None:
        self.run(lib.IOU_FLUSH)

    def stat(self) -> None:
        self.run(lib.IOU_STAT)

    def extents(self, offset: int, length: int, most: int = 1000) -> list[Extent]:
        records = ffi.new("iou_extent[]", most)
        result = self.run(lib.IOU_EXTENTS, offset, length, buffer=records, buffer_size=ffi.sizeof(records))
        told = records[0 : result.count]
        bounds = pairwise([offset, *(record.end for record in told)])
        return [Extent(start, end - start, bool(r.flags)) for (start, end), r in zip(bounds, told, strict=True)]

    def run(
        self,
        kind: int,
        offset: int = 0,
        length: int = 0,
        flags: int = 0,
        *,
        buffer: Any = ffi.NULL,
        buffer_size: int = -1,
        control: Control | None = None,
    ) -> Result:
        size = length if buffer_size < 0 else buffer_size
        return _checked(self.attempt(kind, offset, length, flags, buffer=buffer, buffer_size=size, control=control))

    def attempt(self, kind: int, offset: int = 0, length: int = 0, flags: int = 0, **options: Any) -> Result:
        """As run(), but return the result whatever it is."""
        return execute(kind, self.handle, flags=flags, offset=offset, length=length, **options)

    def close(self) -> None:
        handle, self.handle = self.handle, None
        _checked(execute(lib.IOU_CLOSE, handle))

    def __enter__(self) -> "Image":
        return self

    def __exit__(self, *_: object) -> None:
        if self.handle is not None:
            self.close()


class Queue:
    """A completion queue and what was submitted through it."""

    def __init__(self, engine: Any) -> None:
        result = ffi.new("iou_queue **")
        _succeed(lib.iou_queue_new(engine, result))
        self.queue = result[0]
        self._pending: dict[int, tuple[Any, ...]] = {}  # keeps memory alive until the completion was reaped
        self._reaped: dict[int, Result] = {}
        self._next = 1

    @property
    def fd(self) -> int:
        return int(lib.iou_queue_fd(self.queue))

    def submit_open(self, path: Path | str, flags: int = lib.IOU_WRITABLE, *, control: Control | None = None) -> int:
        cookie = self._register((control,))
        counter = ffi.NULL if control is None else control.memory
        _succeed(lib.iou_submit_open(self.queue, cookie, os.fsencode(path), flags, counter))
        return cookie

    def submit_open_chain(self, chain: Any) -> int:
        """Open a Chain of tests/qcow2/disk.py for reading."""
        cookie = self._register((chain,))
        _succeed(lib.iou_submit_open_qcow2(self.queue, cookie, chain.memory, 0, ffi.NULL))
        return cookie

    def submit(
        self,
        kind: int,
        handle: Any,
        offset: int = 0,
        length: int = 0,
        flags: int = 0,
        *,
        buffer: Any = None,
        control: Control | None = None,
    ) -> int:
        memory = ffi.NULL if buffer is None else ffi.from_buffer(buffer)
        size = 0 if buffer is None else len(memory)
        counter = ffi.NULL if control is None else control.memory
        cookie = self._register((buffer, memory, control))
        status = lib.iou_submit(self.queue, cookie, handle, kind, flags, offset, length, memory, size, counter)
        if status != 0:
            del self._pending[cookie]
        _succeed(status)
        return cookie

    def open(self, path: Path | str, flags: int = lib.IOU_WRITABLE) -> Any:
        return _checked(self.wait(self.submit_open(path, flags))).handle

    def run(self, kind: int, handle: Any, *arguments: Any, **options: Any) -> Result:
        return _checked(self.wait(self.submit(kind, handle, *arguments, **options)))

    def close_handle(self, handle: Any) -> None:
        self.run(lib.IOU_CLOSE, handle)

    def reap(self, most: int = 64) -> list[Result]:
        """Reap once, without waiting."""
        completions = ffi.new("iou_completion[]", most)
        count = lib.iou_reap(self.queue, completions, most)
        results = [_copied(completion) for completion in completions[0:count]]
        for result in results:
            del self._pending[result.cookie]
            self._reaped[result.cookie] = result
        return results

    def readable(self, timeout: float = 0) -> bool:
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(timeout * 1000))

    def wait(self, cookie: int, timeout: float = DEADLINE) -> Result:
        """Return the completion of one operation; others are kept for their own wait."""
        end = time.monotonic() + timeout
        while cookie not in self._reaped:
            assert self.readable(max(0, end - time.monotonic())), f"operation {cookie} did not end in {timeout} s"
            self.reap()
        return self._reaped.pop(cookie)

    def wait_all(self) -> list[Result]:
        """Return the completions of all operations submitted, in the order of submission."""
        return [self.wait(cookie) for cookie in sorted([*self._pending, *self._reaped])]

    def free(self) -> None:
        _succeed(lib.iou_queue_free(self.queue))

    def _register(self, memory: tuple[Any, ...]) -> int:
        cookie = self._next
        self._next += 1
        self._pending[cookie] = memory
        return cookie


class Engine:
    """Worker threads, with the queues made for them."""

    def __init__(self, max_threads: int = 8, idle_ms: int = 1000) -> None:
        result = ffi.new("iou_engine **")
        _succeed(lib.iou_engine_new(max_threads, idle_ms, result))
        self.engine = result[0]
        self.queues: list[Queue] = []

    def queue(self) -> Queue:
        queue = Queue(self.engine)
        self.queues.append(queue)
        return queue

    @property
    def stats(self) -> Any:
        stats = ffi.new("iou_stats *")
        lib.iou_engine_stats(self.engine, stats)
        return stats

    @property
    def idle(self) -> bool:
        stats = self.stats
        return not stats.busy and not stats.queued

    def running(self, most: int = 16) -> list[Any]:
        records = ffi.new("iou_running[]", most)
        count = lib.iou_engine_running(self.engine, records, most)
        # Items of an array refer to it, so the list keeps it alive only with the array beside them.
        return [ffi.new("iou_running *", record) for record in records[0:count]]

    def cancel_queued(self) -> int:
        return int(lib.iou_cancel_queued(self.engine))

    def stop(self, timeout: float = DEADLINE) -> int:
        return int(lib.iou_engine_stop(self.engine, int(timeout * 1000)))

    def free(self) -> None:
        for queue in self.queues:
            queue.wait_all()
            queue.free()
        _succeed(lib.iou_engine_free(self.engine))


@contextmanager
def running_engine(max_threads: int = 8, idle_ms: int = 1000) -> Iterator[Engine]:
    """Run an engine; at the end everything must have ended by itself."""
    engine = Engine(max_threads, idle_ms)
    try:
        yield engine
    finally:
        left = engine.stop()
    assert left == 0
    engine.free()


def eventually(condition: Callable[[], object], timeout: float = DEADLINE) -> None:
    """Wait until a condition holds that nothing announces."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "did not become true in time"
        select.select([], [], [], 0.002)


def aligned(data: bytes) -> mmap.mmap:
    """Return a page-aligned copy."""
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    return memory


def _copied(completion: Any) -> Result:
    fields = {name: getattr(completion, name) for name in Result.__dataclass_fields__}
    return Result(**{**fields, "given_up": tuple(completion.given_up)})


def _checked(result: Result) -> Result:
    if result.error != 0:
        raise Failed(result)
    return result


def _succeed(status: int) -> None:
    if status != 0:
        raise OSError(-status, os.strerror(-status))
