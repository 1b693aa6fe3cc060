# SPDX-License-Identifier: Apache-2.0
"""The checksum operation: hash the blocks of an image in parallel, and read only its data."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

from ..errors import OutOfRange
from ..image.blockhash import ZERO_BATCH, BlockPlan, DataBlock, Total, ZeroBlocks, zero_digest
from ..image.digests import lanes_of
from ..storage.backend import Backend, Context
from ..storage.buffers import Buffer, BufferPool
from ..storage.operation import Kind, Operation
from ..transfers.transfer import Transfer
from .hashing import BUFFER, Hashing, hash_blocks
from .operations import readable_size, running

#: Most blocks with data, and runs of zero blocks between them, whose digests are not in the total yet.
MAX_PENDING = 256
#: Buffers to read into while others are being hashed.
AHEAD = 2


class WantedChecksum(NamedTuple):
    """A range to hash, and the algorithm. Sizes are in bytes. Without a `length`, the range ends with the image."""

    algorithm: str
    block_size: int
    offset: int = 0
    length: int | None = None


class Blocks(NamedTuple):
    """Consecutive blocks with the same digest. Each has `length` bytes. `zero` is true if they read as zeros."""

    number: int
    length: int
    digest: bytes
    zero: bool


#: A function that gets all blocks, in order.
Tell = Callable[[Blocks], Awaitable[None]]


async def checksum(
    transfer: Transfer,
    buffers: BufferPool,
    hashing: Hashing,
    wanted: WantedChecksum,
    total: Total,
    tell: Tell | None = None,
) -> int:
    """Add the digests of the blocks of a range to the total, in order, and return how many bytes were hashed.

    Blocks begin at the offset of the range. With `tell`, pass all blocks to it, and data that is all zeros as zero
    blocks. Raises OutOfRange, Forbidden, Canceled, Unavailable, StorageError, and what `tell` raises.
    """
    offset = wanted.offset
    transfer.ticket.require_range(offset, wanted.length or 0)
    most = hashing.threads + AHEAD
    async with (
        running(transfer, None, offset, wanted.length or 0, kind=Kind.CHECKSUM) as (op, backend),
        buffers.lease(transfer, None, transfer.ticket.inactivity_timeout, most=most, piece=BUFFER) as held,
    ):
        await backend.refresh(op)
        length = _inside(readable_size(transfer, backend), offset, wanted.length)
        work = _Checksum(backend, op, hashing, held, wanted.algorithm, total, tell)
        try:
            plan = BlockPlan(wanted.block_size)
            async with aclosing(backend.extents(op, offset, length, Context.ZERO)) as lists:
                async for found in lists:
                    for extent in found:
                        for block in plan.add(extent):
                            await work.add(block)
            for block in plan.end():
                await work.add(block)
            await work.end()
        finally:
            await work.stop()
        return length


def _inside(size: int, offset: int, length: int | None) -> int:
    """Return the length of a range of an image of `size` bytes. Raises OutOfRange."""
    if offset + (length or 1) > size and (offset or length):
        raise OutOfRange(f"Requested range is outside of the image's {size} bytes", size)
    return size - offset if length is None else length


class _Group:
    """Blocks of one length that are hashed together."""

    def __init__(self) -> None:
        self.blocks: list[DataBlock] = []
        self.task: asyncio.Task[list[bytes]] | None = None


class _Checksum:
    """Hash one group of blocks at a time in each buffer, and add the digests in the order of the blocks."""

    def __init__(
        self,
        backend: Backend,
        op: Operation,
        hashing: Hashing,
        buffers: list[Buffer],
        algorithm: str,
        total: Total,
        tell: Tell | None,
    ) -> None:
        self._backend = backend
        self._op = op
        self._hashing = hashing
        self._algorithm = algorithm
        self._total = total
        self._tell = tell
        self._lanes = lanes_of(algorithm)
        self._zero_digests: dict[int, bytes] = {}
        self._free: asyncio.Queue[Buffer] = asyncio.Queue()
        for buffer in buffers:
            self._free.put_nowait(buffer)
        self._group = _Group()
        self._pending: deque[tuple[_Group, int] | ZeroBlocks] = deque()

    async def add(self, block: DataBlock | ZeroBlocks) -> None:
        """Start to hash a block, or keep it until its group is full. Waits while all buffers are in use."""
        if isinstance(block, ZeroBlocks):
            self._pending.append(block)
        else:
            if self._group.blocks and self._group.blocks[0].length != block.length:
                await self._start()
            self._pending.append((self._group, len(self._group.blocks)))
            self._group.blocks.append(block)
            if len(self._group.blocks) == self._lanes:
                await self._start()
        while len(self._pending) >= MAX_PENDING:
            await self._settle()

    async def end(self) -> None:
        """Add the digests of all blocks."""
        while self._pending:
            await self._settle()

    async def stop(self) -> None:
        """Cancel the tasks of blocks that are still being hashed, after an error, and wait for their end."""
        groups = [item[0] for item in self._pending if not isinstance(item, ZeroBlocks)]
        tasks = {group.task for group in groups if group.task is not None}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _start(self) -> "asyncio.Task[list[bytes]]":
        group, self._group = self._group, _Group()
        buffer = await self._free.get()
        group.task = asyncio.create_task(self._hash(group, buffer))
        return group.task

    async def _hash(self, group: _Group, buffer: Buffer) -> list[bytes]:
        try:
            return await hash_blocks(self._backend, self._op, self._hashing, self._algorithm, group.blocks, buffer)
        finally:
            self._free.put_nowait(buffer)

    async def _settle(self) -> None:
        """Add the digest of the oldest block, or the digests of the oldest run of zero blocks."""
        first = self._pending[0]
        if isinstance(first, ZeroBlocks):
            digest = await self._zero_digest(first.length)
            for done in range(0, first.number, ZERO_BATCH):  # others need turns: 8 EiB have 10^13 blocks
                count = min(ZERO_BATCH, first.number - done)
                await self._hashing.run(partial(self._total.add, digest, count), len(digest) * count)
            found = Blocks(first.number, first.length, digest, zero=True)
        else:
            group, index = first
            task = group.task or await self._start()
            digest, length = (await task)[index], group.blocks[index].length
            self._total.add(digest)
            # Storage may report zeros as data. The calls of tell() should depend on the content alone.
            is_zero = self._tell is not None and digest == await self._zero_digest(length)
            found = Blocks(1, length, digest, is_zero)
        self._pending.popleft()
        if self._tell is not None:
            await self._tell(found)

    async def _zero_digest(self, length: int) -> bytes:
        if length not in self._zero_digests:

            def find() -> None:
                self._zero_digests[length] = zero_digest(self._algorithm, length)

            await self._hashing.run(find, length)
        return self._zero_digests[length]
