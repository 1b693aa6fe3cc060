# SPDX-License-Identifier: Apache-2.0
"""Pack and unpack messages of the transmission phase. Numbers are big-endian (proto.md, "Transmission")."""

from struct import Struct
from typing import NamedTuple, Self

from .constants import CHUNK, DONE, EXTENDED_CHUNK, EXTENDED_REQUEST, MAX_ERROR_TEXT, REQUEST, SIMPLE_REPLY, Chunk

#: magic, flags, command, cookie, offset, length
COMPACT_REQUEST = Struct(">IHHQQI")
EXTENDED_REQUEST_HEADER = Struct(">IHHQQQ")
#: magic, error, cookie
SIMPLE = Struct(">IIQ")
#: magic, flags, type, cookie, length
STRUCTURED = Struct(">IHHQI")
#: magic, flags, type, cookie, offset, length
EXTENDED = Struct(">IHHQQQ")
#: The payloads of chunks begin so. NBD_REPLY_TYPE_OFFSET_DATA has its offset, NBD_REPLY_TYPE_OFFSET_HOLE has offset and
#: size, and NBD_REPLY_TYPE_ERROR has the error and the length of its text.
OFFSET = Struct(">Q")
HOLE = Struct(">QI")
ERROR = Struct(">IH")
#: The id of a context. With extended headers, the number of extents follows.
CONTEXT = Struct(">I")
CONTEXT_COUNT = Struct(">II")
#: length, status
COMPACT_EXTENT = Struct(">II")
EXTENDED_EXTENT = Struct(">QQ")


class BadMagic(Exception):
    """A message does not begin with its magic number, so the position in the stream is lost."""


class RequestHeader(NamedTuple):
    """The header of a request. `length` is that of the range, or of the payload with the flag PAYLOAD_LEN, in bytes."""

    command: int
    flags: int
    cookie: int
    offset: int
    length: int

    def pack(self, *, extended: bool = False) -> bytes:
        """Return the header; the payload of a WRITE follows it."""
        form, magic = (EXTENDED_REQUEST_HEADER, EXTENDED_REQUEST) if extended else (COMPACT_REQUEST, REQUEST)
        return form.pack(magic, self.flags, self.command, self.cookie, self.offset, self.length)


class SimpleReply(NamedTuple):
    """A simple reply. The data of a READ follows it if `error` is 0."""

    cookie: int
    error: int

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Return the message. Raises BadMagic."""
        magic, error, cookie = SIMPLE.unpack(data)
        if magic != SIMPLE_REPLY:
            raise BadMagic(f"simple reply magic {magic:#x}")
        return cls(cookie, error)


class ChunkHeader(NamedTuple):
    """The header of a chunk. `length` bytes of payload follow. Only extended headers have the request's `offset`."""

    type: int
    flags: int
    cookie: int
    length: int
    offset: int = 0

    @classmethod
    def unpack(cls, data: bytes, *, extended: bool = False) -> Self:
        """Return the header. Raises BadMagic."""
        if extended:
            magic, flags, kind, cookie, offset, length = EXTENDED.unpack(data)
            if magic != EXTENDED_CHUNK:
                raise BadMagic(f"extended chunk magic {magic:#x}")
            return cls(kind, flags, cookie, length, offset)
        magic, flags, kind, cookie, length = STRUCTURED.unpack(data)
        if magic != CHUNK:
            raise BadMagic(f"structured chunk magic {magic:#x}")
        return cls(kind, flags, cookie, length)

    @property
    def done(self) -> bool:
        """Return whether this is the last chunk of its reply."""
        return bool(self.flags & DONE)


def unpack_hole(payload: bytes) -> tuple[int, int]:
    """Return offset and size of a hole. Raises ValueError."""
    if len(payload) != HOLE.size:
        raise ValueError(f"hole of {len(payload)} bytes")
    offset, size = HOLE.unpack(payload)
    return offset, size


def unpack_error(kind: int, payload: bytes) -> tuple[int, str]:
    """Return the number and text of an error, from a chunk ERROR or ERROR_OFFSET. Raises ValueError."""
    least = ERROR.size + (OFFSET.size if kind == Chunk.ERROR_OFFSET else 0)
    if len(payload) < least:
        raise ValueError(f"error chunk of {len(payload)} bytes")
    error, length = ERROR.unpack_from(payload)
    if not error or length > len(payload) - least:
        raise ValueError(f"error chunk: number {error}, text of {length} bytes")
    return error, payload[ERROR.size : ERROR.size + length].decode(errors="replace")


def unpack_extents(payload: bytes, *, extended: bool) -> tuple[int, list[tuple[int, int]]]:
    """Return the id of the context, and the length and status of each extent. Raises ValueError."""
    head, form = (CONTEXT_COUNT, EXTENDED_EXTENT) if extended else (CONTEXT, COMPACT_EXTENT)
    count, left = divmod(len(payload) - head.size, form.size)
    if count < 1 or left:
        raise ValueError(f"status chunk of {len(payload)} bytes")
    context_id, *told = head.unpack_from(payload)
    if told and told[0] != count:
        raise ValueError(f"status chunk of {count} extents says {told[0]}")
    extents: list[tuple[int, int]] = list(form.iter_unpack(memoryview(payload)[head.size :]))
    if any(not length for length, _ in extents):
        raise ValueError("empty extent")
    return context_id, extents


def clean_text(text: str) -> bytes:
    """Return a text in UTF-8 for a peer, without control characters, cut to at most MAX_ERROR_TEXT bytes."""
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return printable.encode(errors="replace")[:MAX_ERROR_TEXT].decode(errors="ignore").encode()
