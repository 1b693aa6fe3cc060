# SPDX-License-Identifier: Apache-2.0
import asyncio
import gc
import hashlib
import weakref
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import cast

import pytest

from imageio_daemon.errors import Canceled, Forbidden, InUse, StorageError, Unavailable
from imageio_daemon.operations import finalize, operations
from imageio_daemon.operations.finalize import ComparedDigest, ExpectedImage, Finalizer
from imageio_daemon.operations.hashing import Hashing
from imageio_daemon.storage.backend import Backend
from imageio_daemon.storage.buffers import MIN_BUFFER, BufferPool
from imageio_daemon.transfers.store import TransferStore
from imageio_daemon.transfers.ticket import Access, Ticket
from imageio_daemon.transfers.transfer import Transfer
from imageio_daemon.units import MiB
from tests.support.backends import FaultyBackend, MemoryBackend

CONTENT = bytes(range(250)) * 10_000


def expected(content: bytes = CONTENT) -> ExpectedImage:
    blocks = [hashlib.sha256(content[start : start + MiB]).digest() for start in range(0, len(content), MiB)]
    return ExpectedImage("sha256", MiB, hashlib.sha256(b"".join(blocks)).hexdigest(), tuple(blocks))


class World:
    """Two tickets for one image in memory, which fails or waits on demand."""

    def __init__(self) -> None:
        self.memory = MemoryBackend(CONTENT)
        self.memory.identity = "the image"
        self.backend = FaultyBackend(self.memory)
        self.store = TransferStore(self._open, most_tickets=2, most_connections=1)
        self.hashing = Hashing(1)
        self.pool = BufferPool(8 * MIN_BUFFER, MIN_BUFFER)
        self.finalizer = Finalizer(self.store, self.pool, self.hashing)
        self.transfer, self.other = (self.store.add(self._ticket(name)) for name in ("one", "two"))

    @staticmethod
    def _ticket(name: str) -> Ticket:
        return Ticket(name, "file:///disk", len(CONTENT), (Access.WRITE,), timeout=300, inactivity_timeout=60)

    async def _open(self, ticket: Ticket) -> Backend:
        return cast(Backend, self.backend)

    def begin(self, transfer: Transfer, told: ExpectedImage | None = None) -> "asyncio.Task[dict[str, object] | None]":
        return asyncio.create_task(self.finalizer.finalize(transfer, told or expected()))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await asyncio.wait_for(world.store.close(), 10)
    world.hashing.stop()


async def test_image_is_flushed_before_it_is_read(world: World) -> None:
    held = world.backend.hold("pread")
    running = world.begin(world.transfer)
    await held.reached.wait()
    assert world.memory.flushes == 1
    held.release()
    report = await running
    assert report is not None
    assert report["verified"] == "read"


async def test_image_that_cannot_be_flushed_is_not_finalized(world: World) -> None:
    world.backend.fail("flush", StorageError(5, "flush", "fdatasync"))
    with pytest.raises(StorageError):
        await world.begin(world.transfer)
    assert world.transfer.permission.writable
    last = world.finalizer.last(world.transfer)
    assert last is not None
    assert isinstance(last.report.exception(), StorageError)


async def test_image_that_cannot_be_read_is_not_finalized(world: World) -> None:
    world.backend.fail("pread", StorageError(5, "read", "pread"))
    with pytest.raises(StorageError):
        await world.begin(world.transfer)
    assert world.transfer.permission.writable
    world.backend.hold("pread").release()
    assert await world.begin(world.transfer) is not None


async def test_image_for_which_there_is_no_memory_is_not_finalized(world: World) -> None:
    held = [await world.pool.acquire(MIN_BUFFER) for _ in range(8)]
    impatient = world.store.add(replace(world.transfer.ticket, inactivity_timeout=0))
    with pytest.raises(Unavailable, match="memory"):
        await world.begin(impatient)
    await operations.zero(impatient, 0, 1)
    for buffer in held:
        buffer.release()
    assert await world.begin(impatient) is not None


async def test_changes_are_refused_until_the_image_is_compared(world: World) -> None:
    held = world.backend.hold("pread")
    running = world.begin(world.transfer, expected(CONTENT[1:]))
    await held.reached.wait()
    with pytest.raises(InUse):
        world.store.authorize("one", Access.WRITE)
    with pytest.raises(InUse):
        await operations.zero(world.transfer, 0, 1)
    held.release()
    await running
    await operations.zero(world.transfer, 0, 1)


async def test_changes_are_forbidden_afterwards(world: World) -> None:
    await world.begin(world.transfer)
    with pytest.raises(Forbidden, match="finalized"):
        await operations.zero(world.transfer, 0, 1)
    with pytest.raises(Forbidden, match="finalized"):
        world.store.authorize("one", Access.WRITE)
    assert world.store.authorize("two", Access.WRITE) is world.other


