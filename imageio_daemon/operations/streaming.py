# SPDX-License-Identifier: Apache-2.0
"""The movement of bytes between a peer and an image: in pieces through leased buffers, several of them at a time."""

import asyncio
from collections import deque
from typing import Protocol

from ..errors import Truncated
from ..storage.backend import Backend, Operation
from ..storage.bucket import Bucket
from ..storage.buffers import PAGE, Buffer
from ..transfers.transfer import Transfer
from .bounds import require_room


class Peer(Protocol):
    """The client that requests a change."""

    def require_alive(self) -> None:
        """Raise PeerGone if the client has left. Then the change does not begin: newer ones may have come after it."""
        ...


class ByteSource(Peer, Protocol):
    """The source of the bytes of a write."""

    async def readinto(self, view: memoryview) -> int:
        """Put at least one byte into the view, and return how many; 0: the source has ended. Raises PeerGone."""
        ...


class ByteSink(Protocol):
    """The destination of the bytes of a read."""

    async def write(self, view: memoryview) -> None:
        """Send the bytes. The caller may use the memory again when this returns. Raises PeerGone."""
        ...


class Limited:
    """A sink that waits for the limit on the rate before it sends."""

    def __init__(self, sink: ByteSink, bucket: Bucket) -> None:
        self._sink = sink
        self._bucket = bucket

    async def write(self, view: memoryview) -> None:
        """Send the bytes when the limit allows it. Raises PeerGone."""
        await self._bucket.take(len(view))
        await self._sink.write(view)


class Writer:
    """Fill one buffer while the others are written. most: pieces do not cross multiples of so many bytes."""

    def __init__(self, transfer: Transfer, backend: Backend, op: Operation, buffers: list[Buffer], most: int) -> None:
        self._transfer = transfer
        self._backend = backend
        self._op = op
        self._buffers = buffers
        self._most = most
        self._pending: deque[asyncio.Future[object]] = deque()  # writes under way, the oldest first

    async def run(self, offset: int, length: int | None, source: ByteSource) -> None:
        """Write length bytes (None: all) from the source at offset. Raises Truncated, OutOfRange, PeerGone."""
        end = None if length is None else offset + length
        position = offset
        turn = 0
        # Most writes under way: one buffer is being filled.
        others = max(1, len(self._buffers) - 1)
        try:
            while end is None or position < end:
                buffer = self._buffers[turn % len(self._buffers)]
                # Memory and image have the same offset within a page, so direct I/O need not copy whole blocks.
                start = position % PAGE
                room = min(buffer.size - start, self._most - position % self._most)
                if end is not None:
                    room = min(room, end - position)
                if len(self._buffers) == 1:
                    await self._settle(0)
                await self._transfer.bucket.take(room)
                filled = await _fill(source, buffer.view[start : start + room], exact=end is not None)
                self._transfer.bucket.give_back(room - filled)
                await self._settle(others - 1)
                if not filled:
                    break
                require_room(self._transfer, self._backend, position, filled)
                self._transfer.ticket.require_range(position, filled)
                piece = buffer.slice(start, start + filled)
                source.require_alive()
                self._pending.append(asyncio.ensure_future(self._backend.pwrite(self._op, piece, position)))
                position += filled
                turn += 1
            await self._settle(0)
        finally:
            for pending in self._pending:
                pending.cancel()

    async def _settle(self, left: int) -> None:
        """Wait for the oldest writes until at most `left` are under way."""
        while len(self._pending) > left:
            await self._pending.popleft()


async def send(
    backend: Backend, op: Operation, buffers: list[Buffer], offset: int, length: int, sink: ByteSink
) -> None:
    """Send length bytes from offset to the sink. Reading a piece overlaps sending the one before it.

    Reads run ahead in as many pieces as there are buffers. Lanes do the same in C: HTTP_AHEAD in ioutil_ext, and Pieces
    in storage/external.py for external images. Raises PeerGone, Canceled, StorageError.
    """
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
            # Not before: the next read uses this buffer.
            ahead.pop(0)
    finally:
        for _, pending in ahead:
            pending.cancel()


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
