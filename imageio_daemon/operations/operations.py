# SPDX-License-Identifier: Apache-2.0
"""What can be done with an image: the one choke point between the frontends and storage.

Each operation checks the range, is tracked by its transfer, ends when that is cancelled, and moves bytes through
buffers of the shared pool. Operations know neither HTTP nor NBD nor files. The caller has authorised the access.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

from ..errors import DENIED, Canceled
from ..image.extents import ExtentList, merged
from ..storage.backend import Backend, BackendInfo, Context, Operation, ZeroMethod
from ..storage.buffers import MAX_BUFFER, Buffers
from ..transfers.ticket import Access
from ..transfers.transfer import Transfer
from .bounds import readable_size, require_room
from .streaming import ByteSink, ByteSource, Peer, Writer, send


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


async def open_image(transfer: Transfer) -> None:
    """Have the image opened, for a request that is counted by what it does with it.

    The wait is part of the request: it is seen as active, ends with the ticket, and renews it. Raises Forbidden,
    Canceled, StorageError.
    """
    async with running(transfer, None, part=True):
        pass


async def write(
    transfer: Transfer, buffers: Buffers, offset: int, length: int | None, source: ByteSource, *, flush: bool
) -> None:
    """Write length bytes from the source at offset; None: all that it has. flush: on stable storage at the end.

    Receiving a piece overlaps the storage writes of the pieces before it. Raises Truncated when the source ends early,
    and PeerGone when the client has left: what was received before may have been written, nothing else is. Raises
    OutOfRange, Canceled, StorageError.
    """
    transfer.ticket.require_range(offset, length or 0)
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
    """Send length bytes from offset to the sink. Raises OutOfRange, Canceled, PeerGone, StorageError."""
    transfer.ticket.require_range(offset, length)
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
    peer: Peer | None = None,
) -> ZeroMethod:
    """Make the range read as zeros by the fastest way that the ticket allows. Raises NotFast with fast_only.

    allocate: the range stays provisioned, as it does anyway when the ticket is not sparse. peer: the client, checked
    just before the change. Raises PeerGone, OutOfRange, Canceled, StorageError.
    """
    transfer.ticket.require_range(offset, length)
    async with running(transfer, Access.WRITE, offset, length) as (op, backend):
        require_room(transfer, backend, offset, length)
        method = ZeroMethod.NONE
        if length:
            keep = allocate or not transfer.ticket.sparse
            if peer is not None:
                peer.require_alive()
            method = await backend.zero(op, offset, length, allocate=keep, fast_only=fast_only)
            transfer.zeroed(method, length)
        if flush:
            await backend.flush(op)
        return method


async def flush(transfer: Transfer) -> None:
    """Put all writes that were answered before on stable storage. Raises StorageError, CannotFlush, Canceled."""
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
    """Give the extents of the image to the consumer, list by list. Raises NotFound: the context is not available.

    The consumer may wait for its client: cancelling the transfer ends that wait, too.
    """
    size = transfer.ticket.size
    async with running(transfer, None) as (op, backend):
        lists = merged(backend.extents(op, 0, size, context))
        async with aclosing(lists):
            async for found in lists:
                await consume(found)


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
