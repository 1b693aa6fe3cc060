# SPDX-License-Identifier: Apache-2.0
"""The client's bytes in the transmission, cut into requests; payloads go straight into their buffers."""

import asyncio
from typing import Protocol

from ...buffers import PAGE, Buffer, Slice
from ...nbdproto.constants import Command
from ...nbdproto.messages import BadMagic
from ...nbdproto.transmission import Request, Transmission
from ...units import KiB
from .share import Share

#: Memory for headers and small payloads of a connection: 15 writes of 4 KiB in one receive.
STAGING = 64 * KiB
#: Received after a payload that did not fit into it: what comes now is likely the header of another one, of which the
#: less is copied the less comes with it.
GLANCE = 512


class Handler(Protocol):
    """Who acts on requests."""

    @property
    def full(self) -> bool:
        """Tell whether another request has to wait; the handler says resume() then."""
        ...

    def begin(self, request: Request) -> None:
        """Act on a request. A WRITE's payload follows in pieces."""
        ...

    def payload(self, request: Request, piece: Slice, offset: int, *, last: bool) -> None:
        """Take a piece of a WRITE's payload, for the image at offset. Its buffer is the handler's from now on."""
        ...

    def held(self) -> None:
        """Receive no more until resumed()."""
        ...

    def resumed(self) -> None:
        """Receive again."""
        ...

    def violated(self, error: BadMagic) -> None:
        """End the connection: nothing can be understood any more."""
        ...


class Receiver:
    """Turn received bytes into calls of the handler."""

    def __init__(self, transmission: Transmission, share: Share, piece_size: int, handler: Handler) -> None:
        self._transmission = transmission
        self._header_size = transmission.header_size
        self._share = share
        self._piece_size = piece_size
        self._handler = handler
        self._staging = memoryview(bytearray(STAGING))
        self._start = self._end = 0
        self._window = STAGING
        self._request: Request | None = None  # whose payload is being received
        self._left = 0  # bytes of it to come
        self._offset = 0  # where in the image they go
        self._buffer: Buffer | None = None
        self._piece = (0, 0)  # place of the next byte in the buffer, and its end
        self._waiting: asyncio.Task[None] | None = None
        self._held = False
        self._closed = False

    @property
    def partial(self) -> bool:
        """Tell whether it is the client's turn to send the rest of a request."""
        return not self._held and (self._request is not None or self._start < self._end)

    def get_buffer(self) -> memoryview:
        """Return the memory for the next bytes."""
        if self._buffer is not None:
            return self._buffer.view[self._piece[0] : self._piece[1]]
        return self._staging[self._end : min(STAGING, self._end + self._window)]

    def received(self, count: int) -> None:
        """Note that count bytes were put into the memory."""
        if self._buffer is not None:
            self._advance(count)
        else:
            self._end += count
        self._parse()

    def feed(self, data: bytes) -> None:
        """Take bytes that were received by somebody else."""
        while data and not self._closed:
            view = self.get_buffer()[: len(data)]
            view[:] = data[: len(view)]
            data = data[len(view) :]
            self.received(len(view))

    def resume(self) -> None:
        """Go on after the handler was full."""
        if self._held and self._waiting is None and not self._handler.full:
            self._go_on()

    def close(self) -> None:
        """Forget everything: no more will come."""
        self._closed = True
        if self._waiting is not None:
            self._waiting.cancel()
        if self._buffer is not None:
            self._share.release(self._buffer)
            self._buffer = None

    def _go_on(self) -> None:
        self._held = False
        self._handler.resumed()
        self._parse()

    def _hold(self) -> None:
        self._held = True
        self._handler.held()

    def _parse(self) -> None:
        try:
            self._parse_all()
        except BadMagic as e:
            self.close()
            self._handler.violated(e)

    def _parse_all(self) -> None:
        while not self._held and not self._closed:
            if self._request is not None:
                if not self._fill():
                    break
            elif self._end - self._start < self._header_size:
                break
            elif self._handler.full:
                self._hold()
            else:
                self._next_request()
        self._compact()

    def _next_request(self) -> None:
        request = self._transmission.parse(self._staging, self._start)
        self._start += self._header_size
        if request.payload and not (request.error is not None and request.must_end):
            self._request = request
            self._left = request.payload
            self._offset = request.offset
        else:
            self._window = STAGING
            self._handler.begin(request)

    def _fill(self) -> bool:
        """Move staged bytes of the payload to where they belong. False: more have to be received."""
        if self._request is None or self._request.error is not None or self._request.command != Command.WRITE:
            return self._drain()
        if self._buffer is None and not self._borrow():
            return False
        staged = min(self._end - self._start, self._piece[1] - self._piece[0])
        if staged and self._buffer is not None:
            place = self._piece[0]
            self._buffer.view[place : place + staged] = self._staging[self._start : self._start + staged]
            self._start += staged
            self._advance(staged)
            return True
        return False

    def _drain(self) -> bool:
        dropped = min(self._left, self._end - self._start)
        self._start += dropped
        self._left -= dropped
        if self._left or self._request is None:
            return False
        request, self._request = self._request, None
        self._handler.begin(request)
        return True

    def _advance(self, count: int) -> None:
        """Note bytes of the payload; hand the piece over when it is complete."""
        place, end = self._piece[0] + count, self._piece[1]
        self._piece = (place, end)
        self._left -= count
        buffer, request = self._buffer, self._request
        if place < end or buffer is None or request is None:
            return
        start = self._offset % PAGE
        offset, self._offset = self._offset, self._offset + end - start
        self._buffer = None
        if not self._left:
            self._request = None
            self._window = STAGING if request.payload < STAGING else GLANCE
        self._handler.payload(request, buffer.slice(start, end), offset, last=not self._left)

    def _borrow(self) -> bool:
        """Get a buffer for the next piece. False: it has to be waited for."""
        size = self._wanted()
        buffer = self._share.try_acquire(size)
        if buffer is None:
            self._hold()
            self._waiting = asyncio.get_running_loop().create_task(self._wait(size))
            return False
        self._take(buffer)
        return True

    def _wanted(self) -> int:
        # The same place in a page as in the image, so that whole blocks are not copied by the storage.
        return min(self._piece_size, self._offset % PAGE + self._left)

    def _take(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._piece = (self._offset % PAGE, self._wanted())

    async def _wait(self, size: int) -> None:
        buffer = await self._share.acquire(size)
        self._waiting = None
        if self._closed:
            self._share.release(buffer)
            return
        self._take(buffer)
        self._go_on()

    def _compact(self) -> None:
        """Make room at the end for what comes next."""
        left = self._end - self._start
        if not left:
            self._start = self._end = 0
        elif self._start:
            self._staging[:left] = self._staging[self._start : self._end]
            self._start, self._end = 0, left
