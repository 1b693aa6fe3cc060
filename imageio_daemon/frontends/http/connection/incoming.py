# SPDX-License-Identifier: Apache-2.0
"""The bytes that a client sends. A request's body goes to its handler; later bytes wait for the request's answer."""

import asyncio
from collections.abc import Callable

from ....errors import InvalidRequest, Truncated
from ....net.watchdog import Watchdog
from ....units import KiB
from .framing import BodyFraming, RequestHead, read_head

#: Bytes of one read where no body is expected: enough for a head, and for a whole request with 4 KiB of data.
HEAD_READ = 8 * KiB


class Incoming:
    """Keep the bytes that one connection has received ahead. Pass on the body of the running request when it is wanted.

    `scratch` is memory that the socket is read into. Connections share it, and use it only until read().
    """

    def __init__(self, scratch: memoryview, watchdog: Watchdog) -> None:
        #: Bytes after those of the running request: the beginning of the next one.
        self.ahead = bytearray()
        #: The body of the last request whose head was read. None if there was none, or if the body's end is unknown.
        self.body: BodyFraming | None = None
        #: Whether the client sends no more.
        self.at_eof = False
        #: Bytes of `ahead` in which no end of a head was found, so that each byte of a head in pieces is searched once.
        self._searched = 0
        self._scratch = scratch
        self._watchdog = watchdog
        self._handler: asyncio.Protocol | None = None
        self._wanted = False  # whether the handler takes the body
        self._on_error: Callable[[Exception], None] | None = None
        self._error: Exception | None = None

    # From head to head

    def next_head(self) -> RequestHead | None:
        """Return the head at the beginning of the received bytes, where it stays, or None if it is not complete.

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
        """Begin to pass on the body, first the bytes that were received before."""
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
        """Drop the references to the handler, because the connection is lost."""
        self._on_error = self._handler = None

    @property
    def complete(self) -> bool:
        """Return whether the end of the last request is known and was received."""
        return self.body is not None and self.body.ended

    @property
    def inside_body(self) -> bool:
        """Return whether some of a request's body was not received yet."""
        return self.body is not None and not self.body.ended

    @property
    def is_full(self) -> bool:
        """Return whether to read no more ahead. A bit of an unwanted body is read, to notice if its client leaves."""
        return len(self.ahead) >= HEAD_READ or (bool(self.ahead) and (self._wanted or not self.inside_body))

    @property
    def unwanted(self) -> bool:
        """Return whether the client has sent or announced bytes that no handler has taken, and may still send."""
        return (bool(self.ahead) or self.inside_body) and not self.at_eof

    # Bytes

    def get_buffer(self) -> memoryview:
        """Return the memory for the next read from the socket."""
        # Bytes after a body, or of a body that is not wanted yet, have to be kept, so read only few of them.
        return self._scratch if self.inside_body and self._wanted else self._scratch[:HEAD_READ]

    def read(self, count: int) -> bytes:
        """Return a copy of the bytes that were read."""
        return bytes(self._scratch[:count])

    def feed(self, data: bytes) -> bytes:
        """Pass on the bytes of the request's body, and return the others."""
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
        """Call back when the body fails, or at once if it has failed, so that the handler does not wait for more."""
        self._on_error = call
        if self._error is not None:
            call(self._error)

    def end_early(self) -> None:
        """Note that the client sends no more of the body."""
        if self.inside_body and self._wanted:
            self.fail(Truncated("The request's body is shorter than announced"))

    def fail(self, error: Exception) -> None:
        """Note that the rest of the body will not come, or is malformed."""
        self._error = error
        if self._on_error is not None:
            self._on_error(error)
