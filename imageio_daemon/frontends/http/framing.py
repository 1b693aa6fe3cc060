# SPDX-License-Identifier: Apache-2.0
"""The framing of requests (RFC 9112), which C parses, and the messages of what is refused.

Refused are line ends that are not CRLF, folded lines, white space before a colon, control characters, several
Content-Length, one that is not digits, Content-Length together with Transfer-Encoding, codings other than chunked,
chunk lines longer than any real one: two readers that disagree are an attack.
"""

from functools import cached_property
from typing import Any, Protocol

from ioutil_ext import ffi, lib

from ...errors import Error, HeadTooLarge, InvalidRequest

#: Largest request head, bytes, and most fields of one.
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
_CHUNK_REFUSALS: dict[int, str] = {
    lib.IOU_CHUNKS_LINE: "a line is too long",
    lib.IOU_CHUNKS_LINE_END: "a line does not end with CRLF",
    lib.IOU_CHUNKS_SIZE: "its size is not a number",
    lib.IOU_CHUNKS_END: "it does not end where its size says",
    lib.IOU_CHUNKS_TRAILER: "its trailer is too long",
    lib.IOU_CHUNKS_FIELD: "its trailer has a line that is no field",
}


class Body(Protocol):
    """Count a message's body while it passes."""

    @property
    def ended(self) -> bool:
        """Tell whether all of the body has passed."""
        ...

    def take(self, data: bytes) -> int:
        """Return how many of these bytes belong to the body. Raises InvalidRequest."""
        ...


class FixedBody:
    """A body of Content-Length bytes."""

    def __init__(self, length: int) -> None:
        self.left = length

    @property
    def ended(self) -> bool:
        """Tell whether all of the body has passed."""
        return self.left == 0

    def take(self, data: bytes) -> int:
        """Return how many of these bytes belong to the body."""
        count = min(self.left, len(data))
        self.left -= count
        return count


class ChunkedBody:
    """A body in chunks (RFC 9112 7.1). Only its end is looked for: the chunks themselves pass untouched."""

    def __init__(self) -> None:
        self._chunks = ffi.new("iou_chunks *")

    @property
    def ended(self) -> bool:
        """Tell whether all of the body has passed."""
        return bool(self._chunks.ended)

    def take(self, data: bytes) -> int:
        """Return how many of these bytes belong to the body. Raises InvalidRequest."""
        count = int(lib.iou_chunks_read(self._chunks, data, len(data)))
        if count < 0:
            raise InvalidRequest(f"Invalid chunk: {_CHUNK_REFUSALS[-count]}")
        return count


class Head:
    """A request's head: what decides where the message ends and who answers it.

    data: as it was received, with the empty line that ends it. length: of the body, unless it is chunked. keep_alive:
    another request may follow the answer; after a body in chunks, or a wish to upgrade, none may. plain: C serves such
    requests, if the image and the ticket allow that.
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

    @cached_property
    def fields(self) -> dict[str, str]:
        """Return the values of the fields by lower-case name; of those that came more than once, the last."""
        lines = self.data[:-4].decode("utf-8", "surrogateescape").split("\r\n")[1:]
        pairs = [line.partition(":") for line in lines]
        return {name.lower(): value.strip(" \t") for name, _, value in pairs}

    def body(self) -> Body:
        """Return the message's body, before its first byte."""
        return ChunkedBody() if self.chunked else FixedBody(self.length)


def read_head(data: bytearray, searched: int = 0) -> Head | None:
    """Return the head that the data begins with; None: there is more of it to come.

    searched: bytes in which no end of a head was found before. Raises HeadTooLarge, InvalidRequest.
    """
    said = ffi.new("iou_head *")
    result = lib.iou_head_read(ffi.from_buffer(data), len(data), searched, said)
    if result == _WHOLE:
        return Head(bytes(data[: said.size]), said)
    if result == _MORE:
        return None
    kind, text = _HEAD_REFUSALS[result]
    raise kind(text.format(field=ffi.string(said.field).decode() if said.field else ""))
