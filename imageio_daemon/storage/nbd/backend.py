# SPDX-License-Identifier: Apache-2.0
"""Images that an NBD server has."""

import asyncio
import errno
import logging
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from typing import Self

from ...errors import NotFast, NotFound, OutOfRange, StorageError
from ...image.extents import ExtentList, ExtentStream
from ...nbdproto.constants import Command, CommandFlag, ExportFlag
from ...units import MiB
from ...urls.nbd import NbdAddress
from ..backend import BackendInfo, Context, Memory, Operation, ZeroMethod
from ..durable import NO_RECORD, DurableRecord
from ..exclusion import Exclusion
from ..external import External, Pieces, RemoteImage
from ..home_loop import HomeLoop
from .blocks import Blocks
from .connection import Call
from .handshake import Options
from .reconnecting import ReconnectingSession
from .session import ClientSession, patched
from .warm_up import WarmUp
from .zeroing import can_zero_fast, is_fast, zero_blocks

log = logging.getLogger(__name__)

#: Bytes of one READ or WRITE. They end at multiples: a cluster of qcow2 that two writes share is zeroed first, and the
#: second one waits for the first. Uploads of 1 GiB to Ceph RBD on 4 connections, 7 rounds, with 4 MiB and with 2 MiB:
#: 1.47 and 1.27 s, processor time of the OSD 1.06 and 0.81 s. Less is under way then, and stays in the processor's
#: cache. 1100 MiB into qcow2 on tmpfs: on 4 connections 0.80 s with both, on 1 connection 0.94 and 0.98 s.
PIECE = 2 * MiB
#: Pieces of a long write that are under way at a time: qemu-nbd and the disk work while more is received.
WRITES = 3


