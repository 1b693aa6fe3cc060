# SPDX-License-Identifier: Apache-2.0
"""Payloads of NBD's chunks and replies, as servers of tests write them and clients of tests read them."""

import struct
from collections.abc import Sequence

from imageio_daemon.nbdproto.messages import (
    COMPACT_EXTENT,
    CONTEXT,
    CONTEXT_COUNT,
    ERROR,
    EXTENDED_EXTENT,
    HOLE,
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
