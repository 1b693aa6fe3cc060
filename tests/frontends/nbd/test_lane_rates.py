# SPDX-License-Identifier: Apache-2.0
"""Limits on the rate of lanes: what waits for them, what it holds meanwhile, and what ends the wait."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from imageio_daemon.nbdproto.constants import Command, ErrorNumber
from imageio_daemon.units import MIN_RATE
from tests.frontends.nbd.client import Client
from tests.frontends.nbd.conftest import MakeWorld
from tests.frontends.nbd.world import MiB, World

READ, WRITE, ZERO, FLUSH, STATUS = (
    Command.READ,
    Command.WRITE,
    Command.WRITE_ZEROES,
    Command.FLUSH,
    Command.BLOCK_STATUS,
)

#: What is sent next waits for 32 s.
OWED = 2 * MiB


@pytest.fixture
async def world(lane_world: MakeWorld) -> AsyncIterator[World]:
    async with lane_world() as running:
        running.disk.limit(MIN_RATE)
        yield running


async def owing(world: World, name: str = "disk") -> Client:
    """Return a client that has just read OWED bytes."""
    client = await world.go(name)
    assert (await client.request(READ, 0, OWED)).error == 0
    return client


async def until_waiting(world: World) -> None:
    await world.until(lambda: world.disk.bucket.waiting)


@pytest.mark.parametrize("command", [READ, WRITE, ZERO, STATUS], ids=lambda command: command.name)
async def test_request_waits_for_what_was_moved_before(world: World, command: Command) -> None:
    client = await owing(world)
    client.send(command, 0, 4096, data=bytes(4096) if command == WRITE else b"")
    await until_waiting(world)
    assert world.disk.status()["limited"] >= 0
    began = time.monotonic()
    world.disk.limit(0)
    assert [result.error for result in (await client.receive_all()).values()] == [0]
    assert time.monotonic() - began < 5


async def test_flush_does_not_wait(world: World) -> None:
    client = await owing(world)
    began = time.monotonic()
    assert (await client.request(FLUSH)).error == 0
    assert time.monotonic() - began < 5
    assert not world.disk.bucket.waiting


async def test_second_half_comes_when_the_first_is_paid(world: World) -> None:
    world.disk.limit(MiB)
    client = await world.go()
    began = time.monotonic()
    for offset in (0, MiB, 0):
        assert (await client.request(READ, offset, MiB)).error == 0
    assert time.monotonic() - began > 1.5
    assert world.disk.bucket.limited > 1.5


async def test_waiting_lanes_hold_no_memory(world: World) -> None:
    clients = [await owing(world), *[await world.go() for _ in range(4)]]
    for client in clients:
        for _ in range(8):
            client.send(WRITE, 0, data=bytes(MiB))
    await world.until(lambda: world.disk.bucket.waiting == len(clients))
    await world.until(lambda: world.lanes.memory().used == 0)
    world.disk.limit(0)
    for client in clients:
        assert not any(result.error for result in (await client.receive_all()).values())


@pytest.mark.parametrize("command", [READ, WRITE], ids=lambda command: command.name)
async def test_removal_ends_the_wait_at_once(world: World, command: Command) -> None:
    client = await owing(world)
    client.send(command, 0, 4096, data=bytes(4096) if command == WRITE else b"")
    await until_waiting(world)
    async with asyncio.timeout(5):
        await world.store.remove("disk", 60)
    assert (await client.receive())[1].error == ErrorNumber.ESHUTDOWN


async def test_ticket_that_is_ended_by_hand_ends_the_wait(world: World) -> None:
    client = await owing(world)
    client.send(READ, 0, 4096)
    await until_waiting(world)
    async with asyncio.timeout(5):
        world.disk.permission.extend(0)
        assert (await client.receive())[1].error == ErrorNumber.ESHUTDOWN


async def test_ticket_does_not_expire_during_a_wait(world: World) -> None:
    short = world.add("short", timeout=1)
    short.limit(MiB)
    client = await owing(world, "short")
    assert (await client.request(READ, 0, 4096)).error == 0
    assert short.bucket.limited > 1.5
    assert short.permission.valid


async def test_client_that_leaves_ends_its_wait(world: World) -> None:
    client = await owing(world)
    client.send(READ, 0, 4096)
    await until_waiting(world)
    client.reset()
    await world.until(lambda: not world.disk.bucket.waiting)


async def test_server_that_stops_ends_waits(lane_world: MakeWorld) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        async with lane_world() as world:
            world.disk.limit(MIN_RATE)
            client = await owing(world)
            client.send(READ, 0, 4096)
            await until_waiting(world)
            began = time.monotonic()
            await world.server.stop(20)
            assert time.monotonic() - began < 5


async def test_tenants_share_a_limit_that_can_change(lane_world: MakeWorld) -> None:
    async with lane_world() as world:
        both = [world.add(name, tenant="blue") for name in ("a", "b")]
        other = world.add("c", tenant="red")
        world.store.limits.set_tenant_rate(MIN_RATE)
        await owing(world, "a")
        second, third = await world.go("b"), await world.go("c")
        second.send(READ, 0, 4096)
        await world.until(lambda: both[1].bucket.waiting)
        assert (await third.request(READ, 0, 4096)).error == 0
        assert not other.bucket.waiting
        world.store.limits.set_tenant_rate(0)
        assert (await second.receive())[1].error == 0