class NbdBackend(RemoteImage):
    """Serve one export; see Backend for the contract.

    Everything runs on the loop that opened it. When the server is gone, running operations fail, and the next one
    connects again; but changes that were answered and not flushed may be lost then, so flushing fails for ever.
    """

    def __init__(self, reconnecting: ReconnectingSession, zero_unit: int | None, name: str) -> None:
        self._reconnecting = reconnecting
        self._zero_unit = zero_unit
        self._warm_up: WarmUp | None = None
        self._home_loop = HomeLoop()
        self._exclusion = Exclusion()
        self._record = NO_RECORD
        self._external = External(
            self,
            name,
            reconnecting.address,
            Pieces(PIECE, WRITES),
            size=reconnecting.agreed.size,
            home_loop=self._home_loop,
        )

    @classmethod
    async def open(
        cls,
        address: NbdAddress,
        options: Options,
        *,
        connections: int,
        writable: bool,
        zero_unit: int | None = None,
        name: str | None = None,
    ) -> Self:
        """Connect. zero_unit: in bytes, ranges of whole ones are sure to be zeroed without data I/O; None: none is.

        name: of the image, in logs of operations that fail or hang; None: that of the server.
        Raises ServerGone, StorageError: it may not be written, or its size is none that can be served.
        """
        session = await ClientSession.open(address, options, connections)
        agreed = session.agreed
        failure = None
        if writable and agreed.can(ExportFlag.READ_ONLY):
            failure = StorageError(errno.EROFS, f"NBD server {address}", "the export is read-only")
        elif agreed.size % agreed.sizes.minimum:
            why = f"{agreed.size} bytes are not whole blocks of {agreed.sizes.minimum}"
            failure = StorageError(errno.EINVAL, f"NBD server {address}", why)
        if failure is not None:
            await session.close()
            raise failure
        if writable and not agreed.can(ExportFlag.SEND_FLUSH):
            log.warning("NBD server %s cannot flush: what is written may be lost, and each flush fails", address)
        try:
            reconnecting = ReconnectingSession(address, options, connections, session)
            backend = cls(reconnecting, zero_unit, name or f"NBD server {address}")
        except StorageError:  # no descriptor is left
            await session.close()
            raise
        if address.socket:
            backend._warm_up = WarmUp(session)
        return backend

    @property
    def info(self) -> BackendInfo:
        """Return what is known now; asks nobody."""
        agreed = self._reconnecting.agreed
        return BackendInfo(
            size=agreed.size,
            block_size=agreed.sizes.minimum,
            can_grow=False,
            can_fast_zero=can_zero_fast(agreed, self._zero_unit),
            can_fast_allocate=can_zero_fast(agreed, self._zero_unit),
            can_flush=agreed.can(ExportFlag.SEND_FLUSH),
            has_dirty=bool(agreed.bitmaps),
            write_piece=PIECE,
            writes=WRITES,
            unflushed=self._reconnecting.unflushed,
            lasting=repr(self._reconnecting.address),
        )

    @property
    def generation(self) -> int:
        """Return 0: the server has other clients, maybe."""
        return 0

    def refresh(self, op: Operation) -> Awaitable[object]:
        """Make sure that the server is there. An export's size does not change."""
        return self._home_loop.run(self._reconnecting.current(op), op)

    def pread(self, op: Operation, piece: Memory, offset: int) -> Awaitable[object]:
        """Fill the piece with the bytes at offset."""
        return self._home_loop.run(self._read(op, piece.view, offset), op, piece.buffer)

    def pwrite(self, op: Operation, piece: Memory, offset: int, *, fua: bool = False) -> Awaitable[object]:
        """Write the piece at offset."""
        return self._home_loop.run(self._write(op, piece.view, offset, fua=fua), op, piece.buffer)

    def zero(
        self, op: Operation, offset: int, length: int, *, allocate: bool, fast_only: bool = False, fua: bool = False
    ) -> Awaitable[ZeroMethod]:
        """Make the range read as zeros."""
        flags = (CommandFlag.NO_HOLE if allocate else 0) | (CommandFlag.FAST_ZERO if fast_only else 0)
        return self._home_loop.run(self._zero(op, offset, length, flags, fua=fua), op)

    def trim(self, op: Operation, offset: int, length: int) -> Awaitable[object]:
        """Free whole blocks inside the range."""
        return self._home_loop.run(self._trim(op, offset, length), op)

    def flush(self, op: Operation) -> Awaitable[object]:
        """Put everything that completed before on stable storage."""
        return self._home_loop.run(self._flush(op, op.offset, op.length), op)

    async def extents(self, op: Operation, offset: int, length: int, context: Context) -> ExtentStream:
        """Tell what the server tells. NotFound: it has no dirty bitmap, or the ticket is not a dirty one."""
        if context is Context.DIRTY and not self._reconnecting.agreed.bitmaps:
            raise NotFound("The image has no dirty bitmap")
        end = offset + length
        while offset < end and (
            found := await self._home_loop.run(self._status(op, offset, end - offset, context), op)
        ):
            offset = found.end
            yield found

    def extent_at(self, op: Operation, offset: int, length: int) -> Awaitable[ExtentList]:
        """Ask for one extent."""
        return self._home_loop.run(self._status(op, offset, length, Context.ZERO, CommandFlag.REQ_ONE), op)

    def keep(self, record: DurableRecord) -> None:
        """Record what the server has said is on stable storage."""
        self._record = record

    def interrupt(self) -> None:
        """End operations that were cancelled and of which nothing was sent. The others wait for their replies."""
        self._exclusion.drop_canceled()
        self._home_loop.call_soon(self._reconnecting.drop_canceled)

    async def close(self) -> None:
        """Say goodbye; no connection is left when this returns."""
        await self._home_loop.run(self._leave())

    # On the home loop

    async def _leave(self) -> None:
        await asyncio.create_task(self._say_goodbye())

    async def _say_goodbye(self) -> None:
        if self._warm_up is not None:
            await self._warm_up.end()
        await self._external.close()
        await self._reconnecting.close()

    async def _begin(self, op: Operation, offset: int, length: int) -> ClientSession:
        session = await self._reconnecting.current(op)
        if offset + length > session.agreed.size:
            raise OutOfRange(f"{offset}..{offset + length} is outside of the image's bytes", session.agreed.size)
        return session

    async def _read(self, op: Operation, view: memoryview, offset: int) -> None:
        session = await self._begin(op, offset, len(view))
        blocks = Blocks.of(offset, len(view), session.agreed.sizes.minimum)
        calls = [
            Call(op, Command.READ, edge.block, len(edge.memory), view=edge.memory, counts=edge.length)
            for edge in blocks.edges
        ]
        for piece in session.data_pieces(blocks.start, blocks.end - blocks.start, PIECE):
            start = piece.offset - offset
            memory = view[start : start + piece.length]
            calls.append(Call(op, Command.READ, *piece, view=memory, counts=piece.length))
        await session.run(calls)
        for edge in blocks.edges:
            view[edge.outside] = edge.memory[edge.inside]

    async def _write(self, op: Operation, view: memoryview, offset: int, *, fua: bool) -> None:
        length = len(view)
        async with self._changing(op, offset, length):
            await self._record.changing(offset, length)
            session = await self._begin(op, offset, length)
            blocks = Blocks.of(offset, length, session.agreed.sizes.minimum)
            flags = _fua(session) if fua else 0
            try:
                calls = await patched(session, op, blocks, view, flags)
                for piece in session.data_pieces(blocks.start, blocks.end - blocks.start, PIECE):
                    start = piece.offset - offset
                    payload = view[start : start + piece.length]
                    calls.append(Call(op, Command.WRITE, *piece, flags, payload=payload, counts=piece.length))
                await session.change(calls)
            except StorageError as e:
                self._reconnecting.failed(e, flags)
                raise
            self._changed(offset, length, durable=bool(flags))
        if fua and not flags:
            await self._flush(op, offset, length)

    async def _zero(self, op: Operation, offset: int, length: int, flags: int, *, fua: bool) -> ZeroMethod:
        if flags & CommandFlag.FAST_ZERO:
            session = await self._begin(op, offset, length)
            if not is_fast(session, self._zero_unit, offset, length):
                raise NotFast  # at once: it does not wait for other changes
        async with self._changing(op, offset, length):
            await self._record.changing(offset, length)
            session = await self._begin(op, offset, length)
            blocks = Blocks.of(offset, length, session.agreed.sizes.minimum)
            fua_flag = _fua(session) if fua else 0
            try:
                await session.change(await patched(session, op, blocks, None, fua_flag))
                method = await zero_blocks(session, op, blocks, flags | fua_flag, PIECE)
            except StorageError as e:
                self._reconnecting.failed(e, fua_flag)
                raise
            self._changed(offset, length, durable=bool(fua_flag))
        if fua and not fua_flag:
            await self._flush(op, offset, length)
        return method

    async def _trim(self, op: Operation, offset: int, length: int) -> None:
        async with self._changing(op, offset, length):
            await self._record.changing(offset, length)
            session = await self._begin(op, offset, length)
            blocks = Blocks.of(offset, length, session.agreed.sizes.minimum)
            if not session.agreed.can(ExportFlag.SEND_TRIM):
                return
            for piece in session.bare_pieces(blocks.start, blocks.end - blocks.start):
                op.require_running()
                await session.change([Call(op, Command.TRIM, *piece, counts=piece.length)])

    async def _flush(self, op: Operation, offset: int, length: int) -> None:
        async with self._record.flushing(offset, length):
            await self._reconnecting.flush(op)

    async def _status(self, op: Operation, offset: int, length: int, context: Context, flags: int = 0) -> ExtentList:
        """Return what the server tells of the beginning of the range: nothing where there is no image."""
        session = await self._reconnecting.current(op)
        length = min(length, session.agreed.size - offset)
        if length <= 0:
            return ExtentList.of((), offset)
        return await session.status(op, offset, length, context, flags)

    # What they share

    def _changed(self, offset: int, length: int, *, durable: bool) -> None:
        """Record a change, but none after a lost one, which the server may still make: over this one, too."""
        if self._reconnecting.flush_failure is None:
            self._record.changed(offset, length, durable=durable)

    def _changing(self, op: Operation, offset: int, length: int) -> AbstractAsyncContextManager[None]:
        """Keep other changes off the blocks of a range until the server has answered all that was asked of it."""
        size = self._reconnecting.agreed.sizes.minimum  # which stays: see same_image()
        return self._exclusion.hold(op, offset // size * size, -(-(offset + length) // size) * size)


def _fua(session: ClientSession) -> int:
    return CommandFlag.FUA if session.agreed.can(ExportFlag.SEND_FUA) else 0
