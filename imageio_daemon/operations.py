# SPDX-License-Identifier: Apache-2.0
"""What can be done with an image: the one choke point between the frontends and storage.

Each operation checks the range, is tracked by its transfer, ends when that is cancelled, and moves bytes through
buffers of the shared pool. Operations know neither HTTP nor NBD nor files. The caller has authorised the access.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Protocol

from .buffers import MAX_BUFFER, PAGE, Buffer, BufferPool
from .errors import Canceled, Truncated
from .extents import Extent, ExtentList, merged
from .starting import readable_size, require_room
from .storage.base import Backend, BackendInfo, Context, Operation, ZeroMethod
from .tickets import Access
from .transfers import DENIED, Transfer
from .units import MiB

#: What a request that had to wait for memory moves at once. Of 64 downloads that nobody reads, with 80 MiB for all, 10
#: were answered at once, and 20 more each time that those before them had timed out, every 70 s. With this all are
#: answered after the first time.
SCARCE = 1 * MiB


class ByteSource(Protocol):
    """Where the bytes of a write come from."""

    async def readinto(self, view: memoryview) -> int:
        """Put at least one byte into the view and return how many; 0 at the end. Raises PeerGone."""
        ...


class ByteSink(Protocol):
    """Where the bytes of a read go."""

    async def write(self, view: memoryview) -> None:
        """Send the bytes; when it returns the memory may be used again. Raises PeerGone."""
        ...


class Buffers:
    """Buffers for the requests of all transfers. `size`: bytes moved at once, at most."""

    def __init__(self, pool: BufferPool, size: int) -> None:
        self.pool = pool
        self.size = size

    @asynccontextmanager
    async def lease(self, length: int | None, most: int = 2, piece: int = MAX_BUFFER) -> AsyncIterator[list[Buffer]]:
        """Lend one buffer, and more for requests that can use them, if they are there without waiting.

        Who has to wait for the first one gets SCARCE bytes at most. piece: bytes moved at once, at most, where that is
        less than `size`.
        """
        size = min(self.size, piece)
        wanted = size if length is None else min(size, length + PAGE)
        first = self.pool.try_acquire(wanted)
        if first is None:
            wanted = min(wanted, SCARCE)
            first = await self.pool.acquire(wanted)
        buffers = [first]
        try:
            if length is None or length > wanted - PAGE:
                others = (self.pool.try_acquire(wanted) for _ in range(most - 1))
                buffers += [buffer for buffer in others if buffer is not None]
            yield buffers
        finally:
            for buffer in buffers:
                buffer.release()


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
        async with buffers.lease(length, 1 + writes, piece) as lent:
            await _Writer(transfer, backend, op, lent, piece).run(offset, length, source)
        if flush:
            await backend.flush(op)


async def read(transfer: Transfer, buffers: Buffers, offset: int, length: int, sink: ByteSink) -> None:
    """Send length bytes from offset to the sink. Reading a piece overlaps sending the one before it."""
    transfer.require_range(offset, length)
    async with running(transfer, Access.READ, offset, length) as (op, backend), buffers.lease(length) as lent:
        await _send(backend, op, lent, offset, length, sink)


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


class _Writer:
    """Fill one buffer while the others are written. Pieces end at multiples of `most` at the latest."""

    def __init__(self, transfer: Transfer, backend: Backend, op: Operation, buffers: list[Buffer], most: int) -> None:
        self._transfer = transfer
        self._backend = backend
        self._op = op
        self._buffers = buffers
        self._most = most
        self._pending: deque[asyncio.Future[object]] = deque()  # the oldest first

    async def run(self, offset: int, length: int | None, source: ByteSource) -> None:
        end = None if length is None else offset + length
        position = offset
        turn = 0
        # One buffer is filled meanwhile.
        others = max(1, len(self._buffers) - 1)
        try:
            while end is None or position < end:
                buffer = self._buffers[turn % len(self._buffers)]
                # The same place in a page as in the image, so that whole blocks are not copied by the storage.
                start = position % PAGE
                room = min(buffer.size - start, self._most - position % self._most)
                if end is not None:
                    room = min(room, end - position)
                if len(self._buffers) == 1:
                    await self._settle(0)
                filled = await _fill(source, buffer.view[start : start + room], exact=end is not None)
                await self._settle(others - 1)
                if not filled:
                    break
                require_room(self._transfer, self._backend, position, filled)
                self._transfer.require_range(position, filled)
                piece = buffer.slice(start, start + filled)
                self._pending.append(asyncio.ensure_future(self._backend.pwrite(self._op, piece, position)))
                position += filled
                turn += 1
            await self._settle(0)
        finally:
            for pending in self._pending:
                pending.cancel()

    async def _settle(self, left: int) -> None:
        """Wait for the oldest writes, until no more than `left` are under way."""
        while len(self._pending) > left:
            await self._pending.popleft()


async def _fill(source: ByteSource, view: memoryview, *, exact: bool) -> int:
    filled = 0
    while filled < len(view):
        count = await source.readinto(view[filled:])
        if not count:
            if exact:
                raise Truncated("The request's body is shorter than its Content-Length")
            break
        filled += count
    return filled


async def _send(
    backend: Backend, op: Operation, buffers: list[Buffer], offset: int, length: int, sink: ByteSink
) -> None:
    end = offset + length
    ahead: list[tuple[memoryview, asyncio.Future[object]]] = []
    turn = 0
    try:
        while offset < end or ahead:
            while offset < end and len(ahead) < len(buffers):
                buffer = buffers[turn % len(buffers)]
                start = offset % PAGE
                piece = buffer.slice(start, start + min(buffer.size - start, end - offset))
                ahead.append((piece.view, asyncio.ensure_future(backend.pread(op, piece, offset))))
                offset += len(piece)
                turn += 1
            view, pending = ahead[0]
            await pending
            await sink.write(view)
            # Only now may the next read use this buffer.
            ahead.pop(0)
    finally:
        for _, pending in ahead:
            pending.cancel()
