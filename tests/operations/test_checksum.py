# SPDX-License-Identifier: Apache-2.0
import asyncio
import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from imageio_daemon.errors import Canceled, StorageError
from imageio_daemon.image.blockhash import SHORT_HOLE, Total, new_hash
from imageio_daemon.image.extents import Extent, ExtentList, ExtentStream
from imageio_daemon.operations.checksum import WantedChecksum, checksum
from imageio_daemon.operations.hashing import Hashing
from imageio_daemon.storage.backend import Backend, BackendInfo, Context
from imageio_daemon.storage.buffers import MIN_BUFFER, BufferPool, Slice
from imageio_daemon.storage.operation import Operation
from imageio_daemon.transfers.store import TransferStore
from imageio_daemon.transfers.ticket import Access, Ticket
from imageio_daemon.transfers.transfer import Transfer
from imageio_daemon.units import KiB, MiB, TiB
from tests.support.backends import MemoryBackend

#: A part of an image: so many bytes, of data or a hole.
Part = tuple[int, bool]


class SparseBackend(MemoryBackend):
    """An image in memory that knows its holes and must not be asked for what they hold."""

    def __init__(self, parts: list[Part]) -> None:
        data = sum(length for length, hole in parts if not hole)
        content = (
            b"".join(bytes(length) if hole else b"\1" + os.urandom(length - 1) for length, hole in parts)
            if data
            else b""
        )
        super().__init__(content)
        self.size = sum(length for length, _ in parts)
        self._parts = parts
        self.read_at: asyncio.Event | None = None
        self.error: Exception | None = None
        self.lengths: list[int] = []

    @property
    def info(self) -> BackendInfo:
        return replace(super().info, size=self.size)

    async def pread(self, op: Operation, piece: Slice, offset: int) -> None:
        await asyncio.sleep(0)
        assert any(self.content[offset : offset + len(piece)]), "a hole was read"
        self.lengths.append(len(piece))
        if self.read_at is not None:
            self.read_at.set()
            await asyncio.get_running_loop().create_future()
        if self.error is not None:
            raise self.error
        await super().pread(op, piece, offset)

    async def extents(self, op: Operation, offset: int, length: int, context: Context) -> ExtentStream:
        assert context is Context.ZERO
        start = 0
        for size, hole in self._parts:
            yield ExtentList.of([Extent(start, size, zero=hole)], start)
            start += size


class World:
    def __init__(self, parts: list[Part], hashing: Hashing, buffer: int = MIN_BUFFER) -> None:
        self.backend = SparseBackend(parts)
        self.buffer = buffer
        self.pool = BufferPool(8 * buffer, buffer)
        self.hashing = hashing
        store = TransferStore(self._open, most_tickets=1, most_connections=1)
        ticket = Ticket("secret", "file:///disk", self.backend.size, (Access.READ,), timeout=300, inactivity_timeout=60)
        self.transfer: Transfer = store.add(ticket)

    async def _open(self, ticket: Ticket) -> Backend:
        return self.backend

    async def checksum(self, algorithm: str = "sha256", block_size: int = MiB) -> str:
        total = Total(algorithm)
        wanted = WantedChecksum(algorithm, block_size)
        await checksum(self.transfer, self.pool, self.hashing, wanted, total)
        return total.hexdigest()

    def expected(self, algorithm: str = "sha256", block_size: int = MiB) -> str:
        content = self.backend.content
        digests = new_hash(algorithm)
        for start in range(0, len(content), block_size):
            block = new_hash(algorithm)
            block.update(bytes(content[start : start + block_size]))
            digests.update(block.digest())
        return digests.hexdigest()


@pytest.fixture
def hashing() -> Iterator[Hashing]:
    threads = Hashing(2)
    yield threads
    threads.stop()


@pytest.mark.parametrize(
    "parts",
    [
        [(5 * MiB + 17, False)],
        [(1, False)],
        [(64 * MiB, True), (1, False)],
        [(4 * KiB, False), (4 * KiB, True)] * 300,
        [(MiB, True), (MiB, False)] * 20,
        [(3 * MiB + 5, False), (10 * MiB, True), (100, False), (100 * KiB, True), (3 * MiB, False)],
    ],
)
@pytest.mark.parametrize("algorithm", ["sha256", "blake2b", "blake2s"])
async def test_digest_is_that_of_the_content_and_holes_are_not_read(
    parts: list[Part], algorithm: str, hashing: Hashing
) -> None:
    world = World(parts, hashing)
    assert await world.checksum(algorithm) == world.expected(algorithm)
    assert world.pool.in_use == 0


