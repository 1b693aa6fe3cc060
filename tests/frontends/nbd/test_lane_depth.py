# SPDX-License-Identifier: Apache-2.0
"""Lanes give storage no more long requests at a time than keep it busy, as long as it answers soon."""

import asyncio
import threading
import time
from typing import Any

import pytest

from imageio_daemon.nbdproto.constants import Command
from tests.frontends.nbd.calls import Calls
from tests.frontends.nbd.client import Client
from tests.frontends.nbd.conftest import MakeWorld
from tests.frontends.nbd.world import KiB, MiB, World
from tests.ioutil.syscall_table import real_pread, replaced
from tests.support.polling import SOON

READ, WRITE = Command.READ, Command.WRITE
#: What storage has of long requests at a time.
DEPTH = 4 * MiB
LENGTH = 256 * KiB
AT_ONCE = DEPTH // LENGTH
#: Fewer than one connection has memory for.
MANY = 2 * AT_ONCE
SIZE = 8 * MiB
#: How long a request waits for others that do not end, in seconds.
PATIENCE = 0.1


@pytest.fixture
async def world(gated: World) -> World:
    return gated


def _send(client: Client, command: Command, count: int, length: int = LENGTH) -> None:
    for i in range(count):
        client.send(command, i * length % SIZE, length, data=b"x" * length if command == WRITE else b"")


@pytest.mark.parametrize(("command", "name"), [(READ, "pread"), (WRITE, "pwrite")])
async def test_more_of_long_requests_wait_until_storage_seems_to_hang(
    world: World, client: Client, calls: Calls, command: Command, name: str
) -> None:
    held = calls.hold(name, AT_ONCE + 1)
    start = time.monotonic()
    _send(client, command, MANY)
    await world.until(lambda: held.full)
    assert time.monotonic() - start >= PATIENCE
    held.release()
    assert not any(result.error for result in (await client.receive_all()).values())


async def test_connections_to_one_device_share_its_depth(world: World, calls: Calls) -> None:
    clients = [await world.go() for _ in range(4)]
    held = calls.hold("pread", AT_ONCE + 1)
    start = time.monotonic()
    for client in clients:
        _send(client, READ, AT_ONCE)
    await world.until(lambda: held.full)
    assert time.monotonic() - start >= PATIENCE
    held.release()
    for client in clients:
        assert not any(result.error for result in (await client.receive_all()).values())


async def test_requests_go_on_beside_some_that_hang(world: World, client: Client, calls: Calls) -> None:
    held = calls.hold("pread", AT_ONCE - 1)
    _send(client, READ, MANY)
    for _ in range(MANY - held.most):
        assert (await client.receive())[1].error == 0
    assert held.full
    held.release()
    assert len(await client.receive_all()) == held.most


async def test_requests_go_on_beside_many_that_hang(world: World, client: Client, calls: Calls) -> None:
    held = calls.hold("pread", AT_ONCE)
    _send(client, READ, AT_ONCE)
    await world.until(lambda: held.full)
    other = await world.go()
    for _ in range(AT_ONCE):
        assert (await other.request(READ, 0, LENGTH)).error == 0
    assert held.full
    held.release()
    assert not any(result.error for result in (await client.receive_all()).values())


async def test_connection_that_breaks_leaves_nobody_waiting(world: World, client: Client, calls: Calls) -> None:
    held = calls.hold("pread", AT_ONCE)
    _send(client, READ, MANY)
    await world.until(lambda: held.full)
    await client.close()
    other = await world.go()
    assert (await other.request(READ, 0, LENGTH)).error == 0
    held.release()
    await world.until(lambda: world.disk.status()["connections"] == 1)


async def test_short_request_waits_for_no_long_ones(lane_world: MakeWorld, calls: Calls) -> None:
    """On a busy machine the answer may come late. Of some one does not; each device is new."""
    for _ in range(20):
        held = calls.hold("pread", MANY)
        async with lane_world(size=SIZE) as world:
            client = await world.go()
            _send(client, READ, MANY)
            await world.until(lambda held=held: held.count >= AT_ONCE)
            await client.request(WRITE, 0, data=bytes(4 * KiB))
            waited = held.count == AT_ONCE
            held.release()
            await client.receive_all()
        if waited:
            break
    assert waited


async def test_request_longer_than_the_depth_is_done(world: World, client: Client) -> None:
    assert (await client.request(READ, 0, SIZE)).data == world.content[:SIZE]


class Storage:
    """A storage that is far away: each read takes 10 ms. `most`: how many it had at a time."""

    def __init__(self) -> None:
        self.most = 0
        self._seconds = 0.01
        self._turn = threading.Semaphore(MANY)
        self._count = 0
        self._lock = threading.Lock()
        self._never = threading.Event()

    def come_near(self) -> None:
        """Take 0.3 ms for each read, one after the other."""
        self._seconds, self._turn = 0.0003, threading.Semaphore(1)

    def pread(self, *arguments: Any) -> Any:
        with self._lock:
            self._count += 1
            self.most = max(self.most, self._count)
        with self._turn:
            self._never.wait(self._seconds)
        with self._lock:
            self._count -= 1
        return real_pread(*arguments)


async def _read_all(*clients: Client, length: int = LENGTH) -> None:
    for client in clients:
        _send(client, READ, MANY * LENGTH // length, length)
    for client in clients:
        assert not any(result.error for result in (await client.receive_all()).values())


async def test_storage_that_is_far_away_has_all(lane_world: MakeWorld) -> None:
    far = Storage()
    with replaced(pread=far.pread):
        async with lane_world(size=SIZE) as world:
            client = await world.go()
            for _ in range(4):
                await _read_all(client)
    assert far.most > AT_ONCE


async def test_storage_that_was_slow_once_has_little_at_a_time_again(lane_world: MakeWorld) -> None:
    """It is looked at again after a second."""
    storage = Storage()
    with replaced(pread=storage.pread):
        async with lane_world(size=SIZE) as world:
            clients = [await world.go() for _ in range(2)]
            for _ in range(4):
                await _read_all(*clients, length=MiB)
            storage.come_near()
            async with asyncio.timeout(SOON):
                while storage.most > DEPTH // MiB:
                    storage.most = 0
                    await _read_all(*clients, length=MiB)
