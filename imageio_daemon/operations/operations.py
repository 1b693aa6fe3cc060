# SPDX-License-Identifier: Apache-2.0
"""The operations on images. All requests that Python serves go through them from the frontends to storage.

An operation checks its range, is tracked by its transfer, and ends if the transfer is cancelled. Operations know
neither HTTP nor NBD nor files. They move no bytes, which is the work of lanes. The caller has to authorise the access.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Unpack

from ..errors import DENIED, Canceled, NotFound, OutOfRange, StorageError
from ..image.extents import Extent, ExtentList, merged
from ..runtime.request_activity import RequestActivity, begin
from ..storage.backend import Backend, BackendInfo, Context
from ..storage.bucket import SMALL
from ..storage.durable import DurableRecord
from ..storage.operation import Kind, Operation, ZeroMethod
from ..transfers.ticket import Access
from ..transfers.transfer import OperationOptions, Transfer

#: Extents that durable() passes to its consumer at a time.
DURABLE_BATCH = 4096


def readable_size(transfer: Transfer, backend: Backend) -> int:
    """Return how many bytes can be read: the size of the ticket, or of the image if that is smaller."""
    size = backend.info.size
    transfer.covered = size >= transfer.ticket.size
    return min(transfer.ticket.size, size)


def require_room(transfer: Transfer, backend: Backend, offset: int, length: int) -> None:
    """Raise OutOfRange unless the image has the bytes, or can grow. `offset` and `length` are in bytes."""
    if transfer.covered:
        return  # the caller has compared the range with the size of the ticket
    info = backend.info
    transfer.covered = info.size >= transfer.ticket.size
    if not info.can_grow and offset + length > info.size:
        size = readable_size(transfer, backend)
        raise OutOfRange(f"Requested range {offset}..{offset + length} is outside of the image's {size} bytes", size)


@asynccontextmanager
async def running(
    transfer: Transfer, access: Access | None, offset: int = 0, length: int = 0, **options: Unpack[OperationOptions]
) -> AsyncIterator[tuple[Operation, Backend]]:
    """Run the block as an operation of the transfer on its open image, as tracked() does. Raises StorageError."""
    async with tracked(transfer, access, offset, length, **options) as op:
        yield op, await transfer.backend()


@asynccontextmanager
async def tracked(
    transfer: Transfer, access: Access | None, offset: int = 0, length: int = 0, **options: Unpack[OperationOptions]
) -> AsyncIterator[Operation]:
    """Run the block as an operation of the transfer. Cancelling the transfer ends any wait in the block.

    An error in the block, or the cancellation of its task, also cancels what storage still does for the operation.
    Raises Forbidden, Canceled.
    """
    with transfer.track(access, offset, length, **options) as op:
        try:
            async with _interruptible(op):
                yield op
        except BaseException as e:
            if isinstance(e, StorageError):
                transfer.traffic.failed(op.kind)
            transfer.abandon(op)
            raise


async def open_image(transfer: Transfer, request: RequestActivity) -> None:
    """Open the image of a transfer for a request, before the operation that counts the request and its failure.

    The ticket is active during this. A cancel of the transfer ends the wait, and the end of the wait renews the ticket.
    Raises Forbidden, Canceled, StorageError.
    """
    begin(request)
    with transfer.track(None, part=True) as op:
        async with _interruptible(op):
            await transfer.backend()


@asynccontextmanager
async def ready(transfer: Transfer, access: Access, offset: int, length: int) -> AsyncIterator[None]:
    """Run the block, which starts a lane for a range of the open image, as an operation that counts the request.

    Raises OutOfRange, Forbidden, Canceled, StorageError.
    """
    transfer.ticket.require_range(offset, length)
    async with running(transfer, access, offset, length) as (_, backend):
        if access is Access.WRITE:
            require_room(transfer, backend, offset, length)
        yield


async def zero(
    transfer: Transfer,
    offset: int,
    length: int,
    *,
    flush: bool = False,
    fast_only: bool = False,
    allocate: bool = False,
    before: Callable[[], None] | None = None,
) -> ZeroMethod:
    """Make the range read as zeros by the fastest method that the ticket allows, and return the method.

    With `flush`, the zeros are on stable storage at the end. With `fast_only`, raises NotFast if zeroing needs data
    I/O. The range stays provisioned with `allocate`, and with tickets that are not sparse. `before` is called just
    before the change begins, and raises PeerGone if the client has left, as newer changes may have been made. Raises
    OutOfRange, Forbidden, Canceled, CannotFlush, StorageError, too.
    """
    transfer.ticket.require_range(offset, length)
    async with running(transfer, Access.WRITE, offset, length, kind=Kind.ZERO) as (op, backend):
        require_room(transfer, backend, offset, length)
        await transfer.bucket.take(SMALL)
        method = ZeroMethod.NONE
        if length:
            keep = allocate or not transfer.ticket.sparse
            if before is not None:
                before()
            method = await backend.zero(op, offset, length, allocate=keep, fast_only=fast_only)
            transfer.traffic.zeroed(method, length)
        if flush:
            await backend.flush(op)
        return method


async def flush(transfer: Transfer) -> None:
    """Put all changes whose requests were answered before on stable storage.

    Raises Forbidden, Canceled, CannotFlush, StorageError.
    """
    async with running(transfer, None, kind=Kind.FLUSH) as (op, backend):
        await backend.flush(op)


async def info(transfer: Transfer) -> BackendInfo:
    """Return the properties of the image. Ask storage for the size again: other programs may have changed it.

    Raises Forbidden, Canceled, StorageError.
    """
    async with running(transfer, None) as (op, backend):
        await backend.refresh(op)
        return backend.info


async def available(transfer: Transfer) -> int | None:
    """Return how many bytes of data the image may have, or None if that is not known.

    Call this as a part of a request. Raises Forbidden, Canceled, StorageError.
    """
    async with running(transfer, None, part=True) as (op, backend):
        return await backend.available(op)


async def reads_zero(transfer: Transfer) -> bool:
    """Return whether the whole image is known to read as zeros, and to be unchanged.

    Call this as a part of a request. Raises Forbidden, Canceled, StorageError.
    """
    async with running(transfer, None, part=True) as (op, backend):
        return await backend.reads_zero(op)


async def size(transfer: Transfer, *, part: bool = False) -> int:
    """Return how many bytes can be read now.

    OperationOptions explains `part`. Raises Forbidden, Canceled, StorageError.
    """
    backend = transfer.opened
    # Images only grow, and requests end at the ticket's size. No need to ask storage if the image has reached it.
    if part and backend is not None and readable_size(transfer, backend) == transfer.ticket.size:
        return transfer.ticket.size
    async with running(transfer, None, part=part) as (op, backend):
        await backend.refresh(op)
        return readable_size(transfer, backend)


async def extents(transfer: Transfer, context: Context, consume: Callable[[ExtentList], Awaitable[None]]) -> None:
    """Pass the extents of the image to the consumer, list by list. Cancelling the transfer ends its waits, too.

    Raises NotFound if the image does not have the context; Forbidden, Canceled, StorageError.
    """
    size = transfer.ticket.size
    async with running(transfer, None, kind=Kind.EXTENTS) as (op, backend):
        await transfer.bucket.take(SMALL)
        lists = merged(backend.extents(op, 0, size, context))
        async with aclosing(lists):
            async for found in lists:
                await consume(found)


async def durable(transfer: Transfer, consume: Callable[[ExtentList], Awaitable[None]]) -> None:
    """Pass extents that show the durable ranges to the consumer, list by list.

    Raises NotFound if there is no record. Also raises Forbidden, Canceled, StorageError.
    """
    async with running(transfer, None) as (op, backend):
        record = transfer.record
        if record is None:
            raise NotFound("There is no record of what is durable")
        await transfer.bucket.take(SMALL)
        await backend.refresh(op)
        await _tell_durable(record, readable_size(transfer, backend), consume)


async def _tell_durable(record: DurableRecord, size: int, consume: Callable[[ExtentList], Awaitable[None]]) -> None:
    found = ExtentList.of((), 0)
    for start, end in record.ranges():
        if start >= size:
            break
        if found.end < start:
            found.append(Extent(found.end, start - found.end))
        found.append(Extent(start, min(end, size) - start, durable=True))
        if len(found) >= DURABLE_BATCH:
            await consume(found)
            found = ExtentList.of((), end)
    if found.end < size:
        found.append(Extent(found.end, size - found.end))
    await consume(found)


@asynccontextmanager
async def _interruptible(op: Operation) -> AsyncIterator[None]:
    """End any wait in the block with Canceled when the operation is cancelled."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as deadline:
            op.on_cancel = lambda: _expire(deadline, loop)
            if op.canceled:  # before on_cancel was set
                deadline.reschedule(loop.time())
            try:
                yield
            finally:
                op.on_cancel = None
    except TimeoutError:
        if deadline.expired():
            raise Canceled(DENIED) from None
        raise


def _expire(deadline: asyncio.Timeout, loop: asyncio.AbstractEventLoop) -> None:
    try:
        deadline.reschedule(loop.time())
    except RuntimeError:
        return  # the operation was cancelled before
