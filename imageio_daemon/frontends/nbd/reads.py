# SPDX-License-Identifier: Apache-2.0
"""READ: from the image into buffers, and from there to the client."""

import asyncio
from collections import deque
from collections.abc import Iterator

from ... import starting
from ...buffers import MIN_BUFFER, PAGE, Slice
from ...errors import TooLarge, Unavailable
from ...nbdproto.constants import CommandFlag
from ...nbdproto.replies import Replies
from ...nbdproto.transmission import Request
from ...storage.base import Backend
from ...transfers import Transfer
from ...units import KiB, MiB
from .output import Output
from .share import Share

#: Longest read that is one operation; longer ones become several, so that they do not hold up others.
PIECE = 1 * MiB
#: Zeros of so many bytes are told as a hole, which is 32 bytes. Looking for them ends at the first other byte.
HOLE = 64 * KiB
#: Long reads of one connection that move at a time, with two pieces each; the others wait, short ones do not.
LONG_READS = 4


class Reads:
    """Read for one connection. size: of its export; what that has past the end of the image reads as zeros."""

    def __init__(
        self, transfer: Transfer, backend: Backend, size: int, replies: Replies, share: Share, output: Output
    ) -> None:
        self._transfer = transfer
        self._backend = backend
        self._size = size
        self._replies = replies
        self._share = share
        self._output = output
        self._long_reads = asyncio.Semaphore(LONG_READS)
        #: Where the image ended when we looked last; it only grows.
        self._image_end = min(size, backend.info.size)

    def try_start(self, request: Request) -> "tuple[Slice, asyncio.Future[object]] | None":
        """Start to read into a buffer of the share, if it is one piece and there is a buffer; else use later()."""
        start = _place(request)
        if request.length > PIECE:
            return None
        buffer = self._share.try_acquire(start + request.length)
        if buffer is None:
            return None
        piece = buffer.slice(start, start + request.length)
        try:
            return piece, self._fill(piece, request.offset)
        except BaseException:
            self._share.release(buffer)
            raise

    async def later(self, request: Request) -> None:
        """Read and send, waiting for buffers. Raises as operations do, after some chunks maybe; TooLarge."""
        if request.length > PIECE and self._may_cut(request):
            async with self._long_reads:
                await self._send_pieces(request)
            return
        start = _place(request)
        try:
            buffer = await self._share.acquire_modestly(start + request.length)
        except Unavailable as e:
            raise TooLarge(str(e)) from None
        piece = buffer.slice(start, start + request.length)
        try:
            await self._fill(piece, request.offset)
        except BaseException:
            self._share.release(buffer)
            raise
        self.send(request, piece, request.offset, done=True)

    def send(self, request: Request, piece: Slice, offset: int, *, done: bool) -> None:
        """Send what was read, holes as such where that is possible, and give the buffer back. done: it is the last."""
        if len(piece) >= HOLE and self._may_cut(request):
            self._send_runs(request, piece, offset, done=done)
        else:
            self._send_data(request, piece, offset, done=done)

    async def _send_pieces(self, request: Request) -> None:
        """Read one piece while the one before it is sent."""
        place = offset = request.offset
        end = offset + request.length
        held: deque[Slice] = deque()
        reading: deque[asyncio.Future[object]] = deque()
        try:
            while place < end:
                while offset < end and len(held) < 2:
                    length = min(PIECE, end - offset)
                    start = offset % PAGE
                    if held:  # never wait for one buffer while holding another
                        buffer = self._share.try_acquire(start + length)
                        if buffer is None:
                            break
                    else:
                        buffer = await self._share.acquire_modestly(start + length)
                    piece = buffer.slice(start, start + length)
                    held.append(piece)
                    reading.append(self._fill(piece, offset))
                    offset += length
                await reading[0]
                reading.popleft()
                piece = held.popleft()
                place += len(piece)
                self.send(request, piece, place - len(piece), done=place == end)
        finally:
            for piece in held:
                self._share.release(piece.buffer)

    def _fill(self, piece: Slice, offset: int) -> "asyncio.Future[object]":
        """Start to read."""
        inside, place = piece, offset
        if offset + len(piece) > self._image_end:
            self._image_end = min(self._size, self._backend.info.size)
            length = max(0, min(len(piece), self._image_end - offset))
            inside = piece.buffer.slice(piece.start, piece.start + length)
            piece.buffer.view[inside.stop : piece.stop] = bytes(piece.stop - inside.stop)
            place = min(offset, self._image_end)
        return starting.start_read(self._transfer, self._backend, inside, place)

    def _may_cut(self, request: Request) -> bool:
        return self._replies.chunks and not request.flags & CommandFlag.DF

    def _send_data(self, request: Request, piece: Slice, offset: int, *, done: bool) -> None:
        head = self._replies.data(request, offset, len(piece), done=done)
        if piece.start < PAGE:
            self._output.send(head)
            self._output.send(piece.view, piece.buffer)
            return
        # There is room before the data: one piece of memory is sent faster than two.
        view, start = piece.buffer.view, piece.start - len(head)
        view[start : piece.start] = head
        self._output.send(view[start : piece.stop], piece.buffer)

    def _send_runs(self, request: Request, piece: Slice, offset: int, *, done: bool) -> None:
        for run, zero in _runs(piece):
            place = offset + run.start - piece.start
            last = run.stop == piece.stop
            if zero:
                hole = self._replies.hole(request, place, len(run), done=done and last)
                self._output.send(hole, piece.buffer if last else None)
            else:
                self._output.send(self._replies.data(request, place, len(run), done=done and last))
                self._output.send(run.view, piece.buffer if last else None)


def _place(request: Request) -> int:
    """Return where in a buffer the data goes: at the same place in a page as in the image, so that storage copies none.

    Short reads leave a page before it, for what is sent before the data.
    """
    start = request.offset % PAGE
    return start + PAGE if start + PAGE + request.length <= MIN_BUFFER else start


def _runs(piece: Slice) -> Iterator[tuple[Slice, bool]]:
    """Cut a piece into runs of zeros and of anything else, in order."""
    begin, zero = piece.start, False
    view = piece.buffer.view
    for place in range(piece.start, piece.stop, HOLE):
        whole = place + HOLE <= piece.stop
        # Most data is told by its first byte: 3 µs instead of 20 for 1 MiB.
        now = whole and not view[place] and piece.buffer.slice(place, place + HOLE).is_zero()
        if now != zero and place > begin:
            yield piece.buffer.slice(begin, place), zero
            begin = place
        zero = now
    yield piece.buffer.slice(begin, piece.stop), zero
