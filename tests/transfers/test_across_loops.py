# SPDX-License-Identifier: Apache-2.0
"""What loops share: buffers, transfers, the engine: used on one loop while others wait for them or end them."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from imageio_daemon.errors import Canceled, Forbidden, InUse
from imageio_daemon.net.connection_limit import LOCAL, ConnectionLimit, Stage
from imageio_daemon.net.loops import ServingLoop, serving_loops
from imageio_daemon.operations import operations
from imageio_daemon.storage.backend import Backend, Operation
from imageio_daemon.storage.buffers import MIN_BUFFER, Buffer, BufferPool
from imageio_daemon.storage.file.backend import FileBackend
from imageio_daemon.storage.file.engine import Engine
from imageio_daemon.storage.lending import Buffers
from imageio_daemon.transfers.store import TransferStore
from imageio_daemon.transfers.ticket import Access, Ticket
from imageio_daemon.transfers.transfer import Transfer
from imageio_daemon.units import MiB
from tests.support.polling import SOON

Loops = list[ServingLoop]


@pytest.fixture
async def loops() -> AsyncIterator[Loops]:
    async with serving_loops(3) as made:
        yield made


class World:
    """A store of one ticket for a file, on an engine for all loops."""

    def __init__(self, path: Path) -> None:
        self.engine = Engine(8)
        self.opened: list[Ticket] = []
        self.store = TransferStore(self._open, most_tickets=99, most_connections=9)
        self.ticket = Ticket(
            ticket_id="secret",
            url=f"file://{path}",
            size=MiB,
            ops=(Access.WRITE,),
            timeout=300,
            inactivity_timeout=60,
        )
        self.transfer = self.store.add(self.ticket)
        self.buffers = Buffers(BufferPool(16 * MiB), 64 * 1024)

    async def _open(self, ticket: Ticket) -> Backend:
        self.opened.append(ticket)
        return await FileBackend.open(self.engine, ticket.path, writable=True)


@pytest.fixture
async def world(loops: Loops, tmp_path: Path) -> AsyncIterator[World]:
    path = tmp_path / "image"
    path.write_bytes(bytes(MiB))
    made = World(path)
    yield made
    await made.store.close()
    for loop in loops:
        await loop.run(made.engine.release_loop())
    assert made.engine.stop(SOON) == []
    assert made.buffers.pool.in_use == 0


class Stuck:
    """A source whose bytes do not come."""

    def __init__(self) -> None:
        self.reached = threading.Event()

    def require_alive(self) -> None:
        """Be there."""

    async def readinto(self, view: memoryview) -> int:
        self.reached.set()
        await asyncio.Event().wait()
        return 0


class Zeros:
    """A source that has as many bytes as are asked for."""

    def require_alive(self) -> None:
        """Be there."""

    async def readinto(self, view: memoryview) -> int:
        view[:] = bytes(len(view))
        return len(view)


async def write_stuck(world: World, transfer: Transfer, source: Stuck) -> None:
    await operations.write(transfer, world.buffers, 0, MiB, source, flush=False)


# Buffers


async def test_buffer_released_on_one_loop_goes_to_who_waits_on_another(loops: Loops) -> None:
    pool = BufferPool(MIN_BUFFER)
    first = await pool.acquire(1)
    waiting = asyncio.create_task(loops[1].run(pool.acquire(1)))
    await until(lambda: bool(pool._waiting))
    first.release()
    assert await waiting is first
    await loops[1].run(release(first))
    assert pool.in_use == 0


async def test_no_buffer_is_lost_when_waiting_is_given_up_on_several_loops(loops: Loops) -> None:
    pool = BufferPool(2 * MIN_BUFFER)

    async def use(seed: int) -> int:
        chance = random.Random(seed)
        got = 0
        for _ in range(300):
            waiting = asyncio.create_task(pool.acquire(1))
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            if chance.random() < 0.4:
                waiting.cancel()
            try:
                buffer = await waiting
            except asyncio.CancelledError:
                continue
            got += 1
            await asyncio.sleep(0)
            buffer.release()
        return got

    async with asyncio.timeout(2 * SOON):
        got = await asyncio.gather(*(loop.run(use(seed)) for seed, loop in enumerate(loops * 2)))
    assert min(got) > 0
    await until(lambda: pool.in_use == 0)
    assert [pool.try_acquire(1) is not None for _ in range(3)] == [True, True, False]


async def release(buffer: Buffer) -> None:
    buffer.release()


# Transfers


async def test_image_is_opened_once_for_all_loops(world: World, loops: Loops) -> None:
    backends = await asyncio.gather(*(loop.run(world.transfer.backend()) for loop in loops * 3))
    assert len(world.opened) == 1
    assert all(backend is backends[0] for backend in backends)


class Late:
    """The transfer's lock, which one thread gets only when it is let through."""

    def __init__(self, lock: threading.Lock, thread: int) -> None:
        self.reached, self.through = threading.Event(), threading.Event()
        self._lock = lock
        self._thread = thread

    def __enter__(self) -> None:
        if threading.get_ident() == self._thread:
            self.reached.set()
            self.through.wait(SOON)
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


