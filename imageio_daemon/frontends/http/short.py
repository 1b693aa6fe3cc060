# SPDX-License-Identifier: Apache-2.0
"""Requests that fit one buffer, served by callbacks: no task, no coroutine, one write for each answer.

Most requests of a transfer are such ones, and a task costs more than their work.
"""

import time
from collections.abc import Callable
from typing import Protocol

from ...buffers import Buffer
from ...errors import Error
from ...single import Single
from ...storage.base import Backend
from ...tickets import Access
from ...transfers import Transfer
from . import errors
from .fastlane import Line
from .framing import FixedBody, Head
from .headers import Flush, parse_json, parse_patch
from .messages import Response, encode, encode_done, encode_head
from .routes import log_request

_RESOURCE = "/images/{}"


class ShortLine(Line, Protocol):
    """What a short request needs of its connection besides."""

    def when_drained(self, call: Callable[[], None]) -> None:
        """Call back when the transport holds no reference to what was written; never, when the client is gone."""
        ...

    def hand_over(self, head: Head, body: bytes) -> None:
        """Serve the request, whose body has come, by the fast lane."""
        ...


#: A transfer whose image is open.
Found = tuple[Transfer, Backend]
#: Return what a ticket id stands for, if the image is open, and count the connection. Raises Forbidden,
#: TooManyConnections.
Attach = Callable[[str, ShortLine, Access], Found | None]


class Short:
    """One request at work. The connection brings its body, and tells it what becomes of the client.

    A body is received as by a Receiver.
    """

    def __init__(self, head: Head, line: ShortLine, length: int) -> None:
        self.body = FixedBody(length)
        self._head = head
        self._line = line
        self._started = time.perf_counter()

    @property
    def target(self) -> memoryview | None:
        """Return where the next bytes of the body belong."""
        return None

    def updated(self, count: int) -> None:
        """Note that the socket put bytes into the target."""

    def feed(self, data: bytes) -> bytes:
        """Take bytes that did not come into the target; return those behind the body."""
        return data

    def start(self) -> None:
        """Begin with what does not wait for a body."""

    def fail(self, error: Exception) -> None:
        """End the request: the rest of its body will not come."""
        self._abandon()
        self._ended(error)

    def lost(self) -> None:
        """Let go of everything: the client is gone."""
        self._abandon()

    def _abandon(self) -> None:
        """End what runs for the request: nobody waits for it."""

    def _ended(self, error: Exception | None) -> None:
        """Answer."""
        line = self._line
        if error is None:
            status = 200
            close = line.must_close
            line.write(encode_done(close=close))
        else:
            response = errors.answer(error, line.peer)
            status = response.status
            close = response.close or line.must_close or not self.body.ended
            line.write(encode(response, close=close))
        self._answered(status, close=close)

    def _answered(self, status: int, *, close: bool) -> None:
        log_request(self._line.peer, self._head.method, _RESOURCE, status, self._started)
        self._line.answered(close=close)


class _Buffered(Short):
    """A request whose bytes lie in a buffer, which is its own until it ends."""

    _single: Single

    def __init__(self, head: Head, line: ShortLine, body: int, buffer: Buffer, start: int, length: int) -> None:
        super().__init__(head, line, body)
        self._buffer: Buffer | None = buffer
        self._piece = buffer.slice(start, start + length)

    def lost(self) -> None:
        """Let go of everything: the client is gone."""
        super().lost()
        self._release()

    def _abandon(self) -> None:
        self._single.abandon()

    def _release(self) -> None:
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            buffer.release()


class ShortPut(_Buffered):
    """Write a body that fits one buffer."""

    def __init__(
        self,
        head: Head,
        line: ShortLine,
        found: Found,
        offset: int,
        buffer: Buffer,
        start: int,
        length: int,
        *,
        flush: bool,
    ) -> None:
        super().__init__(head, line, length, buffer, start, length)
        self._single = Single(*found, Access.WRITE, offset, length, self._ended)
        self._place = start
        self._flush = flush

    @property
    def target(self) -> memoryview | None:
        """Return where the next bytes of the body belong."""
        if self._buffer is None or self.body.ended:
            return None
        return self._buffer.view[self._place : self._piece.stop]

    def updated(self, count: int) -> None:
        """Note that the socket put bytes into the target."""
        self.body.left -= count
        self._place += count
        if not self.body.left:
            self._line.waiting_for_body(waiting=False)
            self._single.write(self._piece, flush=self._flush)

    def feed(self, data: bytes) -> bytes:
        """Take bytes that did not come into the target; return those behind the body."""
        buffer = self._buffer
        if buffer is None or not self.body.left:
            return data
        count = min(self.body.left, len(data))
        buffer.view[self._place : self._place + count] = data if count == len(data) else data[:count]
        self.updated(count)
        return data[count:]

    def _ended(self, error: Exception | None) -> None:
        if not self.body.ended:
            self._line.waiting_for_body(waiting=False)
        self._release()
        super()._ended(error)


class ShortGet(_Buffered):
    """Read a range that fits one buffer, and send it from there behind its head."""

    def __init__(
        self,
        head: Head,
        line: ShortLine,
        found: Found,
        offset: int,
        buffer: Buffer,
        start: int,
        length: int,
        response: Response,
    ) -> None:
        super().__init__(head, line, 0, buffer, start, length)
        self._single = Single(*found, Access.READ, offset, length, self._ended)
        self._response = response
        self._close = self._sending = False

    def start(self) -> None:
        """Begin to read."""
        self._single.read(self._piece)

    def _ended(self, error: Exception | None) -> None:
        buffer = self._buffer
        if self._sending:
            self._line.abort("cut")  # the transport still refers to the buffer; lost() follows
            return
        if error is not None or buffer is None:
            self._release()
            super()._ended(error)
            return
        self._sending = True
        self._close = self._line.must_close
        head = encode_head(self._response, close=self._close)
        # There is room before the data: one piece of memory is sent faster than two.
        start = self._piece.start - len(head)
        buffer.view[start : self._piece.start] = head
        self._line.write(buffer.view[start : self._piece.stop])
        self._line.when_drained(self._sent)

    def _sent(self) -> None:
        """Note that the transport holds no reference to the answer."""
        self._abandon()
        self._release()
        self._answered(self._response.status, close=self._close)


class ShortPatch(Short):
    """Zero a range."""

    def __init__(self, head: Head, line: ShortLine, name: str, length: int, attach: Attach) -> None:
        super().__init__(head, line, length)
        self._name = name
        self._attach = attach
        self._text = b""
        self._single: Single | None = None

    def feed(self, data: bytes) -> bytes:
        """Take bytes; return those behind the body."""
        count = self.body.take(data)
        self._text += data[:count]
        if self.body.ended and count:
            self._line.waiting_for_body(waiting=False)
            if not self._zero():
                self._line.hand_over(self._head, self._text)
        return data[count:]

    def _abandon(self) -> None:
        if self._single is not None:
            self._single.abandon()

    def _zero(self) -> bool:
        try:
            todo = parse_patch(parse_json(self._text))
            if isinstance(todo, Flush) or not todo.size:
                return False
            found = self._attach(self._name, self._line, Access.WRITE)
            if found is None:
                return False
            self._single = Single(*found, Access.WRITE, todo.offset, todo.size, self._ended)
        except Error:
            return False  # it is found again, and answered, by the handlers
        self._single.zero(flush=todo.flush, fast_only=todo.fast)
        return True
