# SPDX-License-Identifier: Apache-2.0
"""Where a request begins and ends on the wire (RFC 9112), strictly: two readers that disagree are an attack.

Refused: line ends that are not CRLF, folded lines, white space before a colon, control characters, several
Content-Length, one that is not digits, Content-Length together with Transfer-Encoding, codings other than chunked,
chunk lines longer than any real one.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from ...errors import HeadTooLarge, InvalidRequest
from ...units import KiB

#: Largest request head. The largest useful one is a path and a query of 2 KiB and a dozen short fields.
MAX_HEAD = 16 * KiB
#: Header fields of a request: fewer than the 128 lines that aiohttp takes. Browsers send twenty.
MAX_FIELDS = 100
#: Longest line between chunks: hexadecimal digits and an extension that nobody uses, or a trailer field.
MAX_CHUNK_LINE = 256
#: Longest sum of trailer lines after the last chunk; they are thrown away.
MAX_TRAILER = 4 * KiB

#: Field lines kept parsed, and the longest of them: nearly all lines of a client come again. A head
#: of four fields takes 4 us with them, 8 without, and 3 in httptools before anything is made or checked of its fields.
KNOWN_FIELDS = 256
MAX_KNOWN = 128
#: The same for whole heads of PATCH, which tells its range in the body: those of a client differ in nothing but the
#: length of it. One that is known takes 0.3 us, others 3.
KNOWN_HEADS = 64
MAX_KNOWN_HEAD = 1 * KiB

_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21\x22\x24-\x7e]+) HTTP/(1\.[01])")
#: The blanks around the value are taken off afterwards: a pattern that looks for them tries every way to share them.
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t\x20-\x7e\x80-\xff]*)")
_LENGTH = re.compile(r"[0-9]{1,18}")  # what every parser's 64 bits hold
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")
#: Whole chunks of few bytes each, as many as there are: one at a time, 64 KiB of chunks of a byte take 22 ms, so 2.
_SHORT_CHUNKS = re.compile(
    b"(?is:0{0,9}(?:%s))*"
    % b"|".join(rb"%x[ \t]{0,9}(?:;[\t\x20-\x7e\x80-\xff]{0,99})?\r\n.{%d}\r\n" % (size, size) for size in range(1, 65))
)
_BARE_LF = re.compile(rb"(?<!\r)\n")

#: A field that stands twice is read differently by different programs.
_SINGLE = frozenset(("content-length", "content-range", "host", "range", "transfer-encoding", "expect"))


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
        self.ended = False
        self._data = 0  # bytes of the chunk that are still to come
        self._line = b""
        self._read_line: Callable[[bytes], None] = self._read_size
        self._trailer = 0

    def take(self, data: bytes) -> int:
        """Return how many of these bytes belong to the body. Raises InvalidRequest."""
        position = 0
        while position < len(data) and not self.ended:
            if self._data:
                count = min(self._data, len(data) - position)
                self._data -= count
                position += count
                continue
            if not self._line and self._read_line == self._read_size and (short := _SHORT_CHUNKS.match(data, position)):
                position = short.end()
            position = self._take_line(data, position)
        return position

    def _take_line(self, data: bytes, position: int) -> int:
        found = data.find(b"\n", position)
        end = len(data) if found < 0 else found + 1
        self._line += data[position:end]
        if len(self._line) > MAX_CHUNK_LINE:
            raise InvalidRequest("Invalid chunk: a line is too long")
        if found >= 0:
            line, self._line = self._line, b""
            if not line.endswith(b"\r\n"):
                raise InvalidRequest("Invalid chunk: a line does not end with CRLF")
            self._read_line(line[:-2])
        return end

    def _read_size(self, line: bytes) -> None:
        match = _CHUNK_SIZE.fullmatch(line)
        if match is None:
            raise InvalidRequest("Invalid chunk: its size is not a number")
        self._data = int(match[1], 16)
        self._read_line = self._read_end if self._data else self._read_trailer

    def _read_end(self, line: bytes) -> None:
        if line:
            raise InvalidRequest("Invalid chunk: it does not end where its size says")
        self._read_line = self._read_size

    def _read_trailer(self, line: bytes) -> None:
        self._trailer += len(line)
        if self._trailer > MAX_TRAILER:
            raise InvalidRequest("Invalid chunk: its trailer is too long")
        self.ended = not line


class Head:
    """A request's head: what decides where the message ends and who answers it."""

    def __init__(self, method: str, target: str, version: str, fields: dict[str, str]) -> None:
        self.method = method
        self.target = target
        self.version = version
        #: By lower-case name; of fields that may come more than once, the last.
        self.fields = fields

    @property
    def keep_alive(self) -> bool:
        """Tell whether the client means to send another request on the connection (RFC 9112 9.3)."""
        options = [option.strip(" \t") for option in self.fields.get("connection", "").lower().split(",")]
        return "close" not in options and (self.version == "1.1" or "keep-alive" in options)

    def body(self) -> Body:
        """Return the message's body, before its first byte."""
        if "transfer-encoding" in self.fields:
            return ChunkedBody()
        return FixedBody(int(self.fields.get("content-length", "0")))


