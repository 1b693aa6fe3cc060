# SPDX-License-Identifier: Apache-2.0
"""How connections end."""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from imageio_daemon.nbdproto.constants import Command, ErrorNumber
from imageio_daemon.nbdproto.messages import RequestHeader
from imageio_daemon.transfers.ticket import Access
from tests.frontends.nbd.conftest import MakeWorld
from tests.frontends.nbd.world import REQUESTS, SIZE, MiB, World

READ, WRITE, FLUSH = Command.READ, Command.WRITE, Command.FLUSH


@pytest.fixture
async def world(make_world: MakeWorld) -> AsyncIterator[World]:
    async with make_world() as running:
        yield running


async def test_connection_that_ended_is_not_counted(world: World) -> None:
    client = await world.go()
    await client.close()
    await world.until(lambda: world.disk.status()["connections"] == 0)


@pytest.mark.parametrize("length", [0, 512, 2 * MiB])
@pytest.mark.parametrize("command", [command for command in Command if command != Command.DISC])
async def test_request_after_expiry_is_refused_and_ends_the_connection(
    world: World, command: Command, length: int
) -> None:
    client = await world.go()
    world.disk.permission.lease.expires = 0
    result = await client.request(command, 0, length, data=bytes(length) if command == WRITE else b"")
    if command == Command.BLOCK_STATUS and not length:
        assert result.error == ErrorNumber.EINVAL
        return
    assert result.error == ErrorNumber.ESHUTDOWN
    assert await client.at_end()


async def test_cancelling_the_ticket_ends_idle_connections(world: World) -> None:
    client = await world.go()
    await world.store.remove("disk", 10)
    assert await client.at_end()


async def test_cancelling_one_ticket_leaves_others_alone(world: World) -> None:
    world.add("other")
    client = await world.go("other")
    await world.go("disk")
    world.disk.cancel()
    assert (await client.request(READ, 0, 512)).error == 0


async def test_two_tickets_of_one_image_see_the_same_bytes(world: World) -> None:
    world.add("other")
    one, two = await world.go("disk"), await world.go("other")
    await one.request(WRITE, 0, data=b"new")
    await two.request(FLUSH)
    assert (await (await world.go("disk")).request(READ, 0, 3)).data == b"new"


async def test_read_only_ticket_counts_what_was_read(world: World) -> None:
    transfer = world.add("ro", ops=(Access.READ,))
    client = await world.go("ro")
    await client.request(READ, 0, 3 * MiB)
    await client.request(READ, 0, 512)
    assert transfer.status()["transferred"] == 3 * MiB


@pytest.mark.parametrize("where", [0, 1, 27, 28, 29, 4096 + 27])
async def test_client_that_dies_inside_a_request_writes_nothing(world: World, where: int) -> None:
    client = await world.go()
    stream = RequestHeader(WRITE, 0, 1, 0, 4096).pack() + b"x" * 4096
    client.writer.write(stream[:where])
    await client.writer.drain()
    client.reset()
    await world.rest()
    assert world.content == bytes(SIZE)


async def test_client_that_stalls_inside_a_request_is_closed_in_time(make_world: MakeWorld) -> None:
    async with make_world(inactivity_timeout=1) as world:
        idle, stalled, payload = await world.go(), await world.go(), await world.go()
        stalled.writer.write(RequestHeader(READ, 0, 1, 0, 512).pack()[:10])
        payload.writer.write(RequestHeader(WRITE, 0, 1, 0, 512).pack() + b"some")
        assert await stalled.at_end()
        assert await payload.at_end()
        assert (await idle.request(READ, 0, 512)).error == 0


async def test_client_that_does_not_read_is_closed_in_time(make_world: MakeWorld) -> None:
    async with make_world(inactivity_timeout=1) as world:
        world.put(os.urandom(SIZE))
        client = await world.go()
        client.pause_reading()
        for _ in range(100):
            client.send(READ, 0, MiB)
        await world.until(lambda: not world.server.admission.count)
        assert world.pool.in_use == 0


POINTS = [0, 1, 27, 28, 29, 3027, 3028, 3055, 3056, 3084, 3112, 3140, 3141, 40000, len(REQUESTS)]


@pytest.mark.parametrize("ends", ["reset", "half-close", "close"])
async def test_connection_that_ends_anywhere_in_the_transmission_leaves_nothing(world: World, ends: str) -> None:
    await (await world.go()).close()
    await world.rest()
    descriptors, tasks = os.listdir("/proc/self/fd"), len(asyncio.all_tasks())
    for point in POINTS:
        client = await world.go()
        client.writer.write(REQUESTS[:point])
        if ends == "half-close" and client.writer.can_write_eof():  # with TLS: see test_tls_lane.py
            client.writer.write_eof()
            async with asyncio.timeout(20):
                await client.reader.read()
        else:
            await client.writer.drain()
        if ends == "reset":
            client.reset()
        await world.rest()
    await world.until(lambda: not world.disk.status()["active"])
    await world.until(lambda: len(asyncio.all_tasks()) <= tasks)
    await world.until(lambda: len(os.listdir("/proc/self/fd")) <= len(descriptors))
    assert world.disk.status()["connections"] == 0


async def test_stopping_server_takes_no_more_clients(world: World) -> None:
    await world.server.stop(0.1)
    reader, writer = await asyncio.open_unix_connection(world.address)
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
