# SPDX-License-Identifier: Apache-2.0
"""The C engine for asyncio: worker threads, and the queue of the event loop."""

import asyncio
import os
from typing import Any, NamedTuple

from ioutil_ext import ffi, lib

from ..image.chain import ChainMemory
from ..runtime.background import surely
from .completion_queue import CompletionQueue, Explain, Submission, no_more
from .completions import check, kind_name
from .operation import Holder, Operation

#: Milliseconds after which a worker thread without work ends.
IDLE_MS = 10_000


class Running(NamedTuple):
    """An operation that a worker thread runs. `seconds` is the time since its start."""

    kind: str
    path: str
    offset: int
    length: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.kind} {self.path} offset={self.offset} length={self.length} for {self.seconds:.0f} s"


class Load(NamedTuple):
    """The number of worker threads, of those that run an operation, and of operations that wait."""

    threads: int
    busy: int
    queued: int


def async_io_error() -> str | None:
    """Return why the kernel refuses asynchronous I/O (io_setup(2)), or None if it does not.

    Without asynchronous I/O, worker threads do the reads and writes of lanes.
    """
    error = lib.iou_async_io()
    return os.strerror(-error) if error else None


class Engine:
    """Own the worker threads of the process. Use this on the event loop, except running() and load()."""

    def __init__(self, io_threads: int) -> None:
        result = ffi.new("iou_engine **")
        check(lib.iou_engine_new(io_threads, IDLE_MS, result), "start storage threads")
        #: It stays as long as anything refers to it, so that no thread uses what another one has freed. C frees it
        #: after stop(), unless threads are left.
        self._engine = ffi.gc(result[0], lib.iou_engine_free)
        self._queue: CompletionQueue | None = None

    def submit_open(
        self, path: str, *, writable: bool, shared: bool = False, op: Operation | None = None
    ) -> "asyncio.Future[Any]":
        """Open an image. The result of the future is the handle, which the caller closes with close().

        With `shared`, other programs may use an image that is writable here. If `op` is cancelled, the open ends while
        it waits for a thread. The future fails as that of submit(), or with ImageInUse.
        """
        flags, control = _open_flags(writable=writable, shared=shared), ffi.NULL if op is None else op.control
        return self._of_loop().submit(
            Submission(lib.IOU_OPEN, path, flags, holders=() if op is None else (op,)),
            lambda queue, cookie: lib.iou_submit_open(queue, cookie, os.fsencode(path), flags, control),
        )

    def submit_open_qcow2(
        self, memory: ChainMemory, path: str, *, writable: bool, shared: bool, op: Operation
    ) -> "asyncio.Future[Any]":
        """Open an image in the format qcow2, as submit_open() does. Retains the memory until the open has ended.

        If `op` is cancelled, the open ends also while it reads the tables, as it does for writing.
        """
        flags = _open_flags(writable=writable, shared=shared)
        return self._of_loop().submit(
            Submission(lib.IOU_OPEN, path, flags, holders=(op,), held=memory),
            lambda queue, cookie: lib.iou_submit_open_qcow2(queue, cookie, memory.chain, flags, op.control),
        )

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
        explain: Explain = no_more,
    ) -> "asyncio.Future[Any]":
        """Start an operation on the running loop. Retains the holders and the memory until it has ended.

        `name` is the image's, for errors. For `explain`, see Backend.explain(). The future fails with StorageError,
        Canceled, NotFast or Unavailable. Cancelling the future does not end the operation.
        """
        return self._of_loop().submit(
            Submission(kind, name, flags, offset, length, holders, explain, memory),
            lambda queue, cookie: lib.iou_submit(
                queue, cookie, handle, kind, flags, offset, length, memory, memory_size, control
            ),
        )

    async def close(self, handle: Any, name: str) -> None:
        """Close an image. While there is no thread for this, wait for one: an image that is open stays locked.

        Raises StorageError, and Unavailable if the engine is stopping, which closes it.
        """
        await surely(lambda: self.submit(lib.IOU_CLOSE, handle, name=name))

    def cancel_queued(self) -> None:
        """End cancelled operations that wait for a thread."""
        lib.iou_cancel_queued(self._engine)

    def running(self, most: int = 16) -> list[Running]:
        """Return at most `most` operations that worker threads run, longest first."""
        records = ffi.new("iou_running[]", most)
        count = lib.iou_engine_running(self._engine, records, most)
        return [
            Running(kind_name(r.kind), os.fsdecode(ffi.string(r.path)), r.offset, r.length, r.elapsed / 1e9)
            for r in records[0:count]
        ]

    def load(self) -> Load:
        """Return the present load of the worker threads."""
        stats = ffi.new("iou_stats *")
        lib.iou_engine_stats(self._engine, stats)
        return Load(int(stats.threads), int(stats.busy), int(stats.queued))

    def new_lanes(self, memory: int) -> Any:
        """Return C's object that the lanes of this engine share, with `memory` bytes for them; see lanes/shared.py.

        It stays as long as anything refers to it, and in C as long as lanes are left.
        """
        result = ffi.new("iou_lanes **")
        check(lib.iou_lanes_new(self._engine, memory, result), "prepare the lanes")
        return ffi.gc(result[0], lib.iou_lanes_free)

    async def release(self) -> None:
        """Wait for the operations of the event loop, and free its queue."""
        queue, self._queue = self._queue, None
        if queue is not None:
            await queue.drain()
            queue.free()

    def stop(self, timeout: float) -> list[Running]:
        """Refuse new operations, and block until running ones have ended. Return those that run after `timeout` s."""
        return self.running() if lib.iou_engine_stop(self._engine, int(timeout * 1000)) else []

    def _of_loop(self) -> CompletionQueue:
        if self._queue is None:
            self._queue = CompletionQueue(self._engine)
        return self._queue


def _open_flags(*, writable: bool, shared: bool) -> int:
    return (lib.IOU_WRITABLE if writable else 0) | (lib.IOU_SHARED if shared else 0)
