# SPDX-License-Identifier: Apache-2.0
"""Requests at work: each becomes operations on the image, and their end a reply."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from ... import operations, starting
from ...buffers import Slice
from ...errors import Error
from ...extents import ExtentList
from ...nbdproto.constants import Command, CommandFlag, ErrorNumber
from ...nbdproto.replies import Replies
from ...nbdproto.transmission import ALLOCATION_ID, Request
from ...storage.base import Backend
from ...transfers import Transfer
from .blockstatus import Answer, BlockStatus
from .errors import answer
from .output import Output
from .reads import Reads
from .share import Share

_READ = int(Command.READ)

Task = Coroutine[Any, Any, bytes | None]


class Commands:
    """Run the requests of one connection, in any order. on_end: told after each whether the connection ends with it."""

    def __init__(
        self,
        transfer: Transfer,
        backend: Backend,
        size: int,
        replies: Replies,
        share: Share,
        output: Output,
        on_end: Callable[[bool], None],
    ) -> None:
        self._transfer = transfer
        self._backend = backend
        self._replies = replies
        self._share = share
        self._output = output
        self._on_end = on_end
        self._reads = Reads(transfer, backend, size, replies, share, output)
        self._status = BlockStatus(transfer, backend)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[bytes | None]] = set()
        self._writes: dict[Request, _Write] = {}
        #: Requests that are not answered yet, and all there were.
        self.running = 0
        self.count = 0

    def begin(self, request: Request) -> None:
        """Act on a request that has no payload, or whose payload was not wanted."""
        self._started()
        command = request.command
        if request.error is not None:
            self._fail(request, request.error, request.text)
        elif command == _READ and request.length:
            self._read(request)
        elif not self._allowed(request):
            return  # it was answered
        elif command == Command.FLUSH:
            self._run(request, self._change(request, operations.flush(self._transfer)))
        elif command == Command.CACHE or not request.length:
            self._do_nothing(request)
        elif command == Command.WRITE_ZEROES:
            self._run(request, self._change(request, self._zero(request)))
        elif command == Command.TRIM:
            trim = operations.trim(self._transfer, request.offset, request.length, flush=request.fua)
            self._run(request, self._change(request, trim))
        elif command == Command.BLOCK_STATUS:
            self._block_status(request)
        else:
            raise AssertionError(request)

    def payload(self, request: Request, piece: Slice, offset: int, *, last: bool) -> None:
        """Write a piece of a request's payload."""
        write = self._writes.pop(request, None)
        if write is None:
            self._started()
            write = _Write()
        if last:
            write.complete = True
        else:
            self._writes[request] = write
        write.running += 1
        try:
            future = starting.start_write(self._transfer, self._backend, piece, offset, fua=request.fua)
        except Error as e:
            self._written(request, write, piece, e)
        else:
            future.add_done_callback(partial(self._write_done, request, write, piece))

    def refuse(self, request: Request, error: ErrorNumber, text: str) -> None:
        """Answer a request that is not acted on."""
        self._started()
        self._fail(request, error, text)

    def close(self) -> None:
        """End what only waits: nobody reads the replies."""
        for task in list(self._tasks):
            task.cancel()
        self.running -= len(self._writes)  # their payload will not become complete
        self._writes.clear()

    # The life of a request

    def _started(self) -> None:
        self.running += 1
        self.count += 1

    def _run(self, request: Request, task: Task) -> None:
        """Run a task that returns the reply, or None when it has sent all."""
        running = self._loop.create_task(task)
        self._tasks.add(running)
        running.add_done_callback(partial(self._task_done, request))

    def _task_done(self, request: Request, task: "asyncio.Task[bytes | None]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            self._end()
            return
        exception = task.exception()
        if exception is not None:
            self._failed(request, exception)
            return
        reply = task.result()
        if reply is not None:
            self._output.send(reply)
        self._end()

    def _failed(self, request: Request, exception: BaseException) -> None:
        error, text, ends = answer(exception, request)
        self._fail(request, error, text, ends=ends)

    def _fail(self, request: Request, error: ErrorNumber, text: str, *, ends: bool = False) -> None:
        self._output.send(self._replies.failure(request, error, text))
        self._end(ends=ends)

    def _end(self, *, ends: bool = False) -> None:
        self.running -= 1
        self._on_end(ends)

    # Commands

    def _do_nothing(self, request: Request) -> None:
        """Answer an empty range, and CACHE: images are read past the page cache, so there is nothing to fill."""
        self._output.send(self._replies.success(request))
        self._end()

    def _allowed(self, request: Request) -> bool:
        """Tell whether the ticket is still good, and answer the request if it is not."""
        try:
            self._transfer.require(None)
        except Error as e:
            self._failed(request, e)
            return False
        return True

    def _read(self, request: Request) -> None:
        try:
            started = self._reads.try_start(request)
        except Error as e:
            self._failed(request, e)
            return
        if started is None:
            self._run(request, self._reads.later(request))
            return
        piece, future = started
        future.add_done_callback(partial(self._read_done, request, piece))

    def _read_done(self, request: Request, piece: Slice, future: "asyncio.Future[object]") -> None:
        exception = future.exception()
        if exception is None:
            self._reads.send(request, piece, request.offset, done=True)
            self._end()
        else:
            self._share.release(piece.buffer)
            self._failed(request, exception)

    async def _change(self, request: Request, operation: Coroutine[Any, Any, object]) -> bytes:
        await operation
        return self._replies.success(request)

    async def _zero(self, request: Request) -> None:
        await operations.zero(
            self._transfer,
            request.offset,
            request.length,
            flush=request.fua,
            fast_only=bool(request.flags & CommandFlag.FAST_ZERO),
            allocate=bool(request.flags & CommandFlag.NO_HOLE),
        )

    def _block_status(self, request: Request) -> None:
        if not request.flags & CommandFlag.REQ_ONE:
            self._run(request, self._ask_status(request))
            return
        known = self._status.recall(request)
        if known is not None:
            self._send_status(request, known)
            return
        try:
            future = self._status.ask_one(request)
        except Error as e:
            self._failed(request, e)
            return
        future.add_done_callback(partial(self._status_done, request))

    def _status_done(self, request: Request, future: "asyncio.Future[ExtentList]") -> None:
        exception = future.exception()
        if exception is None:
            self._send_status(request, self._status.learn(request, future.result()))
        else:
            self._failed(request, exception)

    def _send_status(self, request: Request, status: Answer) -> None:
        self._output.send(self._replies.status(request, ALLOCATION_ID, *status))
        self._end()

    async def _ask_status(self, request: Request) -> bytes:
        return self._replies.status(request, ALLOCATION_ID, *await self._status.ask(request))

    def _write_done(self, request: Request, write: "_Write", piece: Slice, future: "asyncio.Future[object]") -> None:
        self._written(request, write, piece, future.exception())

    def _written(self, request: Request, write: "_Write", piece: Slice, exception: BaseException | None) -> None:
        self._share.release(piece.buffer)
        write.running -= 1
        write.exception = write.exception or exception
        if write.running or not write.complete:
            return
        if write.exception is not None:
            self._failed(request, write.exception)
            return
        self._output.send(self._replies.success(request))
        self._end()


class _Write:
    """A WRITE whose payload is written as it comes, one buffer at a time."""

    __slots__ = ("complete", "exception", "running")

    def __init__(self) -> None:
        self.complete = False
        self.running = 0
        self.exception: BaseException | None = None
