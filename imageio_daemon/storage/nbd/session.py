# SPDX-License-Identifier: Apache-2.0
"""The connections of one transfer to an NBD server, and the segments of the image that belong to each of them."""

import asyncio
import errno
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from ...errors import Canceled, CannotFlush, Error, ServerGone, StorageError
from ...image.extents import Extent, ExtentList
from ...nbdproto.client.negotiation import Agreed
from ...nbdproto.constants import Command, CommandFlag, ErrorNumber, ExportFlag
from ...service import logs
from ...units import KiB, MiB
from ...urls.nbd import NbdAddress
from ..backend import Context, Operation
from ..work import Countdown
from . import extents as nbd_extents
from .blocks import Blocks
from .connection import Call, ClientConnection
from .handshake import ClientHandshake, Options

log = logging.getLogger(__name__)

#: Bytes of a segment. All reads and writes of a segment use one connection. So no server returns old data because the
#: new data is in the cache of another connection, whether or not it says NBD_FLAG_CAN_MULTI_CONN (proto.md).
SEGMENT = 128 * MiB
#: Seconds for the greeting of each connection after the first. A server that serves one connection (the default of
#: qemu-nbd) never greets the others.
GREETING_TIMEOUT = 2.0
#: Most bytes of a request without data if lengths have 32 bits: a multiple of each block size up to 64 KiB.
MAX_COMPACT_LENGTH = 2**32 - 64 * KiB
#: Most bytes of a request for block status if lengths have 32 bits: some servers use signed numbers.
MAX_COMPACT_STATUS = 2**31 - 64 * KiB


class Piece(NamedTuple):
    """A part of a range that fits into one request. offset, length: in bytes."""

    offset: int
    length: int


