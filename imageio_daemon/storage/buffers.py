# SPDX-License-Identifier: Apache-2.0
"""Page-aligned buffers under one budget for the whole process.

A buffer counts its holders. Retain it before a thread or a transport gets it, and release it when they have finished
with it. So the pool gives memory out again only when nothing can read or write it any more.
"""

import asyncio
import contextlib
import mmap
from collections import Counter, deque
from collections.abc import AsyncIterator, Hashable
from dataclasses import dataclass
from typing import Any

from ioutil_ext import ffi, lib

from ..errors import Unavailable
from ..runtime.request_activity import Wait, waiting
from ..units import KiB, MiB

PAGE = mmap.PAGESIZE

#: The smallest buffer, in bytes. Most requests are small, and one size for all of them keeps the pool simple.
MIN_BUFFER = 64 * KiB
#: The largest buffer, in bytes.
MAX_BUFFER = 64 * MiB
#: Most bytes of the buffers of a request that had to wait for memory. Measured with 64 downloads that no client reads,
#: and a budget of 80 MiB: without this limit, 10 were answered at once, and 20 more every 70 s, when those before them
#: had timed out. With this limit, all are answered after the first timeout.
SCARCE = 1 * MiB


class Buffer:
    """Hold `size` bytes of page-aligned memory until the last holder releases it.

    `view` is the memory, and `address` its address for C. Retain and release it on the event loop.
    """

    __slots__ = ("_holders", "_pool", "address", "memory", "owner", "size", "view")

    def __init__(self, pool: "BufferPool", size: int) -> None:
        self.memory = mmap.mmap(-1, size)
        self.size = size
        self.view = memoryview(self.memory)
        self.address = ffi.cast("char *", ffi.from_buffer(self.memory))
        #: The owner in whose quota the buffer counts, if in any.
        self.owner: Hashable = None
        self._pool = pool
        self._holders = 0

    def retain(self) -> None:
        """Keep the memory until one more release()."""
        self._holders += 1

    def release(self) -> None:
        """Release one count. The last release() gives the memory back to the pool."""
        if self._holders <= 0:
            raise RuntimeError("buffer released more often than retained")
        self._holders -= 1
        if self._holders == 0:
            self._pool.give_back(self)

    def slice(self, start: int, stop: int) -> "Slice":
        """Return the bytes from start up to, not including, stop. Does not retain the buffer."""
        return Slice(self, start, stop)


class Slice:
    """A range of a buffer, as the memory of one storage operation. Raises ValueError if it is not in the buffer."""

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
        """Return the memory of the range."""
        return self.buffer.view[self.start : self.stop]

    @property
    def address(self) -> Any:
        """Return the address of the memory, for C."""
        return self.buffer.address + self.start


@dataclass(frozen=True, slots=True)
class _Claim:
    """A request that waits for a buffer of `size` bytes. The future gets the buffer."""

    size: int
    owner: Hashable
    future: "asyncio.Future[Buffer]"


