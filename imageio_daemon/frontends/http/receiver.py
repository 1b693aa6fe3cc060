# SPDX-License-Identifier: Apache-2.0
"""A request's body on its way from the socket straight into the handler's memory."""

import asyncio
from collections.abc import Callable

from .framing import FixedBody


class Receiver:
    """Bring `length` bytes to whoever reads them, without a copy while somebody waits for them.

    While a reader waits, `target` is its memory and the socket is read into it. When that is full, `hold` is called so
    that the socket is read no more until the next reader comes, who calls `release`: what came meanwhile would have to
    be kept, and copied. A reader that is cancelled takes its memory back at once: the socket is read only inside
    callbacks of the loop.
    """

    def __init__(self, length: int, *, hold: Callable[[], None], release: Callable[[], None]) -> None:
        #: What the socket has still to bring.
        self.body = FixedBody(length)
        self._hold = hold
        self._release = release
        self._kept = b""
        self._view = memoryview(b"")
        self._filled = 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    @property
    def ended(self) -> bool:
        """Tell whether all of the body was read."""
        return self.body.ended and not self._kept

    # The socket's side

    @property
    def target(self) -> memoryview | None:
        """Return where the next bytes belong; None: nobody waits for them."""
        if self._waiter is None or self._filled == len(self._view):
            return None
        return self._view[self._filled :]

    def updated(self, count: int) -> None:
        """Note that the socket put bytes into the target."""
        self.body.left -= count
        self._filled += count
        if self._filled == len(self._view):
            self._wake()
            if self.body.left:
                self._hold()

    def feed(self, data: bytes) -> bytes:
        """Take bytes that did not come into the target; return those behind the body."""
        count = self.body.take(data)
        self._kept += data[:count]
        if self._waiter is not None:
            self._use_kept()
            if self._filled == len(self._view):
                self._wake()
        if self._kept:
            self._hold()
        return data[count:]

    def fail(self, error: Exception) -> None:
        """End the reading, now and later: the rest will not come."""
        self._error = error
        self._wake()

    # The reader's side

    async def readinto(self, view: memoryview) -> int:
        """Fill the view, or as much of it as there is body left, and return how many bytes that is.

        Raises what fail() was told.
        """
        self._view = view[: len(self._kept) + self.body.left]
        self._filled = 0
        self._use_kept()
        if not self._kept:
            self._release()
        if self._filled < len(self._view):
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
            if self._error is not None and self._filled < len(self._view):
                raise self._error
        return self._filled

    def _use_kept(self) -> None:
        count = min(len(self._kept), len(self._view) - self._filled)
        self._view[self._filled : self._filled + count] = self._kept[:count]
        self._filled += count
        self._kept = self._kept[count:]

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