async def test_loop_that_saw_no_image_finds_what_another_one_opened_meanwhile(
    world: World, loops: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def thread() -> int:
        return threading.get_ident()

    late = Late(world.transfer._lock, await loops[1].run(thread()))
    monkeypatch.setattr(world.transfer, "_lock", late)
    second = asyncio.create_task(loops[1].run(world.transfer.backend()))
    await asyncio.to_thread(late.reached.wait, SOON)
    first = await world.transfer.backend()
    late.through.set()
    assert await second is first
    assert world.opened == [world.ticket]


async def test_removal_ends_what_waits_for_its_peer_on_other_loops(world: World, loops: Loops) -> None:
    sources = [Stuck() for _ in loops]
    writes = [
        asyncio.create_task(loop.run(write_stuck(world, world.transfer, source)))
        for loop, source in zip(loops, sources, strict=True)
    ]
    for source in sources:
        await until(source.reached.is_set)
    await world.store.remove("secret", SOON)
    assert [type(e) for e in await asyncio.gather(*writes, return_exceptions=True)] == [Canceled] * 3


async def test_removal_waits_for_an_operation_of_another_loop(world: World, loops: Loops) -> None:
    op = await loops[1].run(begin(world.transfer))
    with pytest.raises(InUse):
        await world.store.remove("secret", 0.01)
    await loops[1].run(end(op))
    await world.store.remove("secret", SOON)


async def begin(transfer: Transfer) -> Operation:
    return transfer.begin(Access.WRITE)


async def end(op: Operation) -> None:
    op.release()


async def test_tickets_are_replaced_and_extended_while_other_loops_write(world: World, loops: Loops) -> None:
    """What a loop still writes for the old ticket ends; progress of the new one counts its own bytes."""
    stop = threading.Event()

    async def write() -> int:
        done = 0
        while not stop.is_set():
            try:
                transfer = world.store.authorize("secret", Access.WRITE)
                await operations.write(transfer, world.buffers, 0, MiB, Zeros(), flush=False)
                done += 1
            except (Canceled, Forbidden):
                await asyncio.sleep(0)
        return done

    writing = [asyncio.create_task(loop.run(write())) for loop in loops[1:] * 2]
    for number in range(50):
        transfer = world.store.add(world.ticket)
        transfer.permission.extend(100 + number)
        assert transfer.status()["transferred"] <= MiB
        await asyncio.sleep(0.002)
    await until(lambda: transfer.status()["transferred"] == MiB)
    stop.set()
    async with asyncio.timeout(SOON):
        assert sum(await asyncio.gather(*writing)) > 0
    assert not transfer.status()["active"]
    await world.store.remove("secret", SOON)
    assert transfer.status()["canceled"]


async def test_status_is_whole_while_another_loop_begins_and_ends_operations(world: World, loops: Loops) -> None:
    stop = threading.Event()

    async def work() -> None:
        while not stop.is_set():
            await operations.write(world.transfer, world.buffers, 0, 4096, Zeros(), flush=False)

    working = [asyncio.create_task(loop.run(work())) for loop in loops[1:]]
    await until(lambda: world.transfer.status()["transferred"] == 4096)
    for _ in range(300):
        status = world.transfer.status()
        assert status["transferred"] == 4096
        assert status["storage_wait"] < SOON
        await asyncio.sleep(0)
    stop.set()
    await asyncio.gather(*working)
    assert not world.transfer.status()["active"]


# Limits


async def test_limit_counts_the_connections_of_all_loops(loops: Loops) -> None:
    limit = ConnectionLimit(3)
    dropped = threading.Event()
    for loop in loops:
        await loop.run(take(limit, dropped))
    limit.enter(Stage.STRANGER, LOCAL, dropped.set).know(lambda: True)
    assert dropped.is_set()
    assert limit.count == 3


async def take(limit: ConnectionLimit, dropped: threading.Event) -> None:
    limit.enter(Stage.STRANGER, LOCAL, dropped.set)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():
            await asyncio.sleep(0.001)