async def test_client_that_leaves_does_not_end_it(world: World) -> None:
    held = world.backend.hold("pread")
    running = world.begin(world.transfer)
    await held.reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    held.release()
    last = world.finalizer.last(world.transfer)
    assert last is not None
    report = await asyncio.wait_for(asyncio.wrap_future(last.report), 10)
    assert "mismatch" not in report


async def test_end_of_the_transfer_ends_it(world: World) -> None:
    held = world.backend.hold("pread")
    running = world.begin(world.transfer)
    await held.reached.wait()
    world.transfer.cancel()
    held.release()
    with pytest.raises(Canceled):
        await running


async def test_nothing_is_left_of_one_that_failed(world: World) -> None:
    """Neither the transfer, nor the blocks, nor an exception that asyncio tells of."""
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
    left = await _removed_during_a_finalize(world)
    gc.collect()
    assert [found() for found in left] == [None, None]
    assert not told


async def _removed_during_a_finalize(world: World) -> list["weakref.ref[object]"]:
    held = world.backend.hold("pread")
    running = world.begin(world.transfer)
    await held.reached.wait()
    left: list[weakref.ref[object]] = [weakref.ref(world.transfer), weakref.ref(world.finalizer.last(world.transfer))]
    removal = asyncio.create_task(world.store.remove("one", 10))
    with pytest.raises(Canceled):
        await running
    held.release()
    await removal
    del world.transfer
    return left


async def test_an_equal_one_shares_the_result(world: World) -> None:
    held = world.backend.hold("pread")
    first, second = world.begin(world.transfer), world.begin(world.transfer, expected()._replace(blocks=()))
    await held.reached.wait()
    held.release()
    assert await first == await second
    assert world.memory.flushes == 1


async def test_another_one_is_refused_while_it_runs(world: World) -> None:
    held = world.backend.hold("pread")
    running = world.begin(world.transfer)
    await held.reached.wait()
    with pytest.raises(InUse, match="another checksum"):
        await world.begin(world.transfer, expected(CONTENT[1:]))
    held.release()
    await running


async def _both(world: World) -> list["asyncio.Task[dict[str, object] | None]"]:
    """Begin both, and return when the second one waits for its turn."""
    tasks = [world.begin(world.transfer)]
    while not world.backend.calls.count("pread"):
        await asyncio.sleep(0)
    tasks.append(world.begin(world.other))
    while world.memory.flushes < 2:
        await asyncio.sleep(0)
    for _ in range(10):  # from its flush to its wait
        await asyncio.sleep(0)
    return tasks


async def test_another_ticket_of_the_image_waits_for_its_turn(world: World) -> None:
    held = world.backend.hold("pread")
    first, second = await _both(world)
    assert not second.done()
    held.release()
    assert await first == await second


async def test_one_that_waits_for_its_turn_ends_with_its_transfer(world: World) -> None:
    world.backend.hold("pread")
    first, second = await _both(world)
    world.other.cancel()
    with pytest.raises(Canceled):
        await asyncio.wait_for(second, 10)
    world.transfer.cancel()
    with pytest.raises(Canceled):
        await first


async def test_ticket_of_one_that_waits_for_its_turn_does_not_expire(world: World) -> None:
    held = world.backend.hold("pread")
    first, second = await _both(world)
    world.other.permission.extend(1e-9)
    world.other.release_expired()
    assert world.other.opened is not None
    held.release()
    assert await first == await second
    assert world.other.permission.valid


async def test_it_is_not_answered_before_it_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(transfer: Transfer) -> bool:
        raise Unavailable("The state directory does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "keep", fail)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await world.begin(world.transfer)
            assert not world.transfer.permission.writable
    assert await world.begin(world.transfer) is not None


async def test_long_one_is_not_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finalize, "ANSWER_TIMEOUT", 0.01)
    held = world.backend.hold("pread")
    assert await world.begin(world.transfer) is None
    last = world.finalizer.last(world.transfer)
    assert last is not None
    assert (last.done, last.size) == (0, len(CONTENT))
    held.release()
    await asyncio.wrap_future(last.report)
    assert last.done == len(CONTENT)


@pytest.mark.parametrize(
    ("found", "mismatch"),
    [
        ([(b"a", 3)], []),
        ([(b"a", 2)], [2]),
        ([(b"a", 10**9)], [3]),
        ([(b"b", 1), (b"a", 1), (b"b", 1)], [0, 2]),
        ([(b"b", 10**9)], [0, 1, 2, 3]),
    ],
)
def test_mismatch_is_no_longer_than_what_is_expected(found: list[tuple[bytes, int]], mismatch: list[int]) -> None:
    comparison = ComparedDigest(ExpectedImage("sha256", MiB, "", (b"a",) * 3))
    for digest, count in found:
        comparison.add(digest, min(count, 1000))
    comparison.end()
    assert comparison.mismatch == mismatch
