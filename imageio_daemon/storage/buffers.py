# SPDX-License-Identifier: Apache-2.0
"""Page-aligned buffers under one budget for the whole process.

A buffer counts its holders. It is retained before a thread or a transport gets it and released when they have finished
with it, so that the memory is used again only when nothing can read or write it any more.
"""

import asyncio
import contextlib
import mmap
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Hashable
from dataclasses import dataclass
from typing import Any

from ioutil_ext import ffi, lib

from ..errors import Unavailable
from ..units import KiB, MiB

PAGE = mmap.PAGESIZE

#: The smallest buffer. Small requests are many; one class for all below it keeps the pool simple.
MIN_BUFFER = 64 * KiB
#: The largest buffer that can be asked for.
MAX_BUFFER = 64 * MiB
#: Bytes that a request which had to wait for memory moves at once. Without this limit, of 64 downloads that nobody
#: reads, with 80 MiB for all, 10 were answered at once, and 20 more each time that those before them had timed out,
#: every 70 s. With it all are answered after the first time.
SCARCE = 1 * MiB


class Buffer:
    """Hold `size` bytes of page-aligned memory until the last holder releases it.

    `view`: the memory. `address`: the same for C. Not thread-safe: retained and released on one loop.
    """

    __slots__ = ("_holders", "_pool", "address", "memory", "owner", "size", "view")

    def __init__(self, pool: "BufferPool", size: int) -> None:
        self.memory = mmap.mmap(-1, size)
        self.size = size
        self.view = memoryview(self.memory)
        self.address = ffi.cast("char *", ffi.from_buffer(self.memory))
        #: Whose quota it counts against; None: nobody's.
        self.owner: Hashable = None
        self._pool = pool
        self._holders = 0

    def retain(self) -> None:
        """Keep the memory until one more release()."""
        self._holders += 1

    def release(self) -> None:
        """Let go. The last one gives the memory back to the pool."""
        if self._holders <= 0:
            raise RuntimeError("buffer released more often than retained")
        self._holders -= 1
        if self._holders == 0:
            self._pool.give_back(self)

    def slice(self, start: int, stop: int) -> "Slice":
        """Return the bytes from start up to, not including, stop. Does not retain."""
        return Slice(self, start, stop)


class Slice:
    """Name a part of a buffer, for one storage operation."""

    __slots__ = ("buffer", "start", "stop")

    def __init__(self, buffer: Buffer, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= buffer.size:
            raise ValueError(f"slice {start}:{stop} outside of a buffer of {buffer.size} bytes")
        self.buffer = buffer
        self.start = start
        self.stop = stop

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def view(self) -> memoryview:
        """Return the memory."""
        return self.buffer.view[self.start : self.stop]

    @property
    def views(self) -> list[memoryview]:
        """Return it as a list of parts."""
        return [self.view]

    @property
    def address(self) -> Any:
        """Return the same for C."""
        return self.buffer.address + self.start

    def is_zero(self) -> bool:
        """Tell whether all bytes are zero: at memory speed, and at once when the first ones are not."""
        return bool(lib.iou_is_zero(self.buffer.address + self.start, self.stop - self.start))


@dataclass(frozen=True, slots=True)
class _Claim:
    """A request that waits for a buffer."""

    size: int
    owner: Hashable
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Buffer]"


