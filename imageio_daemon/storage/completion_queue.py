# SPDX-License-Identifier: Apache-2.0
"""The event loop's queue in the C engine. Submissions become futures, and completions are reaped in batches."""

import asyncio
import errno
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ioutil_ext import ffi, lib

from ..errors import Error, StorageError, Unavailable
from ..runtime.background import NoThread, tell_lack
from .completions import METHODS, SLOW_NS, check, describe, extent_list, no_fault, syscall_name, tell
from .operation import Holder

log = logging.getLogger(__name__)

#: Most completions of one call of iou_reap(). The next step of the loop takes the rest. A record has 72 bytes.
REAP_BATCH = 64

_ZEROING = (lib.IOU_ZERO, lib.IOU_TRIM)

#: See Backend.explain().
Explain = Callable[[Any], Error | None]


def no_more(_: Any) -> Error | None:
    """Return None: C's numbers say it all."""
    return None


@dataclass(eq=False, slots=True)
class Submission:
    """An operation for the engine: its range in bytes, and the objects that live until its end.

    `name` is the image's, for errors. The holders are retained, and `held` is memory that C reads or fills.
    """

    kind: int
    name: str
    flags: int = 0
    offset: int = 0
    length: int = 0
    holders: tuple[Holder, ...] = ()
    explain: Explain = no_more
    held: Any = None
    future: "asyncio.Future[Any]" = field(init=False)

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
        self._pending: dict[int, Submission] = {}
        self._completions = ffi.new("iou_completion[]", REAP_BATCH)
        self._drained: asyncio.Future[None] | None = None
        self._loop.add_reader(lib.iou_queue_fd(self._queue), self._reap)

    def submit(self, pending: Submission, call: Callable[[Any, int], int]) -> "asyncio.Future[Any]":
        """Start an operation by a function of C, which gets the queue and a cookie, and returns 0 or a negative errno.

        Its completion cannot come before this has noted it, because this thread reaps it. Raises Unavailable if the
        engine is stopping, NoThread, and StorageError if it does not accept the operation.
        """
        pending.future = self._loop.create_future()  # before C has the operation, so that nothing can fail after that
        cookie = next(self._cookies)
        code = call(self._queue, cookie)
        if -code == errno.ESHUTDOWN:
            raise Unavailable("The server is shutting down")
        if -code == errno.ENOMEM:
            tell_lack("start of a thread for storage")
            raise NoThread
        if code:
            raise StorageError(-code, pending.what, "submit")
        for holder in pending.holders:
            holder.retain()
        self._pending[cookie] = pending
        return pending.future

    async def drain(self) -> None:
        """Wait until no operation is pending."""
        while self._pending:
            self._drained = self._loop.create_future()
            await self._drained

    def free(self) -> None:
        """Free the queue. No operation may be pending. Raises StorageError."""
        self._loop.remove_reader(lib.iou_queue_fd(self._queue))
        check(lib.iou_queue_free(self._queue), "free a completion queue")

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

    def _finish(self, pending: Submission, completion: Any) -> None:
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
            future.set_result(extent_list(pending.held, completion.count, pending.offset))
        elif pending.kind == lib.IOU_STAT:
            future.set_result(completion.size)
        else:
            future.set_result(None)
        for holder in pending.holders:
            holder.release()
        _tell(pending, completion)  # at last, so that an error here leaves no task waiting

    def _abandon(self, pending: Submission, completion: Any) -> None:
        if completion.error and completion.error != errno.ECANCELED:
            log.warning("%s", _failure(pending, completion))
        if handle := completion.handle:
            self.submit(
                Submission(lib.IOU_CLOSE, pending.name),
                lambda queue, cookie: lib.iou_submit(
                    queue, cookie, handle, lib.IOU_CLOSE, 0, 0, 0, ffi.NULL, 0, ffi.NULL
                ),
            )


def _failure(pending: Submission, completion: Any) -> Error:
    error = pending.explain(completion) or no_fault(completion, pending.flags)
    return error or StorageError(completion.error, pending.what, syscall_name(completion.syscall))


def _tell(pending: Submission, completion: Any) -> None:
    if completion.elapsed > SLOW_NS or pending.kind in _ZEROING:
        tell(pending.what, pending.name, completion.elapsed, completion.given_up)
