# SPDX-License-Identifier: Apache-2.0
"""Sources whose bytes are one frame of zstd: what is written is its content."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from ..errors import PeerGone
from ..image import zstd
from ..net.watchdog import MIN_RATE
from ..storage.buffers import Buffer, BufferPool
from ..transfers.transfer import Transfer
from ..units import KiB
from .streaming import ByteSource

#: Bytes of a source that are read at a time.
INPUT = 64 * KiB


@contextlib.asynccontextmanager
async def decoded(
    source: ByteSource, length: int, windows: BufferPool, transfer: Transfer
) -> AsyncIterator["ByteSource"]:
    """Yield a source of the `length` bytes that another source has encoded.

    windows: memory for what decoders remember, apart from that for data: who has some waits for data. The source raises
    InvalidRequest for a frame that is bad, or has another length, and PeerGone for one that makes no progress. Its last
    byte comes only after the end of the frame was seen: who reads all of it has a good frame.
    """
    content = _Content(source, length, windows, transfer)
    try:
        yield content
    finally:
        content.close()


class _Content:
    def __init__(self, source: ByteSource, length: int, windows: BufferPool, transfer: Transfer) -> None:
        self._source = source
        self._decoder = zstd.Decoder(length)
        self._windows = windows
        self._transfer = transfer
        self._window: Buffer | None = None
        self._input = memoryview(bytearray(INPUT))
        self._data = self._input[:0]  # received, and not taken
        self._waited = 0.0  # seconds for the source, since there was enough of its content
        self._made = 0  # bytes of content since then

    def close(self) -> None:
        self._decoder.close()
        if self._window is not None:
            self._window.release()

    def require_alive(self) -> None:
        self._source.require_alive()

    async def readinto(self, view: memoryview) -> int:
        if self._window is None:
            await self._begin()
        made = 0
        while True:
            taken, count = self._decoder.decode(self._data, view[made:])
            self._data = self._data[taken:]
            made += count
            if made and self._decoder.left:
                break
            if not self._data and not await self._receive():
                if not self._decoder.ended:
                    raise zstd.cut()
                break
        self._made += made
        return made

    async def _begin(self) -> None:
        memory = 0
        while not memory:
            if not self._data and not await self._receive():
                raise zstd.cut()
            taken, memory = self._decoder.head(self._data)
            self._data = self._data[taken:]
        self._window = await self._windows.acquire(memory, self._transfer)

    async def _receive(self) -> bool:
        """Wait for bytes of the source. False: it has ended. Raises PeerGone: its content does not come."""
        timeout = self._transfer.ticket.inactivity_timeout
        if self._made >= MIN_RATE * timeout:
            self._waited, self._made = 0.0, 0
        if self._waited > timeout:
            raise PeerGone("the encoded body makes no progress")
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._data = self._input[: await self._source.readinto(self._input)]
        self._waited += loop.time() - began
        return len(self._data) > 0
