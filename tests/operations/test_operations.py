# SPDX-License-Identifier: Apache-2.0
import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence

import pytest

from imageio_daemon.errors import Canceled, Forbidden, NotFound, OutOfRange, PeerGone, StorageError, Truncated
from imageio_daemon.image.extents import Extent, ExtentList
from imageio_daemon.operations import operations
from imageio_daemon.operations.streaming import ByteSource
from imageio_daemon.storage.backend import Backend, Context, Operation, ZeroMethod
from imageio_daemon.storage.buffers import MIN_BUFFER, BufferPool
from imageio_daemon.storage.lending import Buffers
from imageio_daemon.transfers.store import TransferStore
from imageio_daemon.transfers.ticket import Access, Ticket
from imageio_daemon.transfers.transfer import Transfer
from imageio_daemon.units import MiB
from tests.support.backends import FaultyBackend, MemoryBackend, SlowBackend
from tests.support.polling import SOON, eventually_async

SIZE = MiB


class Source:
    """Give these pieces, one a call; an exception among them is raised."""

    def __init__(self, pieces: Sequence[bytes | Exception]) -> None:
        self._pieces = list(pieces)
        self.gone = False

    def require_alive(self) -> None:
        if self.gone:
            raise PeerGone("gone")

    async def readinto(self, view: memoryview) -> int:
        await asyncio.sleep(0)
        if not self._pieces:
            return 0
        piece = self._pieces.pop(0)
        if isinstance(piece, Exception):
            raise piece
        count = min(len(piece), len(view))
        view[:count] = piece[:count]
        if count < len(piece):
            self._pieces.insert(0, piece[count:])
        return count


async def _forever() -> int:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    return await future