class BufferPool:
    """Lend buffers, never more than `limit` bytes in all. One has at most `largest` bytes.

    A request waits in a queue for its first buffer: the client has to wait, and memory does not grow. It takes more
    buffers, for reading ahead, only if they are free. So two requests never wait for each other.

    An owner is the transfer that a buffer is for. An owner without a buffer may take any, and others by the rule of
    iou_may_have(), so some bytes are always left for others. Owners that wait take turns. The owner None has no quota.
    """

    def __init__(self, limit: int, largest: int = MAX_BUFFER) -> None:
        self.limit = limit
        self._largest = largest
        self._free: dict[int, list[Buffer]] = {}
        #: Bytes of all buffers, in use or free, and bytes in use.
        self.allocated = 0
        self.in_use = 0
        self._in_use_by: Counter[Hashable] = Counter()  # bytes, by owner; no zeros
        self._waiting: dict[Hashable, deque[_Claim]] = {}  # in the order of turns; no empty queues

    @property
    def waiting(self) -> int:
        """Return how many requests wait for memory."""
        return sum(map(len, self._waiting.values()))

    @contextlib.asynccontextmanager
    async def lease(
        self, owner: Hashable, length: int | None, seconds: float, *, most: int = 2, piece: int = MAX_BUFFER
    ) -> AsyncIterator[list[Buffer]]:
        """Lend one buffer to the owner's request, and up to `most` if the request is long enough and they are free.

        `length` is the request's, in bytes, or None if it is unknown. `piece` is the most bytes of a buffer. A request
        that has to wait for its first buffer gets at most SCARCE bytes in each. Raises Unavailable, also if it has
        waited for `seconds`.
        """
        size = min(self._largest, piece)
        wanted = size if length is None else min(size, length + PAGE)
        first = self.try_acquire(wanted, owner)
        if first is None:
            wanted = min(wanted, SCARCE)
            try:
                async with asyncio.timeout(seconds):
                    first = await self.acquire(wanted, owner)
            except TimeoutError:
                raise Unavailable("There is no memory for the request now") from None
        buffers = [first]
        try:
            if length is None or length > wanted - PAGE:
                others = (self.try_acquire(wanted, owner) for _ in range(most - 1))
                buffers += [buffer for buffer in others if buffer is not None]
            yield buffers
        finally:
            for buffer in buffers:
                buffer.release()

    async def acquire(self, size: int, owner: Hashable = None) -> Buffer:
        """Return a buffer of at least `size` bytes, retained once. Wait while budget or quota of the owner are used up.

        Raises Unavailable if the buffer is larger than the budget or `largest`, or the system has no memory.
        """
        rounded = self._rounded(size)
        buffer = self._take_at_once(rounded, owner)
        if buffer is not None:
            return buffer
        future: asyncio.Future[Buffer] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(_Claim(rounded, owner, future))
        try:
            with waiting(Wait.TURN):
                return await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._serve_waiting()
            elif future.exception() is None:
                future.result().release()
            raise

    def try_acquire(self, size: int, owner: Hashable = None) -> Buffer | None:
        """Return a buffer of at least `size` bytes, retained once, or None if there is none now. Raises Unavailable."""
        rounded = self._rounded(size)
        with contextlib.suppress(Unavailable):
            return self._take_at_once(rounded, owner)
        return None

    def give_back(self, buffer: Buffer) -> None:
        """Take back a buffer whose last holder has released it."""
        self.in_use -= buffer.size
        self._in_use_by[buffer.owner] -= buffer.size
        if not self._in_use_by[buffer.owner]:
            del self._in_use_by[buffer.owner]
        buffer.owner = None
        self._free.setdefault(buffer.size, []).append(buffer)
        if self._waiting:
            self._serve_waiting()

    def _rounded(self, size: int) -> int:
        rounded = max(MIN_BUFFER, 1 << (size - 1).bit_length())
        if rounded > min(self.limit, self._largest):
            raise Unavailable(f"No buffer of {size} bytes within the budget of {self.limit}")
        return rounded

    def _may_have(self, owner: Hashable, size: int) -> bool:
        """Return whether an owner's quota allows another buffer."""
        in_use = self._in_use_by[owner]
        return owner is None or not in_use or bool(lib.iou_may_have(in_use, size, self.limit - self.in_use))

    def _take_at_once(self, size: int, owner: Hashable) -> Buffer | None:
        """Take a buffer, unless a waiting claim comes first."""
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
            self.allocated += size
        else:
            return None
        self.in_use += size
        self._in_use_by[owner] += size
        buffer.owner = owner
        buffer.retain()
        return buffer

    def _make_room(self, size: int) -> bool:
        """Drop free buffers of other sizes until `size` more bytes fit into the budget. Return whether they do."""
        if self.in_use + size > self.limit:
            return False
        for buffers in self._free.values():
            while buffers and self.allocated + size > self.limit:
                self.allocated -= buffers.pop().size
        return self.allocated + size <= self.limit

    def _next_claim(self) -> _Claim | None:
        """Return the next claim: the oldest of the first owner, in the order of turns, whose quota allows it."""
        for owner, claims in list(self._waiting.items()):
            while claims and claims[0].future.cancelled():
                claims.popleft()
            if not claims:
                del self._waiting[owner]
            elif self._may_have(owner, claims[0].size):
                return claims[0]
        return None

    def _serve_waiting(self) -> None:
        while (claim := self._next_claim()) is not None:
            try:
                buffer = self._take(claim.size, claim.owner)
            except Unavailable as e:  # an error for the claim, not for our caller, which has given a buffer back
                claim.future.set_exception(e)
            else:
                if buffer is None:
                    return  # later claims do not overtake this one
                claim.future.set_result(buffer)
            claims = self._waiting.pop(claim.owner)
            claims.popleft()
            if claims:
                self._waiting[claim.owner] = claims  # the owner's next turn comes after those of the others
