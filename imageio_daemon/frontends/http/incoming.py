# SPDX-License-Identifier: Apache-2.0
"""The bytes that a client sends: a request's body goes to its handler, what follows is kept until it is answered."""

import asyncio
from collections.abc import Callable

from ...errors import InvalidRequest, Truncated
from ...net.watchdog import Watchdog
from ...units import KiB
from .framing import BodyFraming, RequestHead, read_head

#: Bytes read at once where no body is expected: a head, and all of a request with 4 KiB of data.
HEAD_READ = 8 * KiB


class Incoming:
    """Keep what one connection received ahead, and pass on the body of the request that runs when it is wanted.

    scratch: memory that the socket is read into, shared by connections and used only until read().
    """

    def __init__(self, scratch: memoryview, watchdog: Watchdog) -> None:
        #: Bytes behind the request that runs: the beginning of the next one.
        self.ahead = bytearray()
        #: Of the last request whose head was read; None: there was none, or where the next one begins is unknown.
        self.body: BodyFraming | None = None
        #: The client sends no more.
        self.at_eof = False
        #: Bytes of `ahead` without the end of a head: when the head comes in pieces, each byte is searched once.
        self._searched = 0
        self._scratch = scratch
        self._watchdog = watchdog
        self._handler: asyncio.Protocol | None = None
        self._wanted = False  # the handler takes the body
        self._on_error: Callable[[Exception], None] | None = None
        self._error: Exception | None = None

    # From head to head

    def next_head(self) -> RequestHead | None:
        """Return the head at the beginning of what was received, which stays there; None: it is not complete.

        Raises HeadTooLarge, InvalidRequest.
        """
        while self.ahead.startswith(b"\r\n"):  # RFC 9112 2.2
            del self.ahead[:2]
        head = read_head(self.ahead, self._searched)
        self._searched = len(self.ahead) if head is None else 0
        return head

    def pass_to(self, handler: asyncio.Protocol) -> None:
        """Pass the body to a handler, with its framing, as soon as it is wanted."""
        self._handler = handler
        self._wanted = False

    def want(self) -> None:
        """Pass on the body, from what was received ahead of it."""
        if self._wanted:
            return
        self._wanted = True
        data = bytes(self.ahead)
        self.ahead.clear()
        self.ahead += self.feed(data)
        if self.at_eof:
            self.end_early()

    def end(self) -> None:
        """Note that the request was answered."""
        self._on_error = self._error = None

    def lost(self) -> None:
        """Drop the references to the handler: nothing more comes."""
        self._on_error = self._handler = None

    @property
    def complete(self) -> bool:
        """Tell whether the end of the last request is known, and was received."""
        return self.body is not None and self.body.ended

    @property
    def inside_body(self) -> bool:
        """Tell whether some of a request's body was not received yet."""
        return self.body is not None and not self.body.ended

    @property
    def is_full(self) -> bool:
        """Tell whether no more is received ahead: of a body that nobody wants yet, little, to see its client leave."""
        return len(self.ahead) >= HEAD_READ or (bool(self.ahead) and (self._wanted or not self.inside_body))

    @property
    def unwanted(self) -> bool:
        """Tell whether a client that may still send has sent, or announced, bytes that no handler has taken."""
        return (bool(self.ahead) or self.inside_body) and not self.at_eof

    # Bytes

    def get_buffer(self) -> memoryview:
        """Return where the socket is read into."""
        # What comes behind a body, or is not wanted, is kept until its turn.
        return self._scratch if self.inside_body and self._wanted else self._scratch[:HEAD_READ]

    def read(self, count: int) -> bytes:
        """Return what was read."""
        return bytes(self._scratch[:count])

    def feed(self, data: bytes) -> bytes:
        """Pass on what belongs to the request's body and return the rest."""
        body, handler = self.body, self._handler
        if body is None or body.ended or handler is None or not self._wanted or self._error is not None:
            return data
        try:
            count = body.take(data)
        except InvalidRequest as e:
            self.fail(e)
            return b""
        self._watchdog.received(count)
        handler.data_received(data[:count])
        return data[count:]

    # Errors

    def on_error(self, call: Callable[[Exception], None]) -> None:
        """Call back when the body fails, at once if it has failed: the handler need not wait for the rest."""
        self._on_error = call
        if self._error is not None:
            call(self._error)

    def end_early(self) -> None:
        """Note that no more of the body comes."""
        if self.inside_body and self._wanted:
            self.fail(Truncated("The request's body is shorter than announced"))

    def fail(self, error: Exception) -> None:
        """Note that the rest of the body will not come, or is malformed."""
        self._error = error
        if self._on_error is not None:
            self._on_error(error)
