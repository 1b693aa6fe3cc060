# SPDX-License-Identifier: Apache-2.0
"""Requests that fit one buffer, served by callbacks: no task, no coroutine, one write for each answer.

Most requests of a transfer are such ones, and a task costs more than their work. Whatever is not plain, or is refused
before its body came, goes to the fast lane, which finds and answers the reason once more: refusals are written once.
"""

import re
import time
from typing import Protocol

from ...buffers import PAGE, Buffer, Buffers
from ...errors import Error
from ...single import Single
from ...starting import readable_size
from ...storage.base import Backend
from ...tickets import Access
from ...transfers import Transfer
from ...transferstore import TransferStore
from . import errors
from .fastlane import Line
from .framing import FixedBody, Head
from .headers import Flush, parse_content_range, parse_json, parse_patch, parse_range
from .images import partial_headers
from .messages import WRITE_PIECE, Response, encode, encode_done, encode_head
from .routes import log_request

#: Fields that have no part in the answer, or one that is known here.
_FIELDS = frozenset(
    (
        "accept",
        "accept-encoding",
        "authorization",
        "cache-control",
        "connection",
        "content-length",
        "content-range",
        "content-type",
        "host",
        "pragma",
        "range",
        "user-agent",
    )
)
#: No escapes, no other parameters.
_TARGET = re.compile(r"/images/([0-9A-Za-z._~-]+)(?:\?flush=([yn]))?", re.ASCII)
_RESOURCE = "/images/{}"
#: Largest body of a PATCH that is served here. Programs send less than 100 bytes.
MAX_PATCH = 1024


class ExpressLine(Line, Protocol):
    """What a short request needs of its connection besides."""

    def when_drained(self) -> None:
        """Call sent() of the short request when the transport holds no reference to what was written."""
        ...

    def hand_over(self, head: Head, body: bytes) -> None:
        """Serve the request, whose body has come, by the fast lane."""
        ...


def plain_target(head: Head) -> tuple[str, str | None] | None:
    """Return which image a plain request is about, and what it says of flush; None: it is another one."""
    if head.version != "1.1" or not head.fields.keys() <= _FIELDS:
        return None
    if head.fields.get("connection", "keep-alive") != "keep-alive":
        return None
    target = _TARGET.fullmatch(head.target)
    return None if target is None else (target[1], target[2])


class Express:
    """Take short requests for images."""

    def __init__(self, store: TransferStore, buffers: Buffers) -> None:
        self._store = store
        self._buffers = buffers

    def take(self, head: Head, line: ExpressLine) -> "Short | None":
        """Return the request at work, or None: somebody else shall serve it. Then nothing has happened."""
        target = plain_target(head)
        if target is None:
            return None
        name, flush = target
        length = int(head.fields.get("content-length", "0"))
        short: Short | None = None
        try:
            if head.method == "PUT":
                short = self._put(head, line, name, length, flush=flush != "n")
            elif head.method == "GET" and not length and flush is None:
                short = self._get(head, line, name)
            elif head.method == "PATCH" and 0 < length <= MAX_PATCH and flush is None:
                short = ShortPatch(self, head, line, name, length)
        except Error:
            return None  # it is found again, and answered, by the handlers
        return short

    def attach(self, name: str, line: ExpressLine, access: Access) -> tuple[Transfer, Backend] | None:
        """Return what the request is about, if the image is open. Raises Forbidden, TooManyConnections."""
        transfer = self._store.authorize(name, access)
        backend = transfer.opened
        if backend is None:
            return None
        line.use(transfer)
        return transfer, backend

    def _put(self, head: Head, line: ExpressLine, name: str, length: int, *, flush: bool) -> "Short | None":
        offset = parse_content_range(head.fields.get("content-range"))
        # The same place in a page as in the image, so that whole blocks are not copied by the storage.
        start = offset % PAGE
        if not 0 < length <= self._buffers.size - PAGE or (found := self.attach(name, line, Access.WRITE)) is None:
            return None
        buffer = self._buffers.pool.try_acquire(start + length)
        if buffer is None:
            return None
        try:
            return ShortPut(head, line, found, offset, buffer, start, length, flush=flush)
        except Error:
            buffer.release()
            raise

    def _get(self, head: Head, line: ExpressLine, name: str) -> "Short | None":
        wanted = parse_range(head.fields.get("range"))
        if wanted is None or wanted.first is None or wanted.last is None:
            return None
        if (found := self.attach(name, line, Access.READ)) is None:
            return None
        transfer, backend = found
        size = transfer.ticket.size
        # What is known of a smaller image may be old.
        if not transfer.covered and readable_size(transfer, backend) < size:
            return None
        offset, length = wanted.resolve(size, size)
        start = PAGE + offset % PAGE
        if length > WRITE_PIECE or (buffer := self._buffers.pool.try_acquire(start + length)) is None:
            return None
        headers = partial_headers(transfer.ticket, offset, length, size)
        try:
            return ShortGet(head, line, found, offset, buffer, start, length, Response(206, headers, length=length))
        except Error:
            buffer.release()
            raise


class Short:
    """One request at work. The connection brings its body, and tells it what becomes of the client.

    A body is received as by a Receiver.
    """

    def __init__(self, head: Head, line: ExpressLine, length: int) -> None:
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

    def sent(self) -> None:
        """Note that the transport holds no reference to the answer."""

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

    def __init__(self, head: Head, line: ExpressLine, body: int, buffer: Buffer, start: int, length: int) -> None:
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
        line: ExpressLine,
        found: tuple[Transfer, Backend],
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
        line: ExpressLine,
        found: tuple[Transfer, Backend],
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

    def sent(self) -> None:
        """Note that the transport holds no reference to the answer."""
        self._abandon()
        self._release()
        self._answered(self._response.status, close=self._close)

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
        self._line.when_drained()


class ShortPatch(Short):
    """Zero a range."""

    def __init__(self, express: Express, head: Head, line: ExpressLine, name: str, length: int) -> None:
        super().__init__(head, line, length)
        self._express = express
        self._name = name
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
            found = self._express.attach(self._name, self._line, Access.WRITE)
            if found is None:
                return False
            self._single = Single(*found, Access.WRITE, todo.offset, todo.size, self._ended)
        except Error:
            return False  # it is found again, and answered, by the handlers
        self._single.zero(flush=todo.flush, fast_only=todo.fast)
        return True