def find_head(data: bytearray, searched: int = 0) -> int:
    """Return the length of the head that the data begins with; 0: there is more to come.

    searched: bytes in which no end of a head was found before. Raises HeadTooLarge, or InvalidRequest for line ends
    that would let the head go on for ever.
    """
    start = max(searched - 3, 0)
    end = data.find(b"\r\n\r\n", start, MAX_HEAD) + 4
    if end > 3:
        return end
    if len(data) >= MAX_HEAD:
        raise HeadTooLarge(f"The request's head is larger than {MAX_HEAD} bytes")
    if _BARE_LF.search(data, start):
        raise InvalidRequest("Invalid request: a line does not end with CRLF")
    return 0


def parse_head(data: bytes) -> Head:
    """Parse a whole head, with the empty line that ends it. Raises InvalidRequest, HeadTooLarge.

    The same object may be returned again for the same head.
    """
    return _known_head(data) if data.startswith(b"PATCH ") and len(data) <= MAX_KNOWN_HEAD else _parse_head(data)


def _parse_head(data: bytes) -> Head:
    lines = data[:-4].split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(lines[0])
    if match is None:
        raise InvalidRequest("Invalid request line")
    method, target, version = match[1].decode(), match[2].decode(), match[3].decode()
    if len(lines) > MAX_FIELDS + 1:
        raise HeadTooLarge(f"The request has more than {MAX_FIELDS} header fields")
    fields: dict[str, str] = {}
    for line in lines[1:]:
        name, value = _known_field(line) if len(line) <= MAX_KNOWN else _parse_field(line)
        if name in fields and name in _SINGLE:
            raise InvalidRequest(f"Invalid request: several {name}")
        fields[name] = value
    if version == "1.1" and "host" not in fields:
        raise InvalidRequest("Invalid request: no Host")
    _check_framing(fields, version)
    return Head(method, target, version, fields)


_known_head = lru_cache(KNOWN_HEADS)(_parse_head)


def _parse_field(line: bytes) -> tuple[str, str]:
    match = _FIELD.fullmatch(line)
    if match is None:
        raise InvalidRequest("Invalid header line")
    return match[1].lower().decode(), match[2].strip(b" \t").decode("utf-8", "surrogateescape")


_known_field = lru_cache(KNOWN_FIELDS)(_parse_field)


def _check_framing(fields: dict[str, str], version: str) -> None:
    length = fields.get("content-length")
    if length is not None and _LENGTH.fullmatch(length) is None:
        raise InvalidRequest("Invalid Content-Length")
    coding = fields.get("transfer-encoding")
    if coding is None:
        return
    if length is not None:
        raise InvalidRequest("Invalid request: Content-Length and Transfer-Encoding")
    if coding.lower() != "chunked" or version != "1.1":
        raise InvalidRequest("Invalid Transfer-Encoding: only chunked is served")
