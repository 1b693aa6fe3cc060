# SPDX-License-Identifier: Apache-2.0
"""Operations without a task. Those of the HTTP frontend are tested through it, by the functional tests."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from imageio_daemon.buffers import PAGE, BufferPool, Slice
from imageio_daemon.errors import Canceled, Forbidden, OutOfRange, StorageError
from imageio_daemon.single import Single
from imageio_daemon.storage.base import Backend
from imageio_daemon.tickets import Access, Ticket
from imageio_daemon.transfers import Transfer
from imageio_daemon.transferstore import TransferStore
from imageio_daemon.units import MiB
from tests.support.backends import FaultyBackend, MemoryBackend


class World:
    """A transfer of an open image in memory, and what operations told at their end."""

    def __init__(self) -> None:
        self.memory = MemoryBackend(bytes(MiB), can_grow=False)
        self.backend = FaultyBackend(self.memory)
        self.store = TransferStore(self._open, most_tickets=9, most_connections=9)
        self.transfer: Transfer = self.store.add(
            Ticket(
                ticket_id="secret",
                url="file:///disk",
                size=2 * MiB,
                ops=(Access.WRITE, Access.READ),
                timeout=300,
                inactivity_timeout=60,
            )
        )
        self.piece = BufferPool(MiB).try_acquire(PAGE)
        self.ends: list[Exception | None] = []
        self.ended = asyncio.Event()

    async def _open(self, ticket: Ticket) -> Backend:
        return self.backend  # type: ignore[return-value]

    def begin(self, access: Access = Access.WRITE, offset: int = 0, length: int = PAGE) -> Single:
        return Single(self.transfer, self.backend, access, offset, length, self._note)  # type: ignore[arg-type]

    def slice(self, content: bytes = b"") -> Slice:
        assert self.piece is not None
        self.piece.view[: len(content)] = content
        return self.piece.slice(0, PAGE)

    def _note(self, error: Exception | None) -> None:
        self.ends.append(error)
        self.ended.set()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.transfer.backend()
    yield world
    await world.store.close()


async def test_write_puts_the_piece_at_the_offset_and_ends(world: World) -> None:
    world.begin(offset=PAGE).write(world.slice(b"x" * PAGE), flush=False)
    assert world.transfer.status()["active"]
    await world.ended.wait()
    assert world.memory.content[PAGE : 2 * PAGE] == b"x" * PAGE
    assert not world.transfer.status()["active"]
    assert (world.ends, world.memory.flushes) == ([None], 0)


async def test_flush_follows_a_write(world: World) -> None:
    world.begin().write(world.slice(), flush=True)
    await world.ended.wait()
    assert world.backend.calls == ["pwrite", "flush"]


async def test_no_flush_follows_a_write_that_failed(world: World) -> None:
    error = StorageError(5, "write", "pwrite")
    world.backend.fail("pwrite", error)
    world.begin().write(world.slice(), flush=True)
    await world.ended.wait()
    assert (world.ends, world.backend.calls) == ([error], ["pwrite"])


async def test_zero_makes_zeros(world: World) -> None:
    world.memory.content[:PAGE] = b"x" * PAGE
    world.begin(length=10).zero(flush=True, fast_only=False)
    await world.ended.wait()
    assert world.memory.content[:PAGE] == bytes(10) + b"x" * (PAGE - 10)
    assert world.backend.calls == ["zero", "flush"]


async def test_a_read_lasts_until_it_is_abandoned(world: World) -> None:
    reading = world.begin(Access.READ)
    reading.read(world.slice())
    await world.ended.wait()
    assert world.transfer.status()["active"]
    reading.abandon()
    assert not world.transfer.status()["active"]


async def test_cancelling_the_transfer_ends_an_operation_that_was_not_started(world: World) -> None:
    world.begin()
    world.transfer.cancel()
    await asyncio.wait_for(world.transfer.until_ended(), 10)
    assert [type(error) for error in world.ends] == [Canceled]


async def test_cancelling_the_transfer_ends_an_operation_that_storage_holds(world: World) -> None:
    held = world.backend.hold("pwrite")
    world.begin().write(world.slice(), flush=True)
    await held.reached.wait()
    world.transfer.cancel()
    await asyncio.wait_for(world.transfer.until_ended(), 10)
    assert [type(error) for error in world.ends] == [Canceled]


async def test_cancelling_the_transfer_is_told_while_read_bytes_are_sent(world: World) -> None:
    world.begin(Access.READ).read(world.slice())
    await world.ended.wait()
    world.transfer.cancel()
    await asyncio.wait_for(world.transfer.until_ended(), 10)
    assert [type(error) for error in world.ends] == [type(None), Canceled]


async def test_nothing_is_told_after_it_was_abandoned(world: World) -> None:
    held = world.backend.hold("pwrite")
    writing = world.begin()
    writing.write(world.slice(), flush=False)
    await held.reached.wait()
    writing.abandon()
    world.transfer.cancel()
    await asyncio.wait_for(world.transfer.until_ended(), 10)
    assert world.ends == []


@pytest.mark.parametrize("offset", [2 * MiB, MiB], ids=["ticket", "image"])
async def test_a_write_outside_does_not_begin(world: World, offset: int) -> None:
    with pytest.raises(OutOfRange):
        world.begin(offset=offset)
    assert not world.transfer.status()["active"]


async def test_nothing_begins_for_a_cancelled_transfer(world: World) -> None:
    world.transfer.cancel()
    with pytest.raises(Forbidden):
        world.begin()