class Stuck:
    """A peer that neither sends nor reads."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    def require_alive(self) -> None:
        """Be there."""

    async def readinto(self, view: memoryview) -> int:
        self.reached.set()
        return await _forever()

    async def write(self, view: memoryview) -> None:
        self.reached.set()
        await _forever()


class Sink:
    """Keep what was sent, looking at the memory only when the next turn comes, as a transport does."""

    def __init__(self) -> None:
        self.received = bytearray()

    async def write(self, view: memoryview) -> None:
        await asyncio.sleep(0)
        self.received += view


class World:
    """A transfer on a backend in memory, with buffers."""

    def __init__(self, *, sparse: bool = False, content: bytes = b"", can_grow: bool = True) -> None:
        self.memory = MemoryBackend(content or bytes(SIZE), can_grow=can_grow)
        self.backend = FaultyBackend(self.memory)
        self.pool = BufferPool(8 * MIN_BUFFER)
        self.buffers = Buffers(self.pool, MIN_BUFFER)
        self.store = TransferStore(self._open, most_tickets=9, most_connections=9)
        self.transfer: Transfer = self.store.add(
            Ticket(
                ticket_id="secret",
                url="file:///disk",
                size=SIZE,
                ops=(Access.WRITE,),
                timeout=300,
                inactivity_timeout=60,
                sparse=sparse,
            )
        )

    async def _open(self, ticket: Ticket) -> Backend:
        return self.backend  # type: ignore[return-value]

    async def write(self, offset: int, source: ByteSource, length: int | None, *, flush: bool = False) -> None:
        await operations.write(self.transfer, self.buffers, offset, length, source, flush=flush)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("offset", [0, 1, 4095, 4096, 70000])
@pytest.mark.parametrize("length", [0, 1, 4096, MIN_BUFFER, 5 * MIN_BUFFER + 17])
async def test_write_puts_the_bytes_at_the_offset(world: World, offset: int, length: int) -> None:
    data = os.urandom(length)
    await world.write(offset, Source([data]), length)
    assert bytes(world.memory.content) == bytes(offset) + data + bytes(SIZE - offset - length)
    assert world.pool.in_use == 0


async def test_write_of_unknown_length_takes_all_there_is(world: World) -> None:
    data = os.urandom(3 * MIN_BUFFER + 5)
    await world.write(10, Source([data[:100], data[100:]]), None)
    assert world.memory.content[10 : 10 + len(data)] == data


async def test_write_of_unknown_length_ends_at_the_size_of_the_ticket(world: World) -> None:
    with pytest.raises(OutOfRange):
        await world.write(SIZE - 10, Source([bytes(11)]), None)


@pytest.mark.parametrize("offset", [0, 1, 70000])
@pytest.mark.parametrize("length", [0, 1, MIN_BUFFER, 5 * MIN_BUFFER + 17])
async def test_read_sends_the_bytes_at_the_offset(offset: int, length: int) -> None:
    world = World(content=os.urandom(SIZE))
    sink = Sink()
    await operations.read(world.transfer, world.buffers, offset, length, sink)
    assert sink.received == world.memory.content[offset : offset + length]
    assert world.pool.in_use == 0


async def test_flush_after_write_comes_last(world: World) -> None:
    await world.write(0, Source([bytes(3 * MIN_BUFFER)]), 3 * MIN_BUFFER, flush=True)
    assert world.backend.calls[-1] == "flush"


async def test_write_without_flush_does_not_flush(world: World) -> None:
    await world.write(0, Source([b"x"]), 1)
    assert "flush" not in world.backend.calls


async def test_source_that_ends_early_is_truncated(world: World) -> None:
    with pytest.raises(Truncated):
        await world.write(0, Source([b"abc"]), 4)
    assert world.pool.in_use == 0


async def test_peer_that_goes_away_leaks_nothing(world: World) -> None:
    with pytest.raises(PeerGone):
        await world.write(0, Source([bytes(MIN_BUFFER), PeerGone("reset")]), 2 * MIN_BUFFER)
    assert world.pool.in_use == 0
    assert not world.transfer.status()["active"]


async def test_storage_error_while_receiving_ends_the_write(world: World) -> None:
    world.backend.fail("pwrite", StorageError(28, "write", "pwrite"))
    with pytest.raises(StorageError):
        await world.write(0, Source([bytes(4 * MIN_BUFFER)]), 4 * MIN_BUFFER, flush=True)
    assert world.pool.in_use == 0
    assert world.memory.flushes == 0


async def test_nothing_more_is_written_for_a_peer_that_is_gone(world: World) -> None:
    held = world.backend.hold("pwrite")
    source = Source([b"a" * MIN_BUFFER, b"b" * MIN_BUFFER])
    writing = asyncio.create_task(world.write(0, source, 2 * MIN_BUFFER))
    await held.reached.wait()
    source.gone = True
    held.release()
    with pytest.raises(PeerGone):
        await writing
    assert world.backend.calls == ["pwrite"]


async def test_nothing_is_zeroed_for_a_peer_that_is_gone(world: World) -> None:
    peer = Source([])
    peer.gone = True
    with pytest.raises(PeerGone):
        await operations.zero(world.transfer, 0, SIZE, peer=peer)
    assert world.backend.calls == []


async def test_receiving_overlaps_the_storage_write(world: World) -> None:
    held = world.backend.hold("pwrite")
    source = Stuck()

    class First(Stuck):
        sent = 0

        async def readinto(self, view: memoryview) -> int:
            if not self.sent:
                self.sent = len(view)
                return self.sent
            return await source.readinto(view)

    writing = asyncio.create_task(world.write(0, First(), 2 * MIN_BUFFER))
    await held.reached.wait()
    await source.reached.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing


@pytest.fixture
async def slow(world: World) -> SlowBackend:
    """Let the world have an image that takes three writes at a time, and ends them when it is told."""
    slow = SlowBackend(bytes(SIZE))
    slow.writes = 3
    world.backend = FaultyBackend(slow)
    return slow


def start_long_write(world: World) -> "tuple[asyncio.Task[None], bytes]":
    data = os.urandom(6 * MIN_BUFFER)
    return asyncio.create_task(world.write(0, Source([data]), len(data))), data


async def begun(slow: SlowBackend, count: int) -> None:
    """Wait until so many writes have begun."""
    await eventually_async(lambda: len(slow.begun) == count)


async def end_one_by_one(world: World, slow: SlowBackend, *, in_use: int) -> None:
    """End the writes of a long one, which begin one after the other, each while so much memory is in use."""
    for number in range(6):
        await begun(slow, number + 1)
        assert world.pool.in_use == in_use
        slow.begun[number][1].set_result(None)


async def test_as_many_writes_are_under_way_as_storage_takes_and_one_buffer_is_filled(
    world: World, slow: SlowBackend
) -> None:
    writing, data = start_long_write(world)
    await begun(slow, 3)
    assert world.pool.in_use == 4 * MIN_BUFFER
    for number in range(6):
        await begun(slow, min(6, number + 3))
        slow.begun[number][1].set_result(None)
    await writing
    assert slow.content[: len(data)] == data
    assert world.pool.in_use == 0


async def test_fewer_writes_are_under_way_where_memory_is_short(world: World, slow: SlowBackend) -> None:
    hogs = [await world.pool.acquire(MIN_BUFFER) for _ in range(5)]
    writing, data = start_long_write(world)
    await end_one_by_one(world, slow, in_use=7 * MIN_BUFFER)
    await writing
    assert slow.content[: len(data)] == data
    for hog in hogs:
        hog.release()


async def test_an_error_of_one_of_several_writes_ends_the_request_and_each_keeps_its_buffer_to_its_end(
    world: World, slow: SlowBackend
) -> None:
    writing, _ = start_long_write(world)
    await begun(slow, 3)
    slow.begun[1][1].set_exception(StorageError(28, "write", "pwrite"))
    slow.begun[0][1].set_result(None)
    with pytest.raises(StorageError):
        await writing
    started = len(slow.begun)
    assert world.pool.in_use == (started - 2) * MIN_BUFFER
    assert world.transfer.status()["active"]
    slow.finish()
    await eventually_async(lambda: not world.transfer.status()["active"])
    assert world.pool.in_use == 0
    assert len(slow.begun) == started


async def test_cancelling_the_transfer_ends_several_writes_and_each_keeps_its_buffer_to_its_end(
    world: World, slow: SlowBackend
) -> None:
    writing, _ = start_long_write(world)
    await begun(slow, 3)
    removing = asyncio.create_task(world.store.remove("secret", 60))
    with pytest.raises(Canceled):
        await writing
    assert world.pool.in_use == 3 * MIN_BUFFER
    assert not removing.done()
    slow.finish()
    await removing
    assert world.pool.in_use == 0


async def test_pieces_end_at_multiples_of_what_storage_takes_at_once(world: World, slow: SlowBackend) -> None:
    slow.write_piece = MIN_BUFFER
    data = os.urandom(2 * MIN_BUFFER)
    writing = asyncio.create_task(world.write(MIN_BUFFER + 5000, Source([data]), len(data)))
    await begun(slow, 3)
    slow.finish()
    await writing
    borders = [MIN_BUFFER + 5000, 2 * MIN_BUFFER, 3 * MIN_BUFFER, 3 * MIN_BUFFER + 5000]
    assert [where for where, _ in slow.begun] == list(map(range, borders, borders[1:]))


@pytest.mark.parametrize("call", ["write", "read", "zero"])
async def test_range_outside_of_the_ticket_is_refused_before_the_image_is_opened(world: World, call: str) -> None:
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "write": lambda: world.write(SIZE - 1, Source([b"ab"]), 2),
        "read": lambda: operations.read(world.transfer, world.buffers, SIZE - 1, 2, Sink()),
        "zero": lambda: operations.zero(world.transfer, SIZE - 1, 2),
    }
    with pytest.raises(OutOfRange):
        await calls[call]()
    assert world.backend.calls == []


async def test_write_past_an_image_that_cannot_grow_is_out_of_range() -> None:
    world = World(content=bytes(100), can_grow=False)
    with pytest.raises(OutOfRange) as e:
        await world.write(99, Source([b"ab"]), 2)
    assert e.value.size == 100


async def test_cancelling_the_task_ends_what_storage_does_for_it(world: World) -> None:
    seen: list[Operation] = []

    async def work() -> None:
        async with operations.running(world.transfer, Access.WRITE) as (op, backend):
            seen.append(op)
            await backend.flush(op)

    held = world.backend.hold("flush")
    task = asyncio.create_task(work())
    await held.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen[0].canceled


async def test_size_is_asked_for_only_when_the_image_may_have_grown(world: World) -> None:
    assert await operations.size(world.transfer, part=True) == SIZE
    assert world.backend.calls == ["refresh"], "nobody knew it yet"
    assert await operations.size(world.transfer, part=True) == SIZE
    assert world.backend.calls == ["refresh"]
    del world.memory.content[100:]
    assert await operations.size(world.transfer, part=True) == 100
    assert world.backend.calls == ["refresh"] * 2


@pytest.mark.parametrize("call", ["write", "read"])
async def test_cancelling_the_transfer_ends_a_request_that_waits_for_its_peer(world: World, call: str) -> None:
    stuck = Stuck()
    if call == "write":
        running = asyncio.create_task(world.write(0, stuck, 10))
    else:
        running = asyncio.create_task(operations.read(world.transfer, world.buffers, 0, 10, stuck))
    await stuck.reached.wait()
    await world.store.remove("secret", 60)
    with pytest.raises(Canceled):
        await running
    assert world.pool.in_use == 0


async def test_cancelling_the_transfer_ends_a_request_that_waits_for_a_buffer(world: World) -> None:
    hogs = [await world.pool.acquire(MIN_BUFFER) for _ in range(8)]
    waiting = asyncio.create_task(world.write(0, Source([b"x"]), 1))
    await asyncio.sleep(0)
    await world.store.remove("secret", 60)
    with pytest.raises((Canceled, Forbidden)):
        await waiting
    for buffer in hogs:
        buffer.release()
    assert world.pool.in_use == 0


async def test_timeout_of_the_peer_is_not_taken_for_cancellation(world: World) -> None:
    with pytest.raises(TimeoutError):
        await world.write(0, Source([TimeoutError("slow")]), 1)


async def test_zero_makes_zeros_and_reports_the_method() -> None:
    world = World(content=b"x" * SIZE)
    assert await operations.zero(world.transfer, 10, 20) is ZeroMethod.WRITE
    assert world.memory.content[9:31] == b"x" + bytes(20) + b"x"


@pytest.mark.parametrize("flush", [False, True])
async def test_zero_flushes_when_asked(world: World, flush: bool) -> None:
    await operations.zero(world.transfer, 0, 10, flush=flush)
    assert world.memory.flushes == int(flush)


async def test_zero_of_nothing_asks_the_storage_for_nothing(world: World) -> None:
    assert await operations.zero(world.transfer, 5, 0) is ZeroMethod.NONE
    assert "zero" not in world.backend.calls


async def test_flush_reaches_the_storage(world: World) -> None:
    await operations.flush(world.transfer)
    assert world.memory.flushes == 1


async def test_extents_cover_what_can_be_read() -> None:
    world = World(content=bytes(100))
    found: list[Extent] = []

    async def consume(told: ExtentList) -> None:
        found.extend(told)

    await operations.extents(world.transfer, Context.ZERO, consume)
    assert found == [Extent(0, 100)]


async def test_dirty_extents_without_bitmap_are_not_found(world: World) -> None:
    async def consume(_: ExtentList) -> None:
        raise AssertionError

    with pytest.raises(NotFound):
        await operations.extents(world.transfer, Context.DIRTY, consume)


async def test_one_buffer_is_enough() -> None:
    world = World()
    world.pool = BufferPool(2 * MIN_BUFFER)
    world.buffers = Buffers(world.pool, MIN_BUFFER)
    hog = await world.pool.acquire(MIN_BUFFER)
    data = os.urandom(5 * MIN_BUFFER + 1)
    await world.write(3, Source([data]), len(data))
    assert world.memory.content[3 : 3 + len(data)] == data
    hog.release()


async def test_who_had_to_wait_for_memory_gets_less_so_that_all_get_some() -> None:
    buffers = Buffers(BufferPool(8 * MiB), 4 * MiB)
    everybody = asyncio.Barrier(8)

    async def hold() -> None:
        async with buffers.lease(None, None):
            await everybody.wait()

    async with buffers.lease(None, None) as leased:
        assert [buffer.size for buffer in leased] == [4 * MiB, 4 * MiB]
        tasks = [asyncio.create_task(hold()) for _ in range(8)]
        await asyncio.sleep(0)
    async with asyncio.timeout(SOON):
        await asyncio.gather(*tasks)
