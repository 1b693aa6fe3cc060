# SPDX-License-Identifier: Apache-2.0
"""A server of NBD in Python: the negotiation of the daemon, and a transmission of its own, one request at a time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from imageio_daemon.errors import Error, Forbidden, NotFast, OutOfRange, StorageError
from imageio_daemon.frontends.nbd import exports
from imageio_daemon.frontends.nbd.errors import ERRORS
from imageio_daemon.frontends.nbd.exports import PREFERRED_BLOCK
from imageio_daemon.image.extents import ZERO, Extent, ExtentList
from imageio_daemon.nbdproto.agreement import Close, FindExport, Transmit
from imageio_daemon.nbdproto.constants import Command, CommandFlag, ErrorNumber, Reply, Status
from imageio_daemon.nbdproto.server_negotiation import ServerNegotiation
from imageio_daemon.operations import operations
from imageio_daemon.storage.backend import Backend, Context
from imageio_daemon.storage.buffers import MAX_BUFFER, MIN_BUFFER, BufferPool
from imageio_daemon.storage.operation import Operation
from imageio_daemon.transfers.ticket import Access
from imageio_daemon.transfers.transfer import Transfer
from tests.frontends.nbd.world import MiB, World
from tests.support.changes import pwrite, trim
from tests.support.nbdoracle.limits import FAILED, MAX_EXTENTS, NOT_FAST, OUTSIDE
from tests.support.nbdoracle.replies import ExtendedReplies, Replies, SimpleReplies, StructuredReplies
from tests.support.nbdoracle.requests import Request, Requests


class OracleWorld(World):
    """A world whose connections nobody serves but this."""

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_unix_server(self._serve, self.address)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
            entered = await self._negotiate(reader, writer)
            if entered is not None:
                await Oracle(self.pool, *entered).serve(reader, writer)

    async def _negotiate(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Transfer, Transmit] | None:
        negotiation = ServerNegotiation(preferred=PREFERRED_BLOCK)
        writer.write(negotiation.take_output())
        while data := await reader.read(MiB):
            negotiation.feed(data)
            event = negotiation.next_event()
            while isinstance(event, FindExport):
                try:
                    transfer, export = await exports.find(self.store, event.name)
                except Forbidden as e:
                    event = negotiation.refused(Reply.ERR_UNKNOWN, str(e))
                else:
                    event = negotiation.found(export)
                event = event or negotiation.next_event()
            writer.write(negotiation.take_output())
            if isinstance(event, Transmit):
                return transfer, event
            if isinstance(event, Close):
                return None
        return None


class Oracle:
    """One connection in its transmission."""

    def __init__(self, pool: BufferPool, transfer: Transfer, entered: Transmit) -> None:
        self._pool = pool
        self._transfer = transfer
        self._rest = entered.rest
        self._requests = Requests(entered.transmission)
        self._replies = _replies(self._requests)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert not self._rest, "clients of the oracle wait for its answers"
        ends = False
        while not ends:
            request = self._requests.parse(await reader.readexactly(self._requests.header_size))
            ends = request.must_end or (request.command == Command.DISC and request.error is None)
            payload = b"" if ends else await reader.readexactly(request.payload)
            if request.command != Command.DISC or request.error is not None:
                writer.write(await self._answer(request, payload))
                await writer.drain()

    async def _answer(self, request: Request, payload: bytes) -> bytes:
        if request.error is not None:
            return self._replies.failure(request, request.error, request.text)
        try:
            return await self._act(request, payload)
        except Error as e:
            return self._replies.failure(request, *_told(request, e))

    async def _act(self, request: Request, payload: bytes) -> bytes:
        command, offset, length = request.command, request.offset, request.length
        if command == Command.FLUSH:
            await operations.flush(self._transfer)
        elif command == Command.READ and length:
            data = await self._read(offset, length)
            return self._replies.data(request, offset, length, done=True) + data
        elif command == Command.WRITE and length:
            await self._write(offset, payload, fua=request.fua)
        elif command == Command.WRITE_ZEROES and length:
            fast, allocate = (bool(request.flags & flag) for flag in (CommandFlag.FAST_ZERO, CommandFlag.NO_HOLE))
            await operations.zero(self._transfer, offset, length, flush=request.fua, fast_only=fast, allocate=allocate)
        elif command == Command.TRIM and length:
            await self._trim(offset, length, fua=request.fua)
        elif command == Command.BLOCK_STATUS:
            return await self._status(request)
        return self._replies.success(request)

    async def _read(self, offset: int, length: int) -> bytes:
        data = bytearray(length)  # what the image has not got reads as zeros
        async with operations.running(self._transfer, Access.READ, offset, length) as (op, backend):
            end = min(offset + length, backend.info.size)
            for start in range(offset, end, MiB):
                piece = await self._pool.acquire(max(MIN_BUFFER, MiB))
                part = piece.slice(0, min(MiB, end - start))
                try:
                    await backend.pread(op, part, start)
                    data[start - offset : start - offset + len(part)] = part.view
                finally:
                    piece.release()
        return bytes(data)

    async def _write(self, offset: int, payload: bytes, *, fua: bool) -> None:
        async with operations.running(self._transfer, Access.WRITE, offset, len(payload)) as (op, backend):
            for start in range(0, len(payload), MiB):
                await self._write_piece(op, backend, offset + start, payload[start : start + MiB])
            if fua:
                await backend.flush(op)

    async def _write_piece(self, op: Operation, backend: Backend, offset: int, data: bytes) -> None:
        buffer = await self._pool.acquire(MAX_BUFFER)
        try:
            piece = buffer.slice(0, len(data))
            piece.view[:] = data
            await pwrite(backend, op, piece, offset)
        finally:
            buffer.release()

    async def _trim(self, offset: int, length: int, *, fua: bool) -> None:
        async with operations.running(self._transfer, Access.WRITE, offset, length) as (op, backend):
            if self._transfer.ticket.sparse:
                await trim(backend, op, offset, length)
            if fua:
                await backend.flush(op)

    async def _status(self, request: Request) -> bytes:
        found = ExtentList.of((), request.offset)
        async with operations.running(self._transfer, None) as (op, backend):
            async for more in _lists(backend, op, request):
                found.extend(more)
        end, most = request.offset + request.length, 1 if request.flags & CommandFlag.REQ_ONE else MAX_EXTENTS
        if found.end < end and len(found) < most:
            found.append(Extent(found.end, end - found.end, zero=True))
        lengths = [extent.length for extent in found][:most]
        statuses = [Status.HOLE | Status.ZERO if flags & ZERO else 0 for flags in found.flags][:most]
        return self._replies.status(request, 1, lengths, statuses)


def _lists(backend: Backend, op: Operation, request: Request) -> AsyncIterator[ExtentList]:
    return backend.extents(op, request.offset, request.length, Context.ZERO)


def _replies(requests: Requests) -> Replies:
    if requests.extended:
        return ExtendedReplies()
    return StructuredReplies() if requests.structured else SimpleReplies()


def _told(request: Request, error: Error) -> tuple[ErrorNumber, str]:
    if isinstance(error, NotFast):
        return ErrorNumber.ENOTSUP, NOT_FAST
    if isinstance(error, OutOfRange):
        writes = request.command in (Command.WRITE, Command.WRITE_ZEROES)
        return ErrorNumber.ENOSPC if writes else ErrorNumber.EINVAL, OUTSIDE
    number = error.errno if isinstance(error, StorageError) else 0
    return ERRORS.get(number, ErrorNumber.EIO), FAILED
