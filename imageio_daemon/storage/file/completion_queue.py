# SPDX-License-Identifier: Apache-2.0
"""The event loop's queue in the C engine. Submissions become futures, and completions are reaped in batches."""

import asyncio
import errno
import itertools
import logging
import os
from collections.abc import Callable
from typing import Any

from ioutil_ext import ffi, lib

from ...errors import Error, StorageError, Unavailable
from ..backend import Holder, Operation
from ..completions import METHODS, SLOW_NS, check, describe, extent_list, no_fault, syscall_name, tell

log = logging.getLogger(__name__)

#: Most completions of one call of iou_reap(). The next step of the loop takes the rest. A record has 72 bytes.
REAP_BATCH = 64

_ZEROING = (lib.IOU_ZERO, lib.IOU_TRIM)

#: See EngineImage.explain().
Explain = Callable[[Any], Error | None]


def no_more(_: Any) -> Error | None:
    """Return None: C's numbers say it all."""
    return None


class _Pending:
    __slots__ = ("explain", "flags", "future", "holders", "kind", "length", "name", "offset", "records")

    def __init__(
        self,
        future: "asyncio.Future[Any]",
        kind: int,
        name: str,
        flags: int,
        offset: int,
        length: int,
        holders: tuple[Holder, ...],
        explain: Explain = no_more,
        records: Any = None,
    ) -> None:
        self.future = future
        self.explain = explain
        self.kind = kind
        self.name = name
        self.flags = flags
        self.offset = offset
        self.length = length
        self.holders = holders
        self.records = records  # memory that C reads or fills

    @property
    def what(self) -> str:
        """Return the operation in words, for the log: kind, image, range."""
        return describe(self.kind, self.name, self.offset, self.length)


class CompletionQueue:
    """Submit operations to the engine and reap their completions, on the running loop.

    Raises StorageError if C cannot make a queue.
    """

    def __init__(self, engine: Any) -> None:
        result = ffi.new("iou_queue **")
        check(lib.iou_queue_new(engine, result), "make a completion queue")
        self._loop = asyncio.get_running_loop()
        self._queue = result[0]
        self._cookies = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._completions = ffi.new("iou_completion[]", REAP_BATCH)
        self._drained: asyncio.Future[None] | None = None
        self._loop.add_reader(lib.iou_queue_fd(self._queue), self._reap)

    def submit_open(self, path: str, flags: int, op: Operation | None) -> "asyncio.Future[Any]":
        """Start to open an image; see Engine.submit_open(). Raises Unavailable, StorageError."""
        holders = () if op is None else (op,)
        pending = _Pending(self._loop.create_future(), lib.IOU_OPEN, path, flags, 0, 0, holders)
        cookie = next(self._cookies)
        control = ffi.NULL if op is None else op.control
        code = lib.iou_submit_open(self._queue, cookie, os.fsencode(path), flags, control)
        return self._submitted(code, cookie, pending)

    def submit_open_qcow2(self, chain: Any, path: str, flags: int, op: Operation) -> "asyncio.Future[Any]":
        """Start to open an image in the format qcow2; see Engine.submit_open_qcow2()."""
        pending = _Pending(self._loop.create_future(), lib.IOU_OPEN, path, flags, 0, 0, (op,), records=chain)
        cookie = next(self._cookies)
        code = lib.iou_submit_open_qcow2(self._queue, cookie, chain, flags, op.control)
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
        explain: Explain = no_more,
        records: Any = None,
    ) -> "asyncio.Future[Any]":
        """Start an operation; see Engine.submit(). `records` is memory that C fills for EXTENTS.

        Raises Unavailable if the engine is stopping, and StorageError if it does not accept the operation.
        """
        pending = _Pending(self._loop.create_future(), kind, name, flags, offset, length, holders, explain, records)
        cookie = next(self._cookies)
        code = lib.iou_submit(self._queue, cookie, handle, kind, flags, offset, length, memory, memory_size, control)
        return self._submitted(code, cookie, pending)

    async def drain(self) -> None:
        """Wait until no operation is pending."""
        while self._pending:
            self._drained = self._loop.create_future()
            await self._drained

    def free(self) -> None:
        """Free the queue. No operation may be pending. Raises StorageError."""
        self._loop.remove_reader(lib.iou_queue_fd(self._queue))
        check(lib.iou_queue_free(self._queue), "free a completion queue")

    def _submitted(self, code: int, cookie: int, pending: _Pending) -> "asyncio.Future[Any]":
        """Note an operation that C has accepted. Its completion cannot come before, because this thread reaps it.

        `code` is the result of the submission. Raises Unavailable, StorageError.
        """
        if -code == errno.ESHUTDOWN:
            raise Unavailable("The server is shutting down")
        if code:
            raise StorageError(-code, pending.what, "submit")
        for holder in pending.holders:
            holder.retain()
        self._pending[cookie] = pending
        return pending.future

    def _reap(self) -> None:
        # If more than a batch is ready, the eventfd stays readable, and the next step of the loop reaps the rest.
        count = lib.iou_reap(self._queue, self._completions, REAP_BATCH)
        for i in range(count):
            completion = self._completions[i]
            pending = self._pending.pop(completion.cookie)
            try:
                self._finish(pending, completion)
            except Exception as e:  # noqa: BLE001 - a bug in a holder is logged, and the other completions are reaped
                message = f"after the end of {pending.what}"
                self._loop.call_exception_handler({"message": message, "exception": e})
        if not self._pending and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _finish(self, pending: _Pending, completion: Any) -> None:
        future = pending.future
        if future.cancelled():
            self._abandon(pending, completion)
        elif completion.error:
            future.set_exception(_failure(pending, completion))
            # The awaiting task may be gone. Then asyncio must not log the error: the end of the connection is logged.
            future.exception()
        elif pending.kind == lib.IOU_ZERO:
            future.set_result(METHODS[completion.method])
        elif pending.kind == lib.IOU_OPEN:
            future.set_result(completion.handle)
        elif pending.kind == lib.IOU_EXTENTS:
            future.set_result(extent_list(pending.records, completion.count, pending.offset))
        elif pending.kind == lib.IOU_STAT:
            future.set_result(completion.size)
        else:
            future.set_result(None)
        for holder in pending.holders:
            holder.release()
        _tell(pending, completion)  # at last, so that an error here leaves no task waiting

    def _abandon(self, pending: _Pending, completion: Any) -> None:
        if completion.error and completion.error != errno.ECANCELED:
            log.warning("%s", _failure(pending, completion))
        if completion.handle:
            self.submit(lib.IOU_CLOSE, completion.handle, 0, 0, 0, ffi.NULL, 0, ffi.NULL, (), pending.name)


def _failure(pending: _Pending, completion: Any) -> Error:
    error = pending.explain(completion) or no_fault(completion, pending.flags)
    return error or StorageError(completion.error, pending.what, syscall_name(completion.syscall))


def _tell(pending: _Pending, completion: Any) -> None:
    if completion.elapsed > SLOW_NS or pending.kind in _ZEROING:
        tell(pending.what, pending.name, completion.elapsed, completion.given_up)