class BufferPool:
    """Lend buffers, never more than `limit` bytes in all.

    A request waits in a queue for its first buffer (back-pressure on the client, not growth). More buffers, for reading
    ahead, are taken only if they are free, so that no two requests can wait for each other. Thread-safe.

    An owner is the transfer that a buffer is for. Its quota, beyond the first buffer, is twice what is left: so there
    is always something left for another one. A single owner has two thirds of all at most, and n of them have 2 n
    parts of 2 n + 1. Owners that wait take turns. None has no quota and may have all. The same rule stands in C for the
    memory of lanes (ioutil_ext/lane/memory.c), and in lanes/places.py for connections.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._free: dict[int, list[Buffer]] = {}
        self._allocated = 0
        self._lent = 0
        self._lent_to: Counter[Hashable] = Counter()  # bytes, of the owners that have some
        self._waiting: dict[Hashable, deque[_Claim]] = {}  # the owner whose turn is next first; no empty ones

    @property
    def lent(self) -> int:
        """Return the bytes that are lent now."""
        return self._lent

    @property
    def allocated(self) -> int:
        """Return the bytes that exist, lent or free."""
        return self._allocated

    async def acquire(self, size: int, owner: Hashable = None) -> Buffer:
        """Return a buffer of at least size bytes, retained once; waits while the budget or the quota is used up.

        Raises Unavailable when the whole budget could not hold it, or the system has no memory.
        """
        rounded = self._rounded(size)
        with self._lock:
            buffer = self._take_at_once(rounded, owner)
            if buffer is not None:
                return buffer
            loop = asyncio.get_running_loop()
            future: asyncio.Future[Buffer] = loop.create_future()
            self._waiting.setdefault(owner, deque()).append(_Claim(rounded, owner, loop, future))
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._serve_waiting()
            elif future.exception() is None:
                future.result().release()
            raise

    def try_acquire(self, size: int, owner: Hashable = None) -> Buffer | None:
        """Return a buffer of at least size bytes, retained once, or None when one would have to wait."""
        rounded = self._rounded(size)
        with self._lock, contextlib.suppress(Unavailable):
            return self._take_at_once(rounded, owner)
        return None

    def give_back(self, buffer: Buffer) -> None:
        """Take back a buffer that has no holder any more."""
        with self._lock:
            self._lent -= buffer.size
            self._lent_to[buffer.owner] -= buffer.size
            if not self._lent_to[buffer.owner]:
                del self._lent_to[buffer.owner]
            buffer.owner = None
            self._free.setdefault(buffer.size, []).append(buffer)
        if self._waiting:
            self._serve_waiting()

    def _rounded(self, size: int) -> int:
        rounded = max(MIN_BUFFER, 1 << (size - 1).bit_length())
        if rounded > min(self._limit, MAX_BUFFER):
            raise Unavailable(f"No buffer of {size} bytes within the budget of {self._limit}")
        return rounded

    def _may_have(self, owner: Hashable, size: int) -> bool:
        """Tell whether an owner's quota allows for another buffer."""
        lent = self._lent_to[owner]
        return owner is None or not lent or lent + size <= 2 * (self._limit - self._lent - size)

    def _take_at_once(self, size: int, owner: Hashable) -> Buffer | None:
        """Take a buffer if no other claim is first."""
        if self._next_claim() is not None or not self._may_have(owner, size):
            return None
        return self._take(size, owner)

    def _take(self, size: int, owner: Hashable) -> Buffer | None:
        free = self._free.get(size)
        if free:
            buffer = free.pop()
        elif self._make_room(size):
            try:
                buffer = Buffer(self, size)
            except OSError as e:
                raise Unavailable(f"No memory for a buffer of {size} bytes: {e.strerror}") from None
            self._allocated += size
        else:
            return None
        self._lent += size
        self._lent_to[owner] += size
        buffer.owner = owner
        buffer.retain()
        return buffer

    def _make_room(self, size: int) -> bool:
        """Drop free buffers of other sizes until size more bytes fit into the budget."""
        if self._lent + size > self._limit:
            return False
        for buffers in self._free.values():
            while buffers and self._allocated + size > self._limit:
                self._allocated -= buffers.pop().size
        return self._allocated + size <= self._limit

    def _next_claim(self) -> _Claim | None:
        """Return the first claim of the owner whose turn it is, and whose quota allows for it."""
        for owner, claims in list(self._waiting.items()):
            while claims and claims[0].future.cancelled():
                claims.popleft()
            if not claims:
                del self._waiting[owner]
            elif self._may_have(owner, claims[0].size):
                return claims[0]
        return None

    def _serve_waiting(self) -> None:
        with self._lock:
            while (claim := self._next_claim()) is not None:
                try:
                    buffer = self._take(claim.size, claim.owner)
                except Unavailable as e:  # for the claim, not for the caller, who has only given a buffer back
                    claim.loop.call_soon_threadsafe(_refuse, claim.future, e)
                else:
                    if buffer is None:
                        return  # later claims do not overtake
                    claim.loop.call_soon_threadsafe(_hand_over, claim.future, buffer)
                claims = self._waiting.pop(claim.owner)
                claims.popleft()
                if claims:
                    self._waiting[claim.owner] = claims  # behind the others


class Buffers:
    """Buffers for the requests of all transfers. `size`: bytes moved at once, at most."""

    def __init__(self, pool: BufferPool, size: int) -> None:
        self.pool = pool
        self.size = size

    @contextlib.asynccontextmanager
    async def lease(
        self, owner: Hashable, length: int | None, most: int = 2, piece: int = MAX_BUFFER
    ) -> AsyncIterator[list[Buffer]]:
        """Lend one buffer, and more for requests that can use them, if they are there without waiting.

        A request that has to wait for the first one gets SCARCE bytes at most. most: buffers. piece: bytes moved at
        once, at most, where that is less than `size`. Raises Unavailable.
        """
        size = min(self.size, piece)
        wanted = size if length is None else min(size, length + PAGE)
        first = self.pool.try_acquire(wanted, owner)
        if first is None:
            wanted = min(wanted, SCARCE)
            first = await self.pool.acquire(wanted, owner)
        buffers = [first]
        try:
            if length is None or length > wanted - PAGE:
                others = (self.pool.try_acquire(wanted, owner) for _ in range(most - 1))
                buffers += [buffer for buffer in others if buffer is not None]
            yield buffers
        finally:
            for buffer in buffers:
                buffer.release()


def _hand_over(future: "asyncio.Future[Buffer]", buffer: Buffer) -> None:
    if future.done():
        buffer.release()
    else:
        future.set_result(buffer)


def _refuse(future: "asyncio.Future[Buffer]", error: Unavailable) -> None:
    if not future.done():
        future.set_exception(error)
