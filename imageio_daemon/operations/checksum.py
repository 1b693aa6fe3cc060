# SPDX-License-Identifier: Apache-2.0
"""The checksum operation: hash the blocks of an image in parallel, and read only its data extents."""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

from ..errors import OutOfRange
from ..image.blockhash import ZERO_BATCH, BlockPlan, DataBlock, Hash, Segment, ZeroBlocks, new_hash, update_zeros
from ..storage.backend import Backend, Context, Operation
from ..storage.buffers import PAGE, Buffer, Buffers
from ..storage.running import Kind
from ..transfers.transfer import Transfer
from ..units import KiB
from .bounds import readable_size
from .operations import running

#: Most threads that hash. More would take processor time from transfers.
MAX_THREADS = 4
#: Pieces of up to this many bytes are hashed on the loop: 16 us at 1 GB/s, which is less than the start of a thread.
SMALL = 16 * KiB
#: Most blocks whose digests were not added yet: blocks that are being hashed, and runs of zero blocks between them.
MAX_PENDING = 4 * MAX_THREADS


class Hashing:
    """The threads that hash memory. They do no storage I/O. Thread-safe: the loops share it."""

    def __init__(self) -> None:
        self.threads = min(MAX_THREADS, os.cpu_count() or 1)
        self._executor = ThreadPoolExecutor(self.threads, thread_name_prefix="hash")

    async def run(self, function: Callable[[], None], buffer: Buffer | None = None) -> None:
        """Call a function in a thread. The buffer is retained until it returns, even if the task is cancelled."""
        loop = asyncio.get_running_loop()
        future: Future[None] = self._executor.submit(function)
        if buffer is not None:
            buffer.retain()
            future.add_done_callback(lambda _: loop.call_soon_threadsafe(buffer.release))
        await asyncio.wrap_future(future)

    def stop(self) -> None:
        """End the threads. Blocks until the pieces that they are hashing are done."""
        self._executor.shutdown(cancel_futures=True)


class Checksum(NamedTuple):
    """The digest, in hexadecimal, of so many bytes."""

    digest: str
    length: int


async def checksum(
    transfer: Transfer,
    buffers: Buffers,
    hashing: Hashing,
    algorithm: str,
    block_size: int,
    offset: int = 0,
    length: int | None = None,
) -> Checksum:
    """Return the digest of the readable bytes of the image from offset on; see image/blockhash.py.

    block_size, offset, length: in bytes; length None: to the end of the image. Blocks begin at offset. Raises
    OutOfRange, Forbidden, Canceled, Unavailable, StorageError.
    """
    transfer.ticket.require_range(offset, length or 0)
    async with (
        running(transfer, None, offset, length or 0, kind=Kind.CHECKSUM) as (op, backend),
        buffers.lease(transfer, None, most=hashing.threads) as held,
    ):
        await backend.refresh(op)
        length = _inside(readable_size(transfer, backend), offset, length)
        work = _Checksum(backend, op, hashing, held, algorithm)
        try:
            plan = BlockPlan(block_size)
            async with aclosing(backend.extents(op, offset, length, Context.ZERO)) as lists:
                async for found in lists:
                    for extent in found:
                        for block in plan.add(extent):
                            await work.add(block)
            for block in plan.end():
                await work.add(block)
            return Checksum(await work.end(), length)
        finally:
            await work.stop()


def _inside(size: int, offset: int, length: int | None) -> int:
    """Return the length of a range of an image, which has size bytes. Raises OutOfRange."""
    if offset + (length or 1) > size and (offset or length):
        raise OutOfRange(f"Requested range is outside of the image's {size} bytes", size)
    return size - offset if length is None else length


class _Checksum:
    """Hash one block in each buffer at a time, and add the digests in the order of the blocks."""

    def __init__(
        self, backend: Backend, op: Operation, hashing: Hashing, buffers: list[Buffer], algorithm: str
    ) -> None:
        self._backend = backend
        self._op = op
        self._hashing = hashing
        self._free = buffers.copy()
        self._algorithm = algorithm
        self._digests = new_hash(algorithm)
        self._zero_digests: dict[int, bytes] = {}
        self._pending: deque[asyncio.Task[bytes] | ZeroBlocks] = deque()

    async def add(self, block: DataBlock | ZeroBlocks) -> None:
        """Start to hash a block. Waits while all buffers are in use."""
        if isinstance(block, ZeroBlocks):
            self._pending.append(block)
        else:
            while not self._free:
                await self._settle()
            self._pending.append(asyncio.create_task(self._hash(block, self._free.pop())))
        while len(self._pending) >= MAX_PENDING:
            await self._settle()

    async def end(self) -> str:
        """Return the digest of all blocks."""
        while self._pending:
            await self._settle()
        return self._digests.hexdigest()

    async def stop(self) -> None:
        """Cancel the tasks of blocks that are still being hashed, after an error, and wait for their end."""
        tasks = [item for item in self._pending if isinstance(item, asyncio.Task)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _settle(self) -> None:
        """Add the digests of the oldest blocks."""
        first = self._pending[0]
        if isinstance(first, ZeroBlocks):
            await self._add_zeros(first)
        else:
            self._digests.update(await first)
        self._pending.popleft()

    async def _add_zeros(self, blocks: ZeroBlocks) -> None:
        digest = self._zero_digests.get(blocks.length)
        if digest is None:
            state = new_hash(self._algorithm)
            await self._hashing.run(partial(update_zeros, state, blocks.length))
            digest = self._zero_digests[blocks.length] = state.digest()
        left = blocks.number
        while left:
            count = min(left, ZERO_BATCH)
            await self._update(self._digests, digest * count)
            left -= count

    async def _hash(self, block: DataBlock, buffer: Buffer) -> bytes:
        state = new_hash(self._algorithm)
        try:
            for segment in block.segments:
                if not segment.zero:
                    await self._read(state, segment, buffer)
                elif segment.length <= SMALL:
                    update_zeros(state, segment.length)
                else:
                    await self._hashing.run(partial(update_zeros, state, segment.length))
        finally:
            self._free.append(buffer)
        return state.digest()

    async def _read(self, state: Hash, segment: Segment, buffer: Buffer) -> None:
        position, end = segment.start, segment.start + segment.length
        while position < end:
            inside = position % PAGE  # storage copies less if memory and image have the same alignment
            count = min(end - position, buffer.size - inside)
            piece = buffer.slice(inside, inside + count)
            await self._backend.pread(self._op, piece, position)
            await self._update(state, piece.view, buffer)
            position += count

    async def _update(self, state: Hash, data: bytes | memoryview, buffer: Buffer | None = None) -> None:
        if len(data) <= SMALL:
            state.update(data)
        else:
            await self._hashing.run(partial(state.update, data), buffer)
