# SPDX-License-Identifier: Apache-2.0
"""One operation that needs one buffer at most, run by callbacks: for requests too small to pay for a task."""

import asyncio
from collections.abc import Awaitable, Callable

from . import starting
from .buffers import Slice
from .errors import DENIED, Canceled, Error
from .storage.base import Backend, ZeroMethod
from .tickets import Access
from .transfers import Transfer

#: Called in a turn of the loop of its own when the operation has ended: with what it failed of, or None.
Ended = Callable[[Exception | None], None]


class Single:
    """Follow one operation of a transfer whose image is open.

    Begun before its bytes are there, so that the transfer's status shows it and cancelling the transfer ends it; then
    one of write(), read() or zero(). A read lasts on while its bytes are sent, until abandon(): when it is cancelled
    meanwhile, that is told too. The storage retains piece and operation until it has let go of them, whatever
    becomes of this object. Raises Forbidden, OutOfRange.
    """

    __slots__ = ("_backend", "_ended", "_flush", "_lasts", "_loop", "_op", "_pending", "_transfer", "_zeroing")

    def __init__(
        self, transfer: Transfer, backend: Backend, access: Access, offset: int, length: int, ended: Ended
    ) -> None:
        transfer.require_range(offset, length)
        if access is Access.WRITE:
            starting.require_room(transfer, backend, offset, length)
        self._transfer = transfer
        self._backend = backend
        self._loop = asyncio.get_running_loop()
        self._ended: Ended | None = ended
        self._flush = self._zeroing = False
        self._lasts = access is Access.READ
        self._pending: asyncio.Future[object] | None = None
        self._op = transfer.begin(access, offset, length, backend=backend)
        self._op.on_cancel = self._cancel_soon
        if self._op.canceled:  # by another thread, before it could call
            self._cancel_soon()

    def write(self, piece: Slice, *, flush: bool) -> None:
        """Write the piece; flush: then put the image on stable storage."""
        self._flush = flush
        self._start(self._backend.pwrite, piece, self._op.offset)

    def read(self, piece: Slice) -> None:
        """Fill the piece."""
        self._start(self._backend.pread, piece, self._op.offset)

    def zero(self, *, flush: bool, fast_only: bool) -> None:
        """Make the range read as zeros by the fastest way that the ticket allows. fast_only: or fail with NotFast."""
        self._flush = flush
        self._zeroing = True
        allocate = not self._transfer.ticket.sparse
        self._start(self._backend.zero, self._op.offset, self._op.length, allocate=allocate, fast_only=fast_only)

    def abandon(self) -> None:
        """Let go: nobody waits for the end any more."""
        self._ended = None
        self._let_go()

    def _start(self, call: Callable[..., Awaitable[object]], *arguments: object, **options: object) -> None:
        try:
            self._pending = asyncio.ensure_future(call(self._op, *arguments, **options))
        except Error as e:
            self._loop.call_soon(self._end, e)
        else:
            self._pending.add_done_callback(self._done)

    def _done(self, future: "asyncio.Future[object]") -> None:
        if future is not self._pending or future.cancelled():
            return
        error = future.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        if error is None and self._zeroing:
            self._zeroing = False
            method = future.result()
            self._transfer.zeroed(method if isinstance(method, ZeroMethod) else ZeroMethod.NONE, self._op.length)
        if error is None and self._flush:
            self._flush = False
            self._start(self._backend.flush)
        elif error is None and self._lasts and self._ended is not None:
            self._pending = None
            self._ended(None)
        else:
            self._end(error)

    def _cancel_soon(self) -> None:
        self._loop.call_soon_threadsafe(self._end, Canceled(DENIED))

    def _end(self, error: Exception | None) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            self._let_go()
            ended(error)

    def _let_go(self) -> None:
        if self._op.on_cancel is None:
            return
        self._op.on_cancel = None
        pending, self._pending = self._pending, None
        if pending is not None and not pending.done():
            pending.cancel()
            self._transfer.abandon(self._op)
        self._op.release()
