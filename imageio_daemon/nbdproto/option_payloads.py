# SPDX-License-Identifier: Apache-2.0
"""Pack and unpack messages of the negotiation. Numbers are big-endian (proto.md, "Newstyle negotiation")."""

from struct import Struct, error
from typing import NamedTuple, Self

from .constants import IHAVEOPT, MAX_NAME, MAX_QUERIES, MAX_STRING, NBDMAGIC, OPTION_REPLY, InfoType
from .messages import BadMagic

#: magic, magic, flags
GREETING = Struct(">QQH")
CLIENT_FLAGS = Struct(">I")
#: magic, option, length
OPTION = Struct(">QII")
#: magic, option, reply, length
REPLY = Struct(">QIII")
#: size, transmission flags
EXPORT = Struct(">QH")
INFO_EXPORT = Struct(">HQH")
INFO_BLOCK_SIZE = Struct(">HIII")
U16 = Struct(">H")
U32 = Struct(">I")
#: The reserved bytes after the reply to EXPORT_NAME, unless the client has set NO_ZEROES.
ZEROES = bytes(124)


class Malformed(Exception):
    """An option has a malformed payload. The text of the exception is for the peer."""


class TooMany(Exception):
    """An option has more items than the limit. The text of the exception is for the peer."""


def pack_greeting(flags: int) -> bytes:
    """Return the server's greeting. The flags are those of HandshakeFlag."""
    return GREETING.pack(NBDMAGIC, IHAVEOPT, flags)


def unpack_greeting(data: bytes) -> int:
    """Return the server's handshake flags. Raises BadMagic."""
    magic, version, flags = GREETING.unpack(data)
    if (magic, version) != (NBDMAGIC, IHAVEOPT):
        raise BadMagic(f"greeting {magic:#x} {version:#x}")
    return int(flags)


class OptionHeader(NamedTuple):
    """The header of an option. `length` bytes of payload follow."""

    option: int
    length: int

    def pack(self) -> bytes:
        """Return the header."""
        return OPTION.pack(IHAVEOPT, self.option, self.length)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Return the header. Raises BadMagic."""
        magic, option, length = OPTION.unpack(data)
        if magic != IHAVEOPT:
            raise BadMagic(f"option magic {magic:#x}")
        return cls(option, length)


class OptionReply(NamedTuple):
    """The header of an option reply. `length` bytes of payload follow."""

    option: int
    reply: int
    length: int

    def pack(self) -> bytes:
        """Return the header."""
        return REPLY.pack(OPTION_REPLY, self.option, self.reply, self.length)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Return the header. Raises BadMagic."""
        magic, option, reply, length = REPLY.unpack(data)
        if magic != OPTION_REPLY:
            raise BadMagic(f"option reply magic {magic:#x}")
        return cls(option, reply, length)


class InfoRequest(NamedTuple):
    """The payload of INFO and GO: the export's name and the types of information that the client asks for."""

    name: str
    infos: tuple[int, ...]

    def pack(self) -> bytes:
        """Return the payload."""
        return _pack_string(self.name) + U16.pack(len(self.infos)) + b"".join(map(U16.pack, self.infos))

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        """Return the message. Raises Malformed."""
        reader = _PayloadReader(payload)
        name = reader.name()
        count = reader.number(U16)
        if count * U16.size != reader.left:
            raise Malformed(f"{count} items in {reader.left} bytes")
        return cls(name, tuple(info for (info,) in U16.iter_unpack(reader.rest())))


class ContextRequest(NamedTuple):
    """The payload of LIST_META_CONTEXT and SET_META_CONTEXT: the export's name and queries."""

    name: str
    queries: tuple[str, ...]

    def pack(self) -> bytes:
        """Return the payload."""
        return _pack_string(self.name) + U32.pack(len(self.queries)) + b"".join(map(_pack_string, self.queries))

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        """Return the message. Raises Malformed, TooMany."""
        reader = _PayloadReader(payload)
        name = reader.name()
        count = reader.number(U32)
        if count * U32.size > reader.left:
            raise Malformed("more queries than bytes for them")
        if count > MAX_QUERIES:
            raise TooMany(f"more than {MAX_QUERIES} queries")
        queries = tuple(reader.string(MAX_STRING) for _ in range(count))
        reader.end()
        return cls(name, queries)


class ExportInfo(NamedTuple):
    """The information EXPORT: size in bytes, and transmission flags."""

    size: int
    flags: int

    def pack(self) -> bytes:
        """Return the payload of the reply INFO."""
        return INFO_EXPORT.pack(InfoType.EXPORT, self.size, self.flags)

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        """Return the message. Raises struct.error."""
        _, size, flags = INFO_EXPORT.unpack(payload)
        return cls(size, flags)


class BlockSizes(NamedTuple):
    """The information BLOCK_SIZE, in bytes (proto.md, "Block size constraints")."""

    minimum: int
    preferred: int
    maximum: int

    def pack(self) -> bytes:
        """Return the payload of the reply INFO."""
        return INFO_BLOCK_SIZE.pack(InfoType.BLOCK_SIZE, *self)

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        """Return the message. Raises struct.error."""
        _, *sizes = INFO_BLOCK_SIZE.unpack(payload)
        return cls(*sizes)


def pack_text_info(info: InfoType, text: str) -> bytes:
    """Return the payload of the reply INFO for NAME and DESCRIPTION."""
    return U16.pack(info) + text.encode()


def pack_server(name: str, description: str = "") -> bytes:
    """Return the payload of the reply SERVER, which lists one export."""
    return _pack_string(name) + description.encode()


def pack_context(context_id: int, name: str) -> bytes:
    """Return the payload of the reply META_CONTEXT."""
    return U32.pack(context_id) + name.encode()


def unpack_context(payload: bytes) -> tuple[int, str]:
    """Return the id and name of a context. Raises struct.error."""
    return U32.unpack_from(payload)[0], payload[U32.size :].decode()


def unpack_name(payload: bytes) -> str:
    """Return the export's name, which is the whole payload of EXPORT_NAME. Raises Malformed."""
    return _decode(payload, MAX_NAME)


def _pack_string(text: str) -> bytes:
    encoded = text.encode()
    return U32.pack(len(encoded)) + encoded


def _decode(data: bytes, limit: int) -> str:
    if len(data) > limit:
        raise Malformed(f"string of more than {limit} bytes")
    if b"\0" in data:
        raise Malformed("string with a NUL character")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Malformed("string that is not UTF-8") from None


class _PayloadReader:
    """Read the fields of a payload in order, never past its end. Raises Malformed."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._payload) - self._position

    def number(self, form: Struct) -> int:
        try:
            (value,) = form.unpack_from(self._payload, self._position)
        except error:
            raise Malformed("payload too short") from None
        self._position += form.size
        return int(value)

    def name(self) -> str:
        return self.string(MAX_NAME)

    def string(self, limit: int) -> str:
        length = self.number(U32)
        if length > self.left:
            raise Malformed("string longer than its payload")
        self._position += length
        return _decode(self._payload[self._position - length : self._position], limit)

    def rest(self) -> bytes:
        return self._payload[self._position :]

    def end(self) -> None:
        if self.left:
            raise Malformed(f"{self.left} bytes too many")