async def test_data_is_read_with_the_short_holes_between(hashing: Hashing) -> None:
    world = World([(4 * KiB, False), (12 * KiB, True)] * 256, hashing)
    assert await world.checksum("blake2b", 4 * MiB) == world.expected("blake2b", 4 * MiB)
    assert len(world.backend.lengths) == 4 * MiB // (MIN_BUFFER // 4), (
        "each is as long as a buffer for four blocks allows"
    )


async def test_long_holes_are_not_read_with_the_data(hashing: Hashing) -> None:
    long, short = (SHORT_HOLE, True), (SHORT_HOLE - 4 * KiB, True)
    data = (4 * KiB, False)
    world = World([data, long, data, short, data, long, data], hashing, buffer=MiB)
    assert await world.checksum() == world.expected()
    assert world.backend.lengths == [4 * KiB, 8 * KiB + short[0], 4 * KiB]


async def test_blocks_that_are_hashed_together_are_read_in_pieces(hashing: Hashing) -> None:
    world = World([(6 * MiB + 100, False)], hashing)
    assert await world.checksum("blake2b") == world.expected("blake2b")
    assert max(world.backend.lengths) == MIN_BUFFER // 4


async def test_zero_blocks_between_data_keep_their_place(hashing: Hashing) -> None:
    world = World([(MiB, True), (MiB, False)] * 300, hashing)
    assert await world.checksum("blake2b") == world.expected("blake2b")


async def test_block_size_counts(hashing: Hashing) -> None:
    world = World([(5 * MiB, False)], hashing)
    assert await world.checksum(block_size=2 * MiB) == world.expected(block_size=2 * MiB) != world.expected()


async def test_huge_hole_costs_nothing(hashing: Hashing) -> None:
    block = hashlib.sha256(bytes(MiB)).digest()
    world = World([(TiB, True)], hashing)
    assert await world.checksum() == hashlib.sha256(block * (TiB // MiB)).hexdigest()


@pytest.mark.parametrize("algorithm", ["sha256", "blake2b"])
async def test_checksum_of_a_hole_that_never_ends_leaves_the_threads_to_others(algorithm: str) -> None:
    hashing = Hashing(1)
    endless = World([(2**62, True)], hashing)
    running = asyncio.create_task(endless.checksum(algorithm))
    other = World([(5 * MiB, False)], hashing)
    assert await asyncio.wait_for(other.checksum(algorithm), 60) == other.expected(algorithm)
    endless.transfer.cancel()
    with pytest.raises(Canceled):
        await asyncio.wait_for(running, 60)
    await asyncio.to_thread(hashing.stop)


async def test_empty_image_has_a_digest(hashing: Hashing) -> None:
    assert await World([], hashing).checksum() == hashlib.sha256().hexdigest()


async def test_storage_error_ends_it(hashing: Hashing) -> None:
    world = World([(20 * MiB, False)], hashing)
    world.backend.error = StorageError(5, "read", "pread")
    with pytest.raises(StorageError):
        await world.checksum()
    assert world.pool.in_use == 0


async def test_cancelling_the_transfer_ends_it(hashing: Hashing) -> None:
    world = World([(20 * MiB, False)], hashing)
    world.backend.read_at = asyncio.Event()
    running = asyncio.create_task(world.checksum())
    await world.backend.read_at.wait()
    world.transfer.cancel()
    with pytest.raises(Canceled):
        await running
    await asyncio.wait_for(world.transfer.end.until_ended(), 10)
    assert world.pool.in_use == 0


async def test_buffer_is_held_until_the_thread_has_let_go(hashing: Hashing) -> None:
    world = World([], hashing)
    buffer = await world.pool.acquire(MIN_BUFFER)
    loop = asyncio.get_running_loop()
    entered, leave = asyncio.Event(), loop.create_future()

    def wait() -> None:
        loop.call_soon_threadsafe(entered.set)
        asyncio.run_coroutine_threadsafe(_result(leave), loop).result()

    running = asyncio.create_task(hashing.run(wait, buffer.size, buffer))
    await entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    buffer.release()
    assert world.pool.in_use == buffer.size
    leave.set_result(None)
    async with asyncio.timeout(10):
        while world.pool.in_use:
            await asyncio.sleep(0)


async def _result(future: "asyncio.Future[None]") -> None:
    await future
