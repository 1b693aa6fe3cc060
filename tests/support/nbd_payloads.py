# SPDX-License-Identifier: Apache-2.0
"""Headers and payloads of NBD's chunks and replies, for servers and clients of tests."""

import struct
from collections.abc import Sequence
from typing import Self

from imageio_daemon.nbdproto import constants, messages
from imageio_daemon.nbdproto.messages import (
    COMPACT_EXTENT,
    CONTEXT,
    CONTEXT_COUNT,
    ERROR,
    EXTENDED_EXTENT,
    HOLE,
    BadMagic,
    clean_text,
)


def pack_hole(offset: int, size: int) -> bytes:
    """Return the payload of OFFSET_HOLE."""
    return HOLE.pack(offset, size)


def pack_error(error: int, text: str) -> bytes:
    """Return the payload of ERROR. The text is cut to MAX_ERROR_TEXT bytes."""
    encoded = clean_text(text)
    return ERROR.pack(error, len(encoded)) + encoded


def pack_extents(context_id: int, lengths: Sequence[int], statuses: Sequence[int], *, extended: bool) -> bytes:
    """Return the payload of BLOCK_STATUS, or with extended headers of BLOCK_STATUS_EXT, without a loop over extents."""
    if extended:
        head, form = CONTEXT_COUNT.pack(context_id, len(lengths)), EXTENDED_EXTENT
    else:
        head, form = CONTEXT.pack(context_id), COMPACT_EXTENT
    numbers = [0] * (2 * len(lengths))
    numbers[::2], numbers[1::2] = lengths, statuses
    return head + struct.pack(f">{len(numbers)}{form.format[-1]}", *numbers)


def unpack_server(payload: bytes) -> tuple[str, str]:
    """Return name and description of the reply SERVER."""
    (length,) = struct.unpack_from(">I", payload)
    return payload[4 : 4 + length].decode(), payload[4 + length :].decode()


class RequestHeader(messages.RequestHeader):
    """The header of a request, as a server reads it."""

    @classmethod
    def unpack(cls, data: bytes, *, extended: bool = False) -> Self:
        """Return the message. Raises BadMagic."""
        compact = messages.COMPACT_REQUEST, constants.REQUEST
        form, wanted = (messages.EXTENDED_REQUEST_HEADER, constants.EXTENDED_REQUEST) if extended else compact
        magic, flags, command, cookie, offset, length = form.unpack(data)
        if magic != wanted:
            raise BadMagic(f"request magic {magic:#x}")
        return cls(command, flags, cookie, offset, length)


class SimpleReply(messages.SimpleReply):
    """A simple reply, as a server sends it."""

    def pack(self) -> bytes:
        """Return the message."""
        return messages.SIMPLE.pack(constants.SIMPLE_REPLY, self.error, self.cookie)


class ChunkHeader(messages.ChunkHeader):
    """The header of a chunk, as a server sends it."""

    def pack(self, *, extended: bool = False) -> bytes:
        """Return the header."""
        if extended:
            numbers = self.flags, self.type, self.cookie, self.offset, self.length
            return messages.EXTENDED.pack(constants.EXTENDED_CHUNK, *numbers)
        return messages.STRUCTURED.pack(constants.CHUNK, self.flags, self.type, self.cookie, self.length)
