# SPDX-License-Identifier: Apache-2.0
"""The framing of requests (RFC 9112). C parses it; the messages of refusals are here.

The parser refuses line ends other than CRLF, folded lines, white space before a colon, control characters, a second
Content-Length, a Content-Length that is not digits, Content-Length together with Transfer-Encoding, codings other than
chunked, and chunk lines of more than 256 bytes. Where two parsers read such a message differently, request smuggling is
possible (RFC 9112 11.2).
"""

from functools import cached_property
from typing import Any, Protocol

from ioutil_ext import ffi, lib

from ....errors import Error, HeadTooLarge, InvalidRequest
from ....lanes.http import Asks, refused_chunk

#: Largest request head, in bytes, and most fields in a head.
MAX_HEAD: int = lib.IOU_HEAD_MAX
MAX_FIELDS: int = lib.IOU_HEAD_MAX_FIELDS

_WHOLE, _MORE = lib.IOU_HEAD_WHOLE, lib.IOU_HEAD_MORE
_CHUNKED, _KEEP_ALIVE, _PLAIN = lib.IOU_HEAD_CHUNKED, lib.IOU_HEAD_KEEP_ALIVE, lib.IOU_HEAD_PLAIN
_HEAD_REFUSALS: dict[int, tuple[type[Error], str]] = {
    lib.IOU_HEAD_TOO_LONG: (HeadTooLarge, f"The request's head is larger than {MAX_HEAD} bytes"),
    lib.IOU_HEAD_LINE_END: (InvalidRequest, "Invalid request: a line does not end with CRLF"),
    lib.IOU_HEAD_REQUEST_LINE: (InvalidRequest, "Invalid request line"),
    lib.IOU_HEAD_FIELDS: (HeadTooLarge, f"The request has more than {MAX_FIELDS} header fields"),
    lib.IOU_HEAD_FIELD: (InvalidRequest, "Invalid header line"),
    lib.IOU_HEAD_TWICE: (InvalidRequest, "Invalid request: several {field}"),
    lib.IOU_HEAD_NO_HOST: (InvalidRequest, "Invalid request: no Host"),
    lib.IOU_HEAD_LENGTH: (InvalidRequest, "Invalid Content-Length"),
    lib.IOU_HEAD_LENGTHS: (InvalidRequest, "Invalid request: Content-Length and Transfer-Encoding"),
    lib.IOU_HEAD_CODING: (InvalidRequest, "Invalid Transfer-Encoding: only chunked is served"),
}


class BodyFraming(Protocol):
    """Find the end of a message's body while its bytes pass."""

    @property
    def ended(self) -> bool:
        """Return whether all of the body has passed."""

    def take(self, data: bytes) -> int:
        """Return how many of the bytes, from the first on, belong to the body. Raises InvalidRequest."""


class FixedBody:
    """A body of Content-Length bytes (RFC 9112 6.2)."""

    def __init__(self, length: int) -> None:
        self.left = length

    @property
    def ended(self) -> bool:
        """Return whether all of the body has passed."""
        return self.left == 0

    def take(self, data: bytes) -> int:
        """Return how many of these bytes belong to the body."""
        count = min(self.left, len(data))
        self.left -= count
        return count


class ChunkedBody:
    """A body in chunks (RFC 9112 7.1). The parser only finds its end; the chunks pass unchanged.

    `chunks` is an iou_chunks, the state of a reader that has read the beginning. None stands for the body's first byte.
    """

    def __init__(self, chunks: Any = None) -> None:
        self._chunks = chunks or ffi.new("iou_chunks *")

    @property
    def ended(self) -> bool:
        """Return whether all of the body has passed."""
        return bool(self._chunks.ended)

    def take(self, data: bytes) -> int:
        """Return how many of these bytes belong to the body. Raises InvalidRequest."""
        count = int(lib.iou_chunks_read(self._chunks, data, len(data)))
        if count < 0:
            raise refused_chunk(-count)
        return count


class RequestHead:
    """The head of a request: the values that decide where the message ends, and whether C or Python serves it.

    `data` is the head as it was received, with the empty line at its end. `length` is the number of bytes of the body,
    unless it is `chunked`. With `keep_alive`, another request may follow the answer; it is also false for a body in
    chunks and for Upgrade. With `plain`, C can serve the request if the image and the ticket allow it. `asks` has the
    wishes of the request for its answer.
    """

    def __init__(self, data: bytes, said: Any) -> None:
        end = said.method_length
        flags = said.flags
        self.data = data
        self.method = str(data[:end], "ascii")
        self.target = str(data[end + 1 : end + 1 + said.target_length], "ascii")
        self.version = "1.1" if said.minor else "1.0"
        self.length: int = said.length
        self.chunked = flags & _CHUNKED != 0
        self.keep_alive = flags & _KEEP_ALIVE != 0
        self.plain = flags & _PLAIN != 0
        self.asks = Asks.of(said)

    @cached_property
    def fields(self) -> dict[str, str]:
        """Return the values of the fields by lower-case name. If a field occurs twice, its last value counts."""
        lines = self.data[:-4].decode("utf-8", "surrogateescape").split("\r\n")[1:]
        pairs = [line.partition(":") for line in lines]
        return {name.lower(): value.strip(" \t") for name, _, value in pairs}

    def body(self) -> BodyFraming:
        """Return the BodyFraming of the message, of which no byte has passed."""
        return ChunkedBody() if self.chunked else FixedBody(self.length)


def read_head(data: bytearray, searched: int = 0) -> RequestHead | None:
    """Return the head at the beginning of the data, or None if its end was not received yet.

    In the first `searched` bytes, an earlier call has found no end. Raises HeadTooLarge if the head has more than
    MAX_HEAD bytes or MAX_FIELDS fields, and InvalidRequest if it is malformed.
    """
    said = ffi.new("iou_head *")
    result = lib.iou_head_read(ffi.from_buffer(data), len(data), searched, said)
    if result == _WHOLE:
        return RequestHead(bytes(data[: said.size]), said)
    if result == _MORE:
        return None
    kind, text = _HEAD_REFUSALS[result]
    raise kind(text.format(field=ffi.string(said.field).decode() if said.field else ""))
