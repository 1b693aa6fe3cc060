# SPDX-License-Identifier: Apache-2.0
"""Buffers for the data of requests."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable

from ..errors import Unavailable
from ..units import MiB
from .buffers import MAX_BUFFER, PAGE, Buffer, BufferPool

#: Most bytes of the buffer of a request that had to wait for memory. Measured with 64 downloads that no client reads,
#: and a budget of 80 MiB: without this limit, 10 were answered at once, and 20 more every 70 s, when those before them
#: had timed out. With this limit, all are answered after the first timeout.
SCARCE = 1 * MiB


class Buffers:
    """Lend buffers of a pool, with at most `size` bytes each, to the requests of all transfers."""

    def __init__(self, pool: BufferPool, size: int = MAX_BUFFER) -> None:
        self.pool = pool
        self.size = size

    @contextlib.asynccontextmanager
    async def lease(
        self,
        owner: Hashable,
        length: int | None,
        most: int = 2,
        piece: int = MAX_BUFFER,
        *,
        patience: float | None = None,
    ) -> AsyncIterator[list[Buffer]]:
        """Lend one buffer to the owner's request, and up to `most` if the request is long enough and they are free.

        `length` is the request's, in bytes, or None if it is unknown. `piece` is the most bytes of a buffer, if less
        than `size`. A request that has to wait for its first buffer gets at most SCARCE bytes, and waits at most
        `patience` seconds. Raises Unavailable.
        """
        size = min(self.size, piece)
        wanted = size if length is None else min(size, length + PAGE)
        first = self.pool.try_acquire(wanted, owner)
        if first is None:
            wanted = min(wanted, SCARCE)
            first = await self._wait_for(wanted, owner, patience)
        buffers = [first]
        try:
            if length is None or length > wanted - PAGE:
                others = (self.pool.try_acquire(wanted, owner) for _ in range(most - 1))
                buffers += [buffer for buffer in others if buffer is not None]
            yield buffers
        finally:
            for buffer in buffers:
                buffer.release()

    async def _wait_for(self, size: int, owner: Hashable, patience: float | None) -> Buffer:
        try:
            async with asyncio.timeout(patience) as end:
                return await self.pool.acquire(size, owner)
        except TimeoutError:
            if not end.expired():
                raise
            raise Unavailable("There is no memory for the request now") from None
