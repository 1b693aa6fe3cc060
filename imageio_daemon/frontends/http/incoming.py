# SPDX-License-Identifier: Apache-2.0
"""What a client sends: a request's body goes to whoever takes it, what follows is kept until its turn comes."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from ...errors import InvalidRequest
from ..watchdog import Watchdog
from .framing import Body, find_head


class Taker(Protocol):
    """Who takes a request's body."""

    @property
    def body(self) -> Body:
        """Return what the socket has still to bring."""
        ...

    @property
    def target(self) -> memoryview | None:
        """Return where the next bytes belong; None: nobody waits for them."""
        ...

    def updated(self, count: int) -> None:
        """Note that the socket put bytes into the target."""
        ...

    def feed(self, data: bytes) -> bytes:
        """Take bytes that did not come into the target; return those behind the body."""
        ...


class Incoming:
    """Keep what one connection received ahead, and bring the body of the request that runs."""

    def __init__(self, watchdog: Watchdog) -> None:
        #: Bytes that are nobody's yet: behind the request that runs, or the beginning of the next one.
        self.ahead = bytearray()
        #: Of the last request whose head was seen; None: there was none, or nobody knows where the next one begins.
        self.body: Body | None = None
        self._watchdog = watchdog
        self._taker: Taker | None = None
        self._handler: asyncio.Protocol | None = None
        self._into_target = False
        self._on_error: Callable[[Exception], None] | None = None
        self._error: Exception | None = None

    # From head to head

    def next_head(self) -> bytes:
        """Return the head that begins what was received, which stays there; nothing: there is more of it to come.

        Raises HeadTooLarge, InvalidRequest.
        """
        while self.ahead.startswith(b"\r\n"):  # RFC 9112 2.2
            del self.ahead[:2]
        return bytes(self.ahead[: find_head(self.ahead)])

    def begin(self, head: bytes, body: Body) -> None:
        """Take the head off what was received: its request runs from now on."""
        del self.ahead[: len(head)]
        self.body = body

    def give_to(self, taker: Taker) -> None:
        """Let the body go to somebody who takes it off the socket."""
        self._taker = taker
        self.body = taker.body

    def pass_to(self, handler: asyncio.Protocol) -> None:
        """Let the body go to a handler as it stands on the wire."""
        self._handler = handler

    def end(self) -> None:
        """Note that the request was answered."""
        self._on_error = self._error = self._taker = None

    def lost(self) -> None:
        """Let go of everybody: nothing more comes."""
        self._on_error = self._taker = self._handler = None

    @property
    def complete(self) -> bool:
        """Tell whether it is known where the last request ends, and all of it has come."""
        return self.body is not None and self.body.ended

    @property
    def inside_body(self) -> bool:
        """Tell whether some of a request's body has not come yet."""
        return self.body is not None and not self.body.ended

    # Bytes

    def find_target(self) -> memoryview | None:
        """Return where the next bytes belong; None: nobody waits for them."""
        target = self._taker.target if self._taker is not None else None
        self._into_target = target is not None
        return target

    def updated(self, count: int) -> bool:
        """Note that the socket was read; False: not into what find_target() said last, as that was None."""
        if not self._into_target or self._taker is None:
            return False
        self._watchdog.received(count)
        self._taker.updated(count)
        return True

    def feed(self, data: bytes) -> bytes:
        """Pass on what belongs to the request's body and return the rest."""
        body = self.body
        if body is None or body.ended or self._error is not None:
            return data
        if self._taker is not None:
            self._watchdog.received(len(data))
            return self._taker.feed(data)
        return data if self._handler is None else self._pass_on(data, body, self._handler)

    def _pass_on(self, data: bytes, body: Body, handler: asyncio.Protocol) -> bytes:
        try:
            count = body.take(data)
        except InvalidRequest as e:
            self.fail(e)
            return b""
        self._watchdog.received(count)
        handler.data_received(data[:count])
        return data[count:]

    def feed_ahead(self) -> None:
        """Pass on what was received ahead and belongs to the request's body."""
        if self.ahead:
            data = bytes(self.ahead)
            self.ahead.clear()
            self.ahead += self.feed(data)

    # Errors

    def on_error(self, call: Callable[[Exception], None]) -> None:
        """Have somebody called when the body fails, at once if it has: he need not wait for the rest of it."""
        self._on_error = call
        if self._error is not None:
            call(self._error)

    def fail(self, error: Exception) -> None:
        """Note that the rest of the body will not come, or means nothing."""
        self._error = error
        if self._on_error is not None:
            self._on_error(error)
