# SPDX-License-Identifier: Apache-2.0
"""Page-aligned buffers under one budget for the whole process.

A buffer is counted: whoever passes it to a thread or a transport retains it until that one has let go, so that the
memory is used again only when nobody can read or write it any more.
"""

import asyncio
import contextlib
import mmap
import threading
from collections import deque
from collections.abc import AsyncIterator

from ioutil_ext import ffi, lib

from .errors import Unavailable
from .units import KiB, MiB

PAGE = mmap.PAGESIZE

#: The smallest buffer. Small requests are many; one class for all below it keeps the pool simple.
MIN_BUFFER = 64 * KiB
#: The largest buffer that can be asked for.
MAX_BUFFER = 64 * MiB
#: What a request that had to wait for memory moves at once. Of 64 downloads that nobody reads, with 80 MiB for all, 10
#: were answered at once, and 20 more each time that those before them had timed out, every 70 s. With this all are
#: answered after the first time.
SCARCE = 1 * MiB


class Buffer:
    """Hold `size` bytes of page-aligned memory until the last holder releases it.

    `view`: the memory. `address`: the same for C. Not thread-safe: retained and released on one loop.
    """

    __slots__ = ("_holders", "_pool", "address", "memory", "size", "view")

    def __init__(self, pool: "BufferPool", size: int) -> None:
        self.memory = mmap.mmap(-1, size)
        self.size = size
        self.view = memoryview(self.memory)
        self.address = ffi.cast("char *", ffi.from_buffer(self.memory))
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

    def is_zero(self) -> bool:
        """Tell whether all bytes are zero: at memory speed, and at once when the first ones are not."""
        return bool(lib.iou_is_zero(self.buffer.address + self.start, self.stop - self.start))


class BufferPool:
    """Lend buffers, never more than `limit` bytes in all.

    Who must wait for a first buffer waits in a queue (back-pressure on the peer, not growth); a second one, for reading
    ahead, is taken only if it is there, so that no two requests can wait for each other. Thread-safe: shared by loops.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._free: dict[int, list[Buffer]] = {}
        self._allocated = 0
        self._lent = 0
        self._waiting: deque[tuple[int, asyncio.AbstractEventLoop, asyncio.Future[Buffer]]] = deque()

    @property
    def lent(self) -> int:
        """Return the bytes that are lent now."""
        return self._lent

    @property
    def allocated(self) -> int:
        """Return the bytes that exist, lent or free."""
        return self._allocated

    async def acquire(self, size: int) -> Buffer:
        """Return a buffer of at least size bytes, retained once; waits while the budget is used up.

        Raises Unavailable when the whole budget could not hold it, or the system has no memory.
        """
        rounded = self._rounded(size)
        with self._lock:
            buffer = None if self._waiting else self._take(rounded)
            if buffer is not None:
                return buffer
            loop = asyncio.get_running_loop()
            future: asyncio.Future[Buffer] = loop.create_future()
            self._waiting.append((rounded, loop, future))
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._serve_waiting()
            elif future.exception() is None:
                future.result().release()
            raise

    def try_acquire(self, size: int) -> Buffer | None:
        """Return a buffer of at least size bytes, retained once, or None when one would have to wait."""
        rounded = self._rounded(size)
        with self._lock, contextlib.suppress(Unavailable):
            return None if self._waiting else self._take(rounded)
        return None

    def give_back(self, buffer: Buffer) -> None:
        """Take a buffer back that nobody holds any more."""
        with self._lock:
            self._lent -= buffer.size
            self._free.setdefault(buffer.size, []).append(buffer)
        if self._waiting:
            self._serve_waiting()

    def _rounded(self, size: int) -> int:
        rounded = max(MIN_BUFFER, 1 << (size - 1).bit_length())
        if rounded > min(self._limit, MAX_BUFFER):
            raise Unavailable(f"No buffer of {size} bytes within the budget of {self._limit}")
        return rounded

    def _take(self, size: int) -> Buffer | None:
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

    def _serve_waiting(self) -> None:
        with self._lock:
            while self._waiting:
                size, loop, future = self._waiting[0]
                if not future.cancelled():
                    try:
                        buffer = self._take(size)
                    except Unavailable as e:  # who waits is told; who called has only given something back
                        loop.call_soon_threadsafe(_refuse, future, e)
                    else:
                        if buffer is None:
                            return
                        loop.call_soon_threadsafe(_hand_over, future, buffer)
                self._waiting.popleft()


class Buffers:
    """Buffers for the requests of all transfers. `size`: bytes moved at once, at most."""

    def __init__(self, pool: BufferPool, size: int) -> None:
        self.pool = pool
        self.size = size

    @contextlib.asynccontextmanager
    async def lease(self, length: int | None, most: int = 2, piece: int = MAX_BUFFER) -> AsyncIterator[list[Buffer]]:
        """Lend one buffer, and more for requests that can use them, if they are there without waiting.

        Who has to wait for the first one gets SCARCE bytes at most. piece: bytes moved at once, at most, where that is
        less than `size`.
        """
        size = min(self.size, piece)
        wanted = size if length is None else min(size, length + PAGE)
        first = self.pool.try_acquire(wanted)
        if first is None:
            wanted = min(wanted, SCARCE)
            first = await self.pool.acquire(wanted)
        buffers = [first]
        try:
            if length is None or length > wanted - PAGE:
                others = (self.pool.try_acquire(wanted) for _ in range(most - 1))
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
