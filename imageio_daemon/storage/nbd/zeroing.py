# SPDX-License-Identifier: Apache-2.0
"""Zeroing on an NBD server: when it is sure to be fast, and what is sent."""

from itertools import islice

from ...nbdproto.client.negotiation import Agreed
from ...nbdproto.constants import Command, CommandFlag, ExportFlag
from ..backend import Operation, ZeroMethod
from .blocks import Blocks
from .connection import Call
from .session import ClientSession

#: Requests of zeros that are written where the server cannot zero, at a time.
ZERO_WRITES = 4


def can_zero_fast(agreed: Agreed, zero_unit: int | None) -> bool:
    """Tell whether some ranges can be zeroed without data I/O. zero_unit: see NbdBackend.open()."""
    return zero_unit is not None and agreed.can(ExportFlag.SEND_FAST_ZERO)


def is_fast(session: ClientSession, zero_unit: int | None, offset: int, length: int) -> bool:
    """Tell whether a range is sure to be zeroed without data I/O: nothing is sent if it is not.

    A server that refuses SHOULD NOT change anything (proto.md, NBD_CMD_FLAG_FAST_ZERO), and may have done so.
    qemu-nbd 7.2 zeroes the whole clusters of a range before it refuses a part of one; on ext2 it punches a hole in
    a raw file before it finds out that it cannot allocate.
    """
    agreed, end = session.agreed, offset + length
    if zero_unit is None or not can_zero_fast(agreed, zero_unit):
        return False
    unit = max(zero_unit, agreed.sizes.minimum)  # powers of two
    whole = offset % unit == 0 and (end % unit == 0 or end == agreed.size)
    return whole and all(piece.length == length for piece in session.bare_pieces(offset, length))


async def zero_blocks(session: ClientSession, op: Operation, blocks: Blocks, flags: int, most: int) -> ZeroMethod:
    """Zero whole blocks, by the server if it can, else by writing zeros, at most so many bytes in a request.

    flags: of NBD_CMD_WRITE_ZEROES. Raises StorageError, ServerGone, and Canceled between requests.
    """
    length = blocks.end - blocks.start
    if length <= 0:
        return ZeroMethod.WRITE if blocks.edges else ZeroMethod.NONE
    if session.agreed.can(ExportFlag.SEND_WRITE_ZEROES):
        for piece in session.bare_pieces(blocks.start, length):
            op.require_running()
            await session.change([Call(op, Command.WRITE_ZEROES, *piece, flags, counts=piece.length)])
        return ZeroMethod.REMOTE
    zeros = memoryview(bytes(most))
    pieces = session.data_pieces(blocks.start, length, most)
    while batch := list(islice(pieces, ZERO_WRITES)):
        op.require_running()
        fua = flags & CommandFlag.FUA
        await session.change(
            [Call(op, Command.WRITE, *p, fua, payload=zeros[: p.length], counts=p.length) for p in batch]
        )
    return ZeroMethod.WRITE
