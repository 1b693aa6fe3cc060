# SPDX-License-Identifier: Apache-2.0
"""What can be done with an image: the one choke point between the frontends and storage.

Each operation checks the range, is tracked by its transfer, ends when that is cancelled, and moves bytes through
buffers of the shared pool. Operations know neither HTTP nor NBD nor files. The caller has authorised the access.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

from .buffers import MAX_BUFFER, Buffers
from .errors import DENIED, Canceled
from .extents import Extent, ExtentList, merged
from .pipeline import ByteSink, ByteSource, Writer, send
from .starting import readable_size, require_room
from .storage.base import Backend, BackendInfo, Context, Operation, ZeroMethod
from .tickets import Access
from .transfers import Transfer


@asynccontextmanager
async def running(
    transfer: Transfer, access: Access | None, offset: int = 0, length: int = 0, *, part: bool = False
) -> AsyncIterator[tuple[Operation, Backend]]:
    """Run the block as an operation of the transfer on its image; cancelling the transfer ends it wherever it waits.

    A block that is left early, by an error or because its task is cancelled, ends what storage still does for it, too.
    part: see Transfer.begin().
    """
    with transfer.track(access, offset, length, part=part) as op:
        try:
            async with _interruptible(op):
                yield op, await transfer.backend()
        except BaseException:
            transfer.abandon(op)
            raise


async def write(
    transfer: Transfer, buffers: Buffers, offset: int, length: int | None, source: ByteSource, *, flush: bool
) -> None:
    """Write length bytes from the source at offset; None: all that it has. flush: on stable storage at the end.

    Receiving a piece overlaps the storage writes of those before it. Raises Truncated when the source ends early:
    what came before may have been written, nothing else is.
    """
    transfer.require_range(offset, length or 0)
    async with running(transfer, Access.WRITE, offset, length or 0) as (op, backend):
        require_room(transfer, backend, offset, length or 0)
        writes, piece = 1, MAX_BUFFER
        if transfer.running == 1:  # several requests overlap anyway, and longer pieces cost less
            writes, piece = backend.info.writes, backend.info.write_piece
        async with buffers.lease(transfer, length, 1 + writes, piece) as lent:
            await Writer(transfer, backend, op, lent, piece).run(offset, length, source)
        if flush:
            await backend.flush(op)


async def read(transfer: Transfer, buffers: Buffers, offset: int, length: int, sink: ByteSink) -> None:
    """Send length bytes from offset to the sink. Reading a piece overlaps sending the one before it."""
    transfer.require_range(offset, length)
    async with running(transfer, Access.READ, offset, length) as (op, backend), buffers.lease(transfer, length) as lent:
        await send(backend, op, lent, offset, length, sink)


async def zero(
    transfer: Transfer,
    offset: int,
    length: int,
    *,
    flush: bool = False,
    fast_only: bool = False,
    allocate: bool = False,
) -> ZeroMethod:
    """Make the range read as zeros by the fastest way that the ticket allows. Raises NotFast with fast_only.

    allocate: it stays provisioned, as it does anyway when the ticket is not sparse.
    """
    transfer.require_range(offset, length)
    async with running(transfer, Access.WRITE, offset, length) as (op, backend):
        require_room(transfer, backend, offset, length)
        method = ZeroMethod.NONE
        if length:
            keep = allocate or not transfer.ticket.sparse
            method = await backend.zero(op, offset, length, allocate=keep, fast_only=fast_only)
            transfer.zeroed(method, length)
        if flush:
            await backend.flush(op)
        return method


async def trim(transfer: Transfer, offset: int, length: int, *, flush: bool = False) -> None:
    """Free storage of the range where that is possible: it says nothing on what is read there afterwards.

    A ticket that is not sparse keeps its storage: then nothing is freed.
    """
    transfer.require_range(offset, length)
    async with running(transfer, Access.WRITE, offset, length) as (op, backend):
        if length and transfer.ticket.sparse:
            await backend.trim(op, offset, length)
        if flush:
            await backend.flush(op)


async def flush(transfer: Transfer) -> None:
    """Put everything that was answered before on stable storage."""
    async with running(transfer, None) as (op, backend):
        await backend.flush(op)


async def info(transfer: Transfer) -> BackendInfo:
    """Return what the image is now: its size is asked for again, others may have changed it."""
    async with running(transfer, None) as (op, backend):
        await backend.refresh(op)
        return backend.info


async def size(transfer: Transfer, *, part: bool = False) -> int:
    """Return how many bytes can be read now. part: of a request that goes on to read them, and is counted there."""
    backend = transfer.opened
    # Images only grow, and more than the ticket says is not served: then nobody has to be asked.
    if part and backend is not None and readable_size(transfer, backend) == transfer.ticket.size:
        return transfer.ticket.size
    async with running(transfer, None, part=part) as (op, backend):
        await backend.refresh(op)
        return readable_size(transfer, backend)


async def extents(transfer: Transfer, context: Context, consume: Callable[[ExtentList], Awaitable[None]]) -> None:
    """Tell the consumer what the image holds, a list after the other. Raises NotFound: there is no such information.

    The consumer may wait for its peer: cancelling the transfer ends that too.
    """
    size = transfer.ticket.size
    async with running(transfer, None) as (op, backend):
        lists = merged(backend.extents(op, 0, size, context))
        async with aclosing(lists):
            async for found in lists:
                await consume(found)


async def extents_in(transfer: Transfer, context: Context, offset: int, length: int, most: int) -> ExtentList:
    """Return what a range holds, from offset: at most `most` extents, so maybe not all, nor all of the last.

    What lies past the image is zero. Raises NotFound.
    """
    transfer.require_range(offset, length)
    async with running(transfer, None) as (op, backend):
        found = ExtentList.of((), offset)
        async with aclosing(backend.extents(op, offset, length, context)) as lists:
            async for more in lists:
                found.extend(more)
                if len(found) >= most:
                    return found.take(most)
        if found.end < offset + length:
            found.append(Extent(found.end, offset + length - found.end, zero=True))
        return found


@asynccontextmanager
async def _interruptible(op: Operation) -> AsyncIterator[None]:
    """End the block, wherever it waits, when the operation is cancelled."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as deadline:
            op.on_cancel = lambda: _call_from_any_thread(loop, deadline)
            if op.canceled:  # by another thread, before it could call
                deadline.reschedule(loop.time())
            try:
                yield
            finally:
                op.on_cancel = None
    except TimeoutError:
        if deadline.expired():
            raise Canceled(DENIED) from None
        raise


def _call_from_any_thread(loop: asyncio.AbstractEventLoop, deadline: asyncio.Timeout) -> None:
    loop.call_soon_threadsafe(_expire, deadline, loop)


def _expire(deadline: asyncio.Timeout, loop: asyncio.AbstractEventLoop) -> None:
    try:
        deadline.reschedule(loop.time())
    except RuntimeError:
        return  # the operation has just ended by itself
