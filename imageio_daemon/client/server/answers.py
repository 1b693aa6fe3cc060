# SPDX-License-Identifier: Apache-2.0
"""The answers on a connection. They come one after the other, and several may be received at once (docs/adr/0038)."""

import functools
import http.client
import io
import socket
from typing import Any, NamedTuple

from ...units import KiB
from .pace import Paced
from .sending import Moved

#: Bytes that are received ahead of those that are read.
AHEAD = 64 * KiB
#: Most bytes of a line, and most lines of a head, as in http.client.
MAX_LINE = 65536
MAX_LINES = 100
#: Number of heads whose meaning is cached: those of one second, whatever lengths their bodies have.
KEPT = 1024
#: Most bytes of a cached head, because a server could fill gigabytes with long ones.
MAX_KEPT = 4 * KiB
#: Fields in which otherwise equal heads differ.
VARYING = (b"date:", b"content-range:")


class Framing(NamedTuple):
    """The meaning of a head.

    `length` is that of the body, or None if the body is chunked or ends with the connection. `ends` tells that the
    connection ends after this answer.
    """

    status: int
    length: int | None
    ends: bool


class AnswerHead(NamedTuple):
    """The head of an answer: all its lines, and the value of Content-Range."""

    lines: list[bytes]
    content_range: str

    @property
    def framing(self) -> Framing:
        """Return the meaning of the head. Raises HTTPException."""
        told = b"".join(line for line in self.lines if not line[:14].lower().startswith(VARYING))
        return _kept_framing(told) if len(told) <= MAX_KEPT else _framing(told)


class _Incoming(io.RawIOBase):
    """The bytes that a socket receives, at the allowed pace. While `is_held`, it receives nothing."""

    def __init__(self, sock: socket.socket, paced: Paced) -> None:
        self._socket = sock
        self._paced = paced
        self.is_held = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self.is_held:
            return None
        count = self._socket.recv_into(buffer, min(len(buffer), self._paced.step))
        self._paced.received(count)
        return count


class Answers(io.BufferedReader):
    """The received bytes. Each http.client.HTTPResponse in turn reads them as its file, without closing it."""

    def __init__(self, sock: socket.socket, paced: Paced) -> None:
        self._incoming = _Incoming(sock, paced)
        super().__init__(self._incoming, AHEAD)

    def read(self, size: int | None = -1, /) -> bytes:
        """Return `size` bytes, or fewer at the end. Raises OSError, HTTPException.

        http.client takes negative sizes of chunks as they come.
        """
        if size is None or size < 0:
            raise http.client.HTTPException("it sent a chunk of less than no bytes")
        return super().read(size)

    def close(self) -> None:
        """Do nothing. An HTTPResponse calls this at its end, before the next answer."""

    def flush(self) -> None:
        """Do nothing. An HTTPResponse that was not read to its end calls this when it is freed, after end()."""

    def end(self) -> None:
        """Let later reads fail. The caller closes the socket."""
        super().close()

    def received(self) -> bytes:
        """Return the received bytes that nobody has read, without waiting for more."""
        self._incoming.is_held = True
        try:
            return bytes(self.peek())
        finally:
            self._incoming.is_held = False

    def head(self) -> AnswerHead:
        """Receive the next head that is not 100 Continue. Raises OSError, HTTPException."""
        while (head := self._any_head()).lines[0].split(None, 2)[1:2] == [b"100"]:
            pass
        return head

    def response(self, method: str, head: AnswerHead) -> http.client.HTTPResponse:
        """Return the answer to a method from its head. Raises HTTPException."""
        response = _parsed(b"".join(head.lines), method)
        response.fp = self
        return response

    def _any_head(self) -> AnswerHead:
        lines: list[bytes] = []
        content_range = b""
        while (line := self.readline(MAX_LINE + 1)) not in (b"\r\n", b"\n", b""):
            if len(line) > MAX_LINE:
                raise http.client.LineTooLong("header line")
            if len(lines) > MAX_LINES:
                raise http.client.HTTPException(f"got more than {MAX_LINES} headers")
            if not lines and not line.startswith(b"HTTP/"):
                raise http.client.BadStatusLine(line.decode("latin-1"))
            lines.append(line)
            if line[:14].lower() == b"content-range:":
                content_range = line[14:].strip()
        if not line or not lines:
            raise http.client.RemoteDisconnected("the peer has ended it without an answer")
        return AnswerHead(lines, content_range.decode("latin-1"))


class AnswerBody:
    """The body of the answer to a GET for a range. The caller reads all of it. `length` is None if it is unknown."""

    def __init__(self, answers: Answers, content_range: str, length: int | None) -> None:
        self._answers = answers
        self.content_range = content_range
        self.length = length
        self.filled = 0
        self._left = length or 0

    def read_into(self, buffer: memoryview, moved: Moved) -> None:
        """Fill the buffer. Raises OSError or HTTPException if the connection ends before. `filled` is what has come."""
        self.filled = 0
        while self.filled < len(buffer):
            # Not readinto(), which returns when the buffer is full: a slow link takes long to fill it.
            count = self._answers.readinto1(buffer[self.filled :])
            if count == 0:
                raise http.client.IncompleteRead(b"", self._left)
            self.filled += count
            self._left -= count
            moved(count)


class _Received:
    """A substitute for a socket that has received these bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: Any) -> io.BytesIO:
        return io.BytesIO(self._data)


def _parsed(lines: bytes, method: str) -> http.client.HTTPResponse:
    received: Any = _Received(lines + b"\r\n")
    response = http.client.HTTPResponse(received, method=method)
    response.begin()
    return response


def _framing(lines: bytes) -> Framing:
    """Return the meaning of the lines of a head. Raises HTTPException."""
    response = _parsed(lines, "GET")
    length = None if response.chunked else response.length
    return Framing(response.status, length, response.will_close)


#: http.client takes 60 µs to find the meaning, and most heads are equal.
_kept_framing = functools.lru_cache(KEPT)(_framing)