class ClientSession:
    """Connections to one export that have negotiated the same. The end of one connection ends all of them."""

    def __init__(self, address: NbdAddress, connections: list[ClientConnection]) -> None:
        self._address = address
        self._connections = connections
        self.agreed = connections[0].agreed
        #: Number of answered changes, and of those that a flush has covered. The others may be lost with the server.
        self._changed = 0
        self._flushed = 0
        self._leaving = False
        for connection in connections:
            connection.lost.add_done_callback(self._connection_lost)

    @classmethod
    async def open(cls, address: NbdAddress, options: Options, wanted: int) -> "ClientSession":
        """Open a session of 1 to `wanted` connections. Raises ServerGone if the first connection fails.

        It leaves out further connections that fail, get no greeting in GREETING_TIMEOUT, or negotiate something else.
        If the task is cancelled, all connections are aborted.
        """
        first = await ClientHandshake.connect(address, options)
        opened = [first]
        later = options._replace(greeting_timeout=min(GREETING_TIMEOUT, options.greeting_timeout))

        async def open_another() -> None:
            with suppress(ServerGone):
                opened.append(await ClientHandshake.connect(address, later))

        try:
            await asyncio.gather(*(open_another() for _ in range(wanted - 1)))
        except BaseException:
            for connection in opened:
                connection.abort(ServerGone(str(address), "nobody waits for it any more"))
            raise
        connections = [c for c in opened if c is first or (c.agreed == first.agreed and not c.lost.done())]
        for connection in opened:
            if connection not in connections:
                await connection.close()
        agreed = first.agreed
        log.info(
            "connected to an NBD server",
            extra=logs.fields(
                server=str(address),
                connections=len(connections),
                size=agreed.size,
                flags=f"{agreed.flags:#x}",
                headers="extended" if agreed.extended else "structured" if agreed.structured else "simple",
                blocks=",".join(map(str, agreed.sizes)),
                contexts=len(agreed.contexts),
            ),
        )
        return cls(address, connections)

    @property
    def alive(self) -> bool:
        """Tell whether the session takes requests: no connection has ended, and the server is not shutting down."""
        if self._leaving:
            return False
        for connection in self._connections:  # noqa: SIM110 - asked for each request, and any() takes twice as long
            if connection.lost.done():
                return False
        return True

    @property
    def lost_changes(self) -> bool:
        """Tell whether changes are lost if the server is gone: some are answered and not flushed, or not answered."""
        return self._changed > self._flushed or any(connection.gave_up_changes for connection in self._connections)

    def data_pieces(self, offset: int, length: int, most: int) -> Iterator[Piece]:
        """Cut a range into requests with data, each of at most `most` bytes, inside one segment."""
        if 0 < length <= most and length <= self.agreed.sizes.maximum and offset % SEGMENT + length <= SEGMENT:
            return iter((Piece(offset, length),))
        return self._pieces(offset, length, min(most, self.agreed.sizes.maximum), borders=True)

    def bare_pieces(self, offset: int, length: int) -> Iterator[Piece]:
        """Cut a range into requests without data, each as long as the server accepts."""
        most = length if self.agreed.extended else MAX_COMPACT_LENGTH
        return self._pieces(offset, length, most, borders=not self._may_mix)

    def _status_piece(self, offset: int, length: int) -> Piece:
        """Return the first part of a range, as long as one request for block status may be."""
        most = length if self.agreed.extended else MAX_COMPACT_STATUS
        return next(self._pieces(offset, length, most, borders=not self._may_mix))

    @property
    def _may_mix(self) -> bool:
        """Tell whether a request may span segments of several connections (proto.md, NBD_FLAG_CAN_MULTI_CONN)."""
        return len(self._connections) == 1 or self.agreed.can(ExportFlag.CAN_MULTI_CONN)

    @staticmethod
    def _pieces(offset: int, length: int, most: int, *, borders: bool) -> Iterator[Piece]:
        end = offset + length
        while offset < end:
            count = min(end - offset, most)
            if borders:
                count = min(count, SEGMENT - offset % SEGMENT)
            yield Piece(offset, count)
            offset += count

    async def run(self, calls: Sequence[Call]) -> None:
        """Send requests, each on the connection of its segment, and wait until all have ended.

        If one fails, the others are still waited for, because their memory is in use. Raises the first failure:
        StorageError, ServerGone, or Canceled for a request that was not sent.
        """
        end = Countdown(len(calls))
        for call in calls:
            self._connections[call.offset // SEGMENT % len(self._connections)].start(call, end)
        await end
        self._finish(calls)

    async def change(self, calls: Sequence[Call]) -> None:
        """Send requests that change the image, as run() does, and count the change unless all of them have FUA."""
        await self.run(calls)
        self._changed += any(not call.flags & CommandFlag.FUA for call in calls)

    async def flush(self, op: Operation) -> None:
        """Put all answered changes on stable storage, with a flush on each connection.

        Raises CannotFlush if the server does not offer it, and what run() raises.
        """
        if not self.agreed.can(ExportFlag.SEND_FLUSH):
            raise CannotFlush(f"NBD server {self._address}")
        changed = self._changed
        calls = [Call(op, Command.FLUSH) for _ in self._connections]
        end = Countdown(len(calls))
        for connection, call in zip(self._connections, calls, strict=True):
            connection.start(call, end)
        await end
        self._finish(calls)
        self._flushed = max(self._flushed, changed)

    async def status(self, op: Operation, offset: int, length: int, context: Context, flags: int = 0) -> ExtentList:
        """Return the extents from the beginning of a range as far as the server reports them; at least one.

        offset, length: bytes of the image, length above 0. The request is for whole blocks (proto.md, "Block size
        constraints"). Without a context for it, the range is one extent of data. Raises StorageError with EPROTO if the
        reply is not consistent, and what run() raises.
        """
        agreed = self.agreed
        contexts = nbd_extents.wanted_contexts(agreed, context)
        if not contexts:
            return ExtentList.of([Extent(offset, length)], offset)
        start = offset // agreed.sizes.minimum * agreed.sizes.minimum
        end = -(-(offset + length) // agreed.sizes.minimum) * agreed.sizes.minimum
        piece = self._status_piece(start, end - start)
        call = Call(op, Command.BLOCK_STATUS, *piece, flags)
        await self.run([call])
        until = min(piece.offset + piece.length, offset + length)
        try:
            found = nbd_extents.extents(call.statuses, contexts, start, until, extended=agreed.extended)
        except ValueError as e:
            raise self._broken(str(e)) from None
        found.drop(offset)
        if not found:
            raise self._broken(f"no status at {offset}")
        return found

    def _broken(self, reason: str) -> StorageError:
        return StorageError(errno.EPROTO, f"NBD server {self._address}", reason)

    def _finish(self, calls: Sequence[Call]) -> None:
        failure: Error | None = None
        for call in calls:
            error = call.failure
            if error is not None:
                self._leaving |= call.error == ErrorNumber.ESHUTDOWN
                if failure is None or isinstance(failure, Canceled):  # what storage has said comes first
                    failure = ServerGone(str(self._address), "it is shutting down") if self._leaving else error
            elif failure is None:
                call.op.advance(call.counts)
        if failure is not None:
            raise failure

    def drop_canceled(self) -> None:
        """End requests that are cancelled and not sent yet, with Canceled."""
        for connection in self._connections:
            connection.drop_canceled()

    async def close(self) -> None:
        """Close every connection in order and wait until all have ended; see ClientConnection.close()."""
        self._leaving = True
        await asyncio.gather(*(connection.close() for connection in self._connections))

    def _connection_lost(self, _: object) -> None:
        if not self._leaving:  # otherwise each connection ends by itself
            # The connections share one state, so the next operation needs a new session.
            self.abort("another connection of the transfer has ended")

    def abort(self, reason: str) -> None:
        """End every connection now, without NBD_CMD_DISC. Requests fail with ServerGone, which names the reason."""
        gone = ServerGone(str(self._address), reason)
        for connection in self._connections:
            if not connection.lost.done():
                connection.abort(gone)


def same_image(before: Agreed, now: Agreed) -> bool:
    """Tell whether the export is the same after a reconnection: size, block size, read-only flag and dirty bitmaps."""
    # Without a bitmap that was there before, changed ranges would be reported as unchanged.
    return _identity(before) == _identity(now)


def _identity(agreed: Agreed) -> tuple[int, int, bool, list[str]]:
    return agreed.size, agreed.sizes.minimum, agreed.can(ExportFlag.READ_ONLY), agreed.bitmaps


async def patched(
    session: ClientSession, op: Operation, blocks: Blocks, view: memoryview | None, flags: int
) -> list[Call]:
    """Read the blocks at the edges of a range and return writes of them with what is new. None: zeros."""
    edges = blocks.edges
    if not edges:
        return []
    await session.run([Call(op, Command.READ, e.block, len(e.memory), view=e.memory) for e in edges])
    for edge in edges:
        edge.memory[edge.inside] = bytes(edge.length) if view is None else view[edge.outside]
    return [Call(op, Command.WRITE, e.block, len(e.memory), flags, payload=e.memory, counts=e.length) for e in edges]
