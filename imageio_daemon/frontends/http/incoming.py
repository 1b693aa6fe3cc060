# SPDX-License-Identifier: Apache-2.0
"""What a client sends: a request's body goes to whoever takes it, what follows is kept until its turn comes."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from ...errors import InvalidRequest
from ...units import KiB
from ..watchdog import Watchdog
from .framing import Body, find_head

#: Bytes read at once while no request is served: a head, and all of a request with 4 KiB of data.
HEAD_READ = 8 * KiB


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
    """Keep what one connection received ahead, and bring the body of the request that runs.

    scratch: where the socket is read into when nobody waits for the bytes; used only until read().
    """

    def __init__(self, scratch: memoryview, watchdog: Watchdog) -> None:
        #: Bytes that are nobody's yet: behind the request that runs, or the beginning of the next one.
        self.ahead = bytearray()
        #: Of the last request whose head was seen; None: there was none, or nobody knows where the next one begins.
        self.body: Body | None = None
        #: The client sends no more.
        self.at_eof = False
        #: Of what is ahead: a head that comes in pieces is not looked through from its beginning for each of them.
        self._searched = 0
        self._scratch = scratch
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
        length = find_head(self.ahead, self._searched)
        self._searched = 0 if length else len(self.ahead)
        return bytes(self.ahead[:length])

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

    @property
    def unwanted(self) -> bool:
        """Tell whether a client that may still be sending has sent, or announced, what nobody has taken."""
        return (bool(self.ahead) or self.inside_body) and not self.at_eof

    # Bytes

    def get_buffer(self, *, inside_request: bool) -> memoryview:
        """Return where the socket is read into: the memory of whoever waits for it, if somebody does."""
        target = self._taker.target if self._taker is not None else None
        self._into_target = target is not None
        if target is not None:
            return target
        # What follows a head is a body, which has its own memory as soon as the head was seen.
        return self._scratch if inside_request else self._scratch[:HEAD_READ]

    def updated(self, count: int) -> bool:
        """Note that the socket was read; False: nobody waited for that, and read() returns it."""
        if not self._into_target or self._taker is None:
            return False
        self._watchdog.received(count)
        self._taker.updated(count)
        return True

    def read(self, count: int) -> bytes:
        """Return what was read while nobody waited for it."""
        return bytes(self._scratch[:count])

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
