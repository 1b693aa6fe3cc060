# SPDX-License-Identifier: Apache-2.0
"""The connections of one transfer to an NBD server, and which of them has which part of the image."""

import asyncio
import errno
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from ...errors import CannotFlush, Error, ServerGone, StorageError
from ...image.extents import Extent, ExtentList
from ...nbdproto.client.negotiation import Agreed
from ...nbdproto.constants import Command, CommandFlag, ErrorNumber, ExportFlag
from ...service import logs
from ...units import KiB, MiB
from ...urls.nbd import NbdAddress
from ..backend import Context, Operation
from ..work import Countdown
from . import extents as nbd_extents
from .connection import Call, ClientConnection
from .handshake import ClientHandshake, Options

log = logging.getLogger(__name__)

#: All reads and writes of a segment of the image go through one connection: then no server can show one connection
#: old data because another one's are still in a cache of its own, whether it says CAN_MULTI_CONN or not.
SEGMENT = 128 * MiB
#: How long the connections after the first may take to their greeting, in seconds. Servers that serve one only
#: (qemu-nbd by default) let the others wait for ever.
GREETING_TIMEOUT = 2.0
#: The most that a request without data is long with a 32-bit length, in bytes; whole blocks of any size.
MAX_COMPACT_LENGTH = 2**32 - 64 * KiB
#: The most that is asked about at once with a 32-bit length: some servers count in signed numbers.
MAX_COMPACT_STATUS = 2**31 - 64 * KiB


class Piece(NamedTuple):
    """A part of a range that fits into one request."""

    offset: int
    length: int


class ClientSession:
    """Some connections to one export, which agree on everything. What ends one of them ends all."""

    def __init__(self, address: NbdAddress, connections: list[ClientConnection]) -> None:
        self._address = address
        self._connections = connections
        self.agreed = connections[0].agreed
        #: Changes that were answered, and those of them that a flush has covered: the others may die with the server.
        self._changed = 0
        self._flushed = 0
        self._leaving = False
        for connection in connections:
            connection.lost.add_done_callback(self._connection_lost)

    @classmethod
    async def open(cls, address: NbdAddress, options: Options, wanted: int) -> "ClientSession":
        """Make at most `wanted` connections; at least one. Raises ServerGone."""
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
        """Tell whether requests can be made."""
        if self._leaving:
            return False
        for connection in self._connections:  # noqa: SIM110 - asked for each request, and any() takes twice as long
            if connection.lost.done():
                return False
        return True

    @property
    def lost_changes(self) -> bool:
        """Tell whether no flush has covered all changes that were answered, or some were not answered."""
        return self._changed > self._flushed or any(connection.gave_up_changes for connection in self._connections)

    def data_pieces(self, offset: int, length: int, most: int) -> Iterator[Piece]:
        """Cut a range for requests with data."""
        if 0 < length <= most and length <= self.agreed.sizes.maximum and offset % SEGMENT + length <= SEGMENT:
            return iter((Piece(offset, length),))
        return self._pieces(offset, length, min(most, self.agreed.sizes.maximum), borders=True)

    def bare_pieces(self, offset: int, length: int) -> Iterator[Piece]:
        """Cut a range for requests without data: as long as the server takes."""
        most = length if self.agreed.extended else MAX_COMPACT_LENGTH
        return self._pieces(offset, length, most, borders=not self._may_mix)

    def _status_piece(self, offset: int, length: int) -> Piece:
        """Return the beginning of a range that can be asked about at once."""
        most = length if self.agreed.extended else MAX_COMPACT_STATUS
        return next(self._pieces(offset, length, most, borders=not self._may_mix))

    @property
    def _may_mix(self) -> bool:
        """Tell whether a request may touch segments of several connections."""
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
        """Send requests, each through the connection that has its segment, and wait until all have ended.

        Whatever becomes of one, the others' memory is in use. Raises the first failure.
        """
        end = Countdown(len(calls))
        for call in calls:
            self._connections[call.offset // SEGMENT % len(self._connections)].start(call, end)
        await end
        self._finish(calls)

    async def change(self, calls: Sequence[Call]) -> None:
        """Do the same with requests that change the image."""
        await self.run(calls)
        self._changed += any(not call.flags & CommandFlag.FUA for call in calls)

    async def flush(self, op: Operation) -> None:
        """Put all changes that were answered on stable storage, through every connection. Raises CannotFlush."""
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
        """Return what the server tells of the beginning of a range of the image, which is not empty."""
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
                failure = failure or (ServerGone(str(self._address), "it is shutting down") if self._leaving else error)
            elif failure is None:
                call.op.advance(call.counts)
        if failure is not None:
            raise failure

    def drop_canceled(self) -> None:
        """End cancelled requests that were not sent yet."""
        for connection in self._connections:
            connection.drop_canceled()

    async def close(self) -> None:
        """Say goodbye on every connection and wait for the end."""
        self._leaving = True
        await asyncio.gather(*(connection.close() for connection in self._connections))

    def _connection_lost(self, _: object) -> None:
        if not self._leaving:  # else each ends as it can
            # One state for all: the next operation negotiates anew.
            self.abort("another connection of the transfer has ended")

    def abort(self, reason: str) -> None:
        """End every connection now, without a goodbye."""
        gone = ServerGone(str(self._address), reason)
        for connection in self._connections:
            if not connection.lost.done():
                connection.abort(gone)


def same_image(before: Agreed, now: Agreed) -> bool:
    """Tell whether a server that was connected to again has what it had."""
    # Without a bitmap that was there, what has changed would be told as if it had not.
    return _identity(before) == _identity(now)


def _identity(agreed: Agreed) -> tuple[int, int, bool, list[str]]:
    return agreed.size, agreed.sizes.minimum, agreed.can(ExportFlag.READ_ONLY), agreed.bitmaps
