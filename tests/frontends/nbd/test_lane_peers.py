# SPDX-License-Identifier: Apache-2.0
"""Lanes and clients that are slow, stall or do not read."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import pytest

from imageio_daemon.nbdproto.constants import Command, CommandFlag
from imageio_daemon.nbdproto.messages import RequestHeader
from tests.frontends.nbd.client import FORMS, Client
from tests.frontends.nbd.conftest import MakeWorld
from tests.frontends.nbd.world import SIZE, KiB, MiB, World

READ, WRITE, FLUSH, STATUS = Command.READ, Command.WRITE, Command.FLUSH, Command.BLOCK_STATUS

#: Long replies to a client that does not read. A short one may not wait for half of them.
STREAM = 8


@pytest.fixture
async def world(lane_world: MakeWorld) -> AsyncIterator[World]:
    async with lane_world(inactivity_timeout=1) as running:
        running.put(os.urandom(SIZE))
        yield running


async def trickle(client: Client, data: bytes, *, every: float, seconds: float) -> bool:
    """Send a byte from time to time; return whether the server has closed before the time is over."""
    end = asyncio.create_task(client.at_end())
    for i in range(min(len(data), int(seconds / every))):
        with contextlib.suppress(ConnectionError):
            client.writer.write(data[i : i + 1])
        done, _ = await asyncio.wait({end}, timeout=every)
        if done:
            return True
    end.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await end
    return False


async def test_payload_that_trickles_ends_the_connection(world: World) -> None:
    client = await world.go()
    client.writer.write(RequestHeader(WRITE, 0, 1, 0, 4096).pack())
    before = world.content
    assert await trickle(client, b"x" * 4096, every=0.9, seconds=9)
    await world.rest()
    assert world.content == before


async def test_payload_that_trickles_and_is_refused_ends_the_connection(world: World) -> None:
    client = await world.go()
    client.writer.write(RequestHeader(WRITE, 0, 1, SIZE, 4096).pack())
    assert await trickle(client, b"x" * 4096, every=0.9, seconds=9)


async def test_payload_that_is_slow_is_awaited(lane_world: MakeWorld) -> None:
    # Longer than the timeout in all; a machine that stands still for a moment is not a client that does.
    async with lane_world(inactivity_timeout=4) as world:
        client = await world.go()
        client.writer.write(RequestHeader(WRITE, 0, 1, 0, 1000).pack())
        assert not await trickle(client, b"x" * 1000, every=0.2, seconds=6)


async def test_header_that_comes_slowly_is_awaited(world: World) -> None:
    client = await world.go()
    cookie = 7
    header = RequestHeader(READ, 0, cookie, 0, 16).pack()
    client._sent.clear()
    for i in range(0, len(header), 7):
        assert not await trickle(client, header[i : i + 7][:6], every=0.05, seconds=1)
        client.writer.write(header[i + 6 : i + 7])
    reply = await client.read(20 + 8 + 16)
    assert reply[28:] == world.content[:16]


async def test_reader_that_pauses_gets_everything(lane_world: MakeWorld) -> None:
    async with lane_world(inactivity_timeout=60) as world:
        world.put(os.urandom(SIZE))
        client = await world.go()
        for _ in range(8):
            client.send(READ, 0, SIZE, CommandFlag.DF)
        client.pause_reading()
        await world.until(lambda: world.disk.status()["idle_time"] >= 1)  # nothing moves any more
        client.resume_reading()
        results = await client.receive_all()
        assert all(result.data == world.content for result in results.values())


async def unread_stream(world: World, form: str) -> Client:
    """Return a client that has asked for long replies, and reads nothing."""
    world.put(os.urandom(SIZE))
    client = await world.go(**FORMS[form])
    client.pause_reading()
    for _ in range(STREAM):
        client.send(READ, 0, 256 * KiB)
    return client


async def place_of(cookie: int, client: Client) -> int:
    """Return how many replies come before that of a request, which was asked for after the stream."""
    client.resume_reading()
    return [(await client.receive())[0] for _ in range(STREAM + 1)].index(cookie)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("command", "length"), [(WRITE, 0), (FLUSH, 0), (READ, 4096), (STATUS, 4096)])
async def test_short_reply_is_not_kept_back_by_a_stream_of_long_ones(
    lane_world: MakeWorld, form: str, command: int, length: int
) -> None:
    if command == STATUS and form == "simple":
        pytest.skip("BLOCK_STATUS needs structured replies")
    async with lane_world(inactivity_timeout=60) as world:
        client = await unread_stream(world, form)
        short = client.send(command, 0, length, data=b"x" * 4096 if command == WRITE else b"")
        await world.until(lambda: world.disk.status()["idle_time"] >= 1)  # all is done, and waits for the client
        assert await place_of(short, client) < STREAM / 2


@pytest.mark.parametrize("form", ["structured", "extended"])
async def test_map_that_is_asked_for_last_does_not_wait_for_long_replies(lane_world: MakeWorld, form: str) -> None:
    async with lane_world(inactivity_timeout=60) as world:
        client = await unread_stream(world, form)
        await world.until(lambda: world.disk.status()["idle_time"] >= 1)  # they wait for the client
        short = client.send(STATUS, 0, 4096)
        await world.until(lambda: world.disk.status()["idle_time"] == 0)
        assert await place_of(short, client) < STREAM / 2


async def test_other_connections_are_served_while_one_is_not_read(lane_world: MakeWorld) -> None:
    async with lane_world(inactivity_timeout=60) as world:  # the other's answers do not wait for this
        world.put(os.urandom(SIZE))
        unread, other = await world.go(), await world.go()
        unread.pause_reading()
        for _ in range(100):
            unread.send(READ, 0, 2 * MiB)
        for _ in range(20):
            assert (await other.request(READ, 0, MiB)).data == world.content[:MiB]
        assert world.disk.status()["connections"] == 2


@pytest.mark.parametrize("stalls", ["payload", "reading"])
async def test_removed_ticket_does_not_wait_for_the_client(lane_world: MakeWorld, stalls: str) -> None:
    async with lane_world(inactivity_timeout=60) as world:
        world.put(os.urandom(SIZE))
        client = await world.go()
        if stalls == "payload":
            client.writer.write(RequestHeader(WRITE, 0, 1, 0, 4096).pack() + b"some")
        else:
            client.pause_reading()
            for _ in range(20):
                client.send(READ, 0, 2 * MiB)
        await (await world.go()).request(READ, 0, 4096)
        await world.store.remove("disk", 5)


async def test_client_that_stalls_is_not_active(lane_world: MakeWorld) -> None:
    """Activity is what storage does: a client that hangs must not look like one that works."""
    async with lane_world(inactivity_timeout=60) as world:
        client = await world.go()
        client.writer.write(RequestHeader(WRITE, 0, 1, 0, 4096).pack() + b"some")
        await client.writer.drain()
        other = await world.go()
        await other.request(READ, 0, 4096)
        assert not world.disk.status()["active"]


async def test_replies_to_a_client_that_reads_late_are_whole(world: World) -> None:
    """Short replies are collected, and a full socket takes a part of them; long ones do not come in between."""
    content = world.content
    for _ in range(4):
        client = await world.go()
        client.pause_reading()
        lengths = [200 * 1024 if i % 9 == 8 else 4096 for i in range(120)]
        places = {client.send(READ, i * 4096, length): (i * 4096, length) for i, length in enumerate(lengths)}
        await client.writer.drain()
        assert (await (await world.go()).request(READ, 0, MiB)).data == content[:MiB]  # it takes a while
        client.resume_reading()
        results = await client.receive_all()
        assert {cookie: bytes(result.data) for cookie, result in results.items()} == {
            cookie: content[offset : offset + length] for cookie, (offset, length) in places.items()
        }
        await client.close()
