# SPDX-License-Identifier: Apache-2.0
import asyncio
from collections.abc import Awaitable, Callable

import pytest

from imageio_daemon.errors import (
    Canceled,
    NotFound,
    OutOfRange,
    PeerGone,
)
from imageio_daemon.image.extents import Extent, ExtentList
from imageio_daemon.operations import operations
from imageio_daemon.storage.backend import Backend, Context
from imageio_daemon.storage.buffers import BufferPool
from imageio_daemon.storage.operation import Operation, ZeroMethod
from imageio_daemon.transfers.store import TransferStore
from imageio_daemon.transfers.ticket import Access, Ticket
from imageio_daemon.transfers.transfer import Transfer
from imageio_daemon.units import MiB
from tests.support.backends import FaultyBackend, MemoryBackend
from tests.support.polling import SOON

SIZE = MiB


class World:
    """A transfer on a backend in memory."""

    def __init__(self, *, sparse: bool = False, content: bytes = b"", can_grow: bool = True) -> None:
        self.memory = MemoryBackend(content or bytes(SIZE), can_grow=can_grow)
        self.backend = FaultyBackend(self.memory)
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


async def prepare(world: World, access: Access, offset: int, length: int) -> None:
    async with operations.ready(world.transfer, access, offset, length):
        """A lane would start here."""


def gone() -> None:
    raise PeerGone("gone")


@pytest.fixture
def world() -> World:
    return World()


async def test_nothing_is_zeroed_for_a_peer_that_is_gone(world: World) -> None:
    with pytest.raises(PeerGone):
        await operations.zero(world.transfer, 0, SIZE, before=gone)
    assert world.backend.calls == []


@pytest.mark.parametrize("call", ["write", "read", "zero"])
async def test_range_outside_of_the_ticket_is_refused_before_the_image_is_opened(world: World, call: str) -> None:
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "write": lambda: prepare(world, Access.WRITE, SIZE - 1, 2),
        "read": lambda: prepare(world, Access.READ, SIZE - 1, 2),
        "zero": lambda: operations.zero(world.transfer, SIZE - 1, 2),
    }
    with pytest.raises(OutOfRange):
        await calls[call]()
    assert world.backend.calls == []


async def test_write_past_an_image_that_cannot_grow_is_out_of_range() -> None:
    world = World(content=bytes(100), can_grow=False)
    with pytest.raises(OutOfRange) as e:
        await prepare(world, Access.WRITE, 99, 2)
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


async def test_cancelling_the_transfer_ends_a_request_that_waits_for_a_place(world: World) -> None:
    waits = asyncio.Event()

    async def wait_for_a_place() -> None:
        async with operations.ready(world.transfer, Access.WRITE, 0, 10):
            waits.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(wait_for_a_place())
    await waits.wait()
    await world.store.remove("secret", 60)
    with pytest.raises(Canceled):
        await running


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


async def test_who_had_to_wait_for_memory_gets_less_so_that_all_get_some() -> None:
    buffers = BufferPool(8 * MiB, 4 * MiB)
    everybody = asyncio.Barrier(8)

    async def hold() -> None:
        async with buffers.lease(None, None, SOON):
            await everybody.wait()

    async with buffers.lease(None, None, SOON) as leased:
        assert [buffer.size for buffer in leased] == [4 * MiB, 4 * MiB]
        tasks = [asyncio.create_task(hold()) for _ in range(8)]
        await asyncio.sleep(0)
    async with asyncio.timeout(SOON):
        await asyncio.gather(*tasks)


# Sources that pause


# Sinks that pause


def test_progress_has_no_bytes_that_were_read_again() -> None:
    op = Operation(0, 100)
    for count in (60, 80):
        op.advance(count)
    assert (op.done, op.progress) == (140, 100)
    op.release()
