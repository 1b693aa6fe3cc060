# SPDX-License-Identifier: Apache-2.0
"""Operations that are begun without a task, and what of a ticket's bytes an image has.

See operations.py for what an operation is.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from .buffers import Slice
from .errors import OutOfRange
from .extents import ExtentList
from .storage.base import Backend, Operation
from .tickets import Access
from .transfers import Transfer

_T = TypeVar("_T")


def start_read(transfer: Transfer, backend: Backend, piece: Slice, offset: int) -> "asyncio.Future[object]":
    """Start to fill the piece with the bytes at offset, for frontends that run many requests without a task for each.

    backend: the transfer's, taken before. The storage retains the buffer until it has let go of it. Cancelling the
    transfer ends the operation. Raises Forbidden, OutOfRange; the future fails as the storage does.
    """
    transfer.require(Access.READ)
    return _start(transfer, backend, Access.READ, offset, len(piece), lambda op: backend.pread(op, piece, offset))


def start_write(
    transfer: Transfer, backend: Backend, piece: Slice, offset: int, *, fua: bool
) -> "asyncio.Future[object]":
    """Start to write the piece at offset; see start_read(). fua: on stable storage at the end."""
    transfer.require(Access.WRITE)
    return _start(
        transfer, backend, Access.WRITE, offset, len(piece), lambda op: backend.pwrite(op, piece, offset, fua=fua)
    )


def start_extent(transfer: Transfer, backend: Backend, offset: int, length: int) -> "asyncio.Future[ExtentList]":
    """Start to look for the extent at offset; see start_read() and Backend.extent_at()."""
    return _start(transfer, backend, None, offset, length, lambda op: backend.extent_at(op, offset, length))


def _start(
    transfer: Transfer,
    backend: Backend,
    access: Access | None,
    offset: int,
    length: int,
    call: Callable[[Operation], Awaitable[_T]],
) -> "asyncio.Future[_T]":
    transfer.require_range(offset, length)
    op = transfer.begin(access, offset, length, backend=backend)
    try:
        future = asyncio.ensure_future(call(op))
    except BaseException:
        op.release()
        raise
    future.add_done_callback(op.ended)
    return future


def readable_size(transfer: Transfer, backend: Backend) -> int:
    """Return the bytes that can be read: a ticket larger than the image serves what the image has."""
    size = backend.info.size
    transfer.covered = size >= transfer.ticket.size
    return min(transfer.ticket.size, size)


def require_room(transfer: Transfer, backend: Backend, offset: int, length: int) -> None:
    """Raise OutOfRange unless the image holds the bytes, or grows."""
    if transfer.covered:
        return  # who calls has compared the range with the ticket
    info = backend.info
    transfer.covered = info.size >= transfer.ticket.size
    if not info.can_grow and offset + length > info.size:
        size = readable_size(transfer, backend)
        raise OutOfRange(f"Requested range {offset}..{offset + length} is outside of the image's {size} bytes", size)
