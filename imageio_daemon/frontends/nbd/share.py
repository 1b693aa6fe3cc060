# SPDX-License-Identifier: Apache-2.0
"""One connection's share of the buffers."""

import asyncio
from collections import deque
from collections.abc import Hashable

from ...buffers import Buffer, BufferPool
from ...units import MiB

#: Buffers that one connection holds before it stops reading requests: 16 of nbdcopy's 1 MiB. More leave the caches
#: before they are sent: nbdcopy out of tmpfs, processor seconds for 256 MiB: 64 MiB 0.25, 16 MiB 0.19, 4 MiB 0.21.
MAX_BYTES = 16 * MiB


class Share:
    """Count what a connection has borrowed from the pool, of its transfer's share. Lives on one loop."""

    def __init__(self, pool: BufferPool, owner: Hashable, limit: int = MAX_BYTES) -> None:
        self._pool = pool
        self._owner = owner
        self._limit = limit
        self._waiting: deque[asyncio.Future[None]] = deque()
        #: Bytes of buffers that are lent now.
        self.bytes = 0

    @property
    def used_up(self) -> bool:
        """Tell whether no more requests should be begun."""
        return self.bytes >= self._limit

    def try_acquire(self, size: int) -> Buffer | None:
        """Return a buffer of at least size bytes, or None when one would have to wait. Raises Unavailable."""
        buffer = self._pool.try_acquire(size, self._owner)
        if buffer is not None:
            self.bytes += buffer.size
        return buffer

    async def acquire(self, size: int) -> Buffer:
        """Return a buffer of at least size bytes as soon as the pool has one. Raises Unavailable."""
        buffer = await self._pool.acquire(size, self._owner)
        self.bytes += buffer.size
        return buffer

    async def acquire_modestly(self, size: int) -> Buffer:
        """Return a buffer when the share is not used up, either. Raises Unavailable."""
        while self.used_up:
            freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(freed)
            await freed
        return await self.acquire(size)

    def release(self, buffer: Buffer) -> None:
        """Give a buffer back; it is used again when nobody else retains it."""
        self.bytes -= buffer.size
        buffer.release()
        while self._waiting and not self.used_up:
            freed = self._waiting.popleft()
            if not freed.done():
                freed.set_result(None)
                break
