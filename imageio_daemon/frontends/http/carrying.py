# SPDX-License-Identifier: Apache-2.0
"""Requests that a handler decides and a lane carries out: the lane moves the bytes of the image, and answers."""

from collections.abc import Mapping

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11

from ...lanes.http import DATE, Instruction
from ...operations import operations
from ...transfers.ticket import Access
from ...transfers.transfer import Transfer
from .request import connection_of
from .responses import head_template


class SentByLane(web.StreamResponse):
    """An answer that a lane has sent. If it `is_last`, the connection ends with it."""

    def __init__(self, status: int, *, is_last: bool) -> None:
        super().__init__(status=status)
        self.is_last = is_last

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Do nothing."""
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing."""


def answer_to(request: web.Request, status: int, headers: Mapping[str, str], length: int, *, is_last: bool) -> bytes:
    """Return the head that aiohttp would send with a body of `length` bytes. DATE is in place of the date."""
    minor = 1 if request.version >= HttpVersion11 else 0
    return head_template(status, headers, str(length), DATE, close=is_last, minor=minor)


async def carry_out(request: web.Request, transfer: Transfer, instruction: Instruction, *, is_last: bool) -> SentByLane:
    """Have a lane carry out a request for the image of a transfer. `is_last` is what its answer says.

    Raises OutOfRange, Forbidden, Canceled, Unavailable, Truncated, InvalidRequest, TooManyDecoders, StorageError. After
    an error or a cancellation, a part of a body may be written. If the connection breaks, or an error comes after the
    answer has begun, the connection is cut.
    """
    connection, packed = connection_of(request), instruction.packed
    access = Access.WRITE if instruction.writes else Access.READ
    offset, length = (instruction.offset, instruction.length or 0) if packed is None else (0, 0)
    async with operations.ready(transfer, access, offset, length):
        ended = await connection.hand_out(transfer, instruction)
    if packed is not None:
        packed.close()
    connection.take_back(instruction, await ended)
    return SentByLane(instruction.status, is_last=is_last)
