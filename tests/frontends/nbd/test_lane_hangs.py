# SPDX-License-Identifier: Apache-2.0
"""Lanes on storage that hangs."""

import asyncio
import errno
from collections.abc import AsyncIterator

import pytest

from imageio_daemon.nbdproto.constants import Command, ErrorNumber
from imageio_daemon.nbdproto.messages import RequestHeader
from tests.frontends.nbd.calls import Calls, Hold
from tests.frontends.nbd.client import Client
from tests.frontends.nbd.conftest import CONTENT, MakeWorld
from tests.frontends.nbd.world import SIZE, MiB, World, lane_threads

READ, WRITE, ZERO, DISC = Command.READ, Command.WRITE, Command.WRITE_ZEROES, Command.DISC


@pytest.fixture
async def world(gated: World) -> World:
    return gated


@pytest.fixture
async def narrow(calls: Calls, lane_world: MakeWorld) -> AsyncIterator[World]:
    """Make a world whose image has one thread of the engine."""
    async with lane_world(threads=4) as running:
        try:
            yield running
        finally:
            calls.mend()


async def test_held_request_is_seen_in_the_status(world: World, calls: Calls) -> None:
    client = await world.go()
    held = calls.hold("pread")
    client.send(READ, 0, 4096)
    await world.until(lambda: held.full)
    await world.until(lambda: world.disk.status()["storage_wait"] >= 1.5)  # the request may have begun after that
    status = world.disk.status()
    assert (status["active"], status["idle_time"], status["connections"]) == (True, 0, 1)
    slowest = status["slowest_operation"]
    assert slowest.pop("seconds") >= 1
    assert slowest == {"kind": "read", "offset": 0, "length": 4096}
    held.release()
    await client.receive()
    await world.until(lambda: not world.disk.status()["active"])
    status = world.disk.status()
    assert status["storage_wait"] == 0
    assert "slowest_operation" not in status


async def test_longest_of_the_held_requests_is_the_slowest(world: World, calls: Calls) -> None:
    client = await world.go()
    held = calls.hold("pread", most=3)
    for offset in (8192, 0, 4096):
        client.send(READ, offset, 4096)
        await world.until(lambda offset=offset: offset in {each.offset for each in world.engine.running()})
    assert world.disk.status()["slowest_operation"]["offset"] == 8192
    held.release()
    for _ in range(3):
        await client.receive()


async def test_held_request_is_named_by_the_engine(world: World, calls: Calls) -> None:
    client = await world.go()
    held = calls.hold("pread")
    client.send(READ, 8192, 4096)
    await world.until(lambda: held.full)
    assert world.engine is not None
    (running,) = world.engine.running()
    assert (running.kind, running.path, running.offset, running.length) == ("read", str(world.image), 8192, 4096)
    held.release()
    await client.receive()
    await world.until(lambda: world.engine and not world.engine.running())


async def test_held_request_does_not_delay_others(world: World, client: Client, calls: Calls) -> None:
    held = calls.hold("pread")
    slow = client.send(READ, 0, 4096)
    await world.until(lambda: held.full)
    for _ in range(20):
        fast = client.send(READ, 4096, 4096)
        assert (await client.receive())[0] == fast
    held.release()
    assert (await client.receive())[0] == slow


async def test_long_read_does_not_delay_short_ones(world: World, client: Client, calls: Calls) -> None:
    held = calls.hold("pread")
    long = client.send(READ, 0, 7 * MiB)
    await world.until(lambda: held.full)
    short = client.send(READ, 0, 512)
    assert (await client.receive())[0] == short
    held.release()
    cookie, result = await client.receive()
    assert (cookie, bytes(result.data)) == (long, CONTENT[: 7 * MiB])


async def test_64_requests_are_in_storage_at_a_time(world: World, calls: Calls) -> None:
    client = await world.go()
    held = calls.hold("pread", 64)
    for i in range(200):
        client.send(READ, i * 4096, 4096)
    await world.until(lambda: held.full)
    assert lane_threads() == 1
    assert world.disk.running == 64
    held.release()
    results = await client.receive_all()
    assert [bytes(results[cookie].data) for cookie in sorted(results)] == [
        CONTENT[i * 4096 : (i + 1) * 4096] for i in range(200)
    ]


async def test_another_connection_of_the_image_goes_on(world: World, calls: Calls) -> None:
    one, other = await world.go(), await world.go()
    held = calls.hold("pread", 64)
    for i in range(64):
        one.send(READ, i * 4096, 4096)
    await world.until(lambda: held.full)
    assert (await other.request(WRITE, 0, data=bytes(4096))).error == 0
    assert (await other.request(READ, 0, 4096)).data == bytes(4096)
    held.release()
    assert len(await one.receive_all()) == 64


async def test_slow_storage_is_not_the_clients_fault(calls: Calls, lane_world: MakeWorld) -> None:
    async with lane_world(inactivity_timeout=1) as world:
        client = await world.go()
        held = calls.hold("pread")
        cookie = client.send(READ, 0, 4096)
        await world.until(lambda: world.disk.status()["storage_wait"] >= 2)
        held.release()
        assert (await client.receive())[0] == cookie


# The end of a connection whose requests hang


@pytest.mark.parametrize("goodbye", ["DISC", "half-close"])
async def test_goodbye_is_not_answered_and_what_runs_is(
    world: World, client: Client, calls: Calls, goodbye: str
) -> None:
    held = calls.hold("pread", 4)
    cookies = {client.send(READ, i * 4096, 4096) for i in range(4)}
    await world.until(lambda: held.full)
    if goodbye == "DISC":
        client.writer.write(RequestHeader(DISC, 0, 99, 0, 0).pack(extended=client.extended) + b"ignored")
    else:
        client.writer.write_eof()
    held.release()
    assert set(await client.receive_all()) == cookies
    assert await client.at_end()


async def test_client_that_dies_while_storage_works_frees_everything(world: World, calls: Calls) -> None:
    client = await world.go()
    held = calls.hold("pread", 8)
    for i in range(20):
        client.send(READ, i * 4096, MiB)
    await world.until(lambda: held.full)
    client.reset()
    held.release()
    await world.until(lambda: world.disk.status()["connections"] == 0)
    assert not world.disk.status()["active"]


async def test_client_that_dies_ends_what_storage_does_for_it_at_the_next_step(world: World, calls: Calls) -> None:
    # TCP tells that it is dead, and not only that it says nothing more.
    listening = await asyncio.get_running_loop().create_server(world.server.connection, "127.0.0.1", 0)
    client = await Client.connect(listening.sockets[0].getsockname())
    world.clients.append(client)
    await client.go("disk")
    calls.fail("fallocate", errno.EOPNOTSUPP)
    held = calls.hold("pwrite")
    client.send(ZERO, 0, len(CONTENT))
    await world.until(lambda: held.full)
    (lane,) = world.lanes.alive
    client.reset()
    await world.until(lambda: lane.stats.error == errno.ECONNRESET)
    held.release()
    listening.close()
    await world.until(lambda: world.disk.status()["connections"] == 0)
    assert calls.made.count("pwrite") <= 2


async def test_removed_ticket_waits_for_storage_and_refuses_the_rest(
    world: World, client: Client, calls: Calls
) -> None:
    held = calls.hold("pwrite")
    slow = client.send(WRITE, 0, data=b"x" * 4096)
    await world.until(lambda: held.full)
    removing = asyncio.create_task(world.store.remove("disk", 10))
    await world.until(lambda: world.disk.permission.canceled)
    late = client.send(READ, 0, 4096)
    cookie, result = await client.receive()
    assert (cookie, result.error) == (late, ErrorNumber.ESHUTDOWN)
    assert not removing.done()
    held.release()
    cookie, result = await client.receive()
    assert cookie == slow
    assert result.error == ErrorNumber.ESHUTDOWN or world.content[:4096] == b"x" * 4096
    assert await client.at_end()
    await removing


async def test_stopping_server_finishes_what_runs_and_leaves_what_comes_to_the_next(
    world: World, client: Client, calls: Calls
) -> None:
    held = calls.hold("pwrite")
    running = client.send(WRITE, 0, data=b"abc" + bytes(4093))
    await world.until(lambda: held.full)
    stopping = asyncio.create_task(world.server.stop(10))
    await asyncio.sleep(0)
    client.send(READ, 0, 4096)
    held.release()
    cookie, result = await client.receive()
    assert (cookie, result.error) == (running, 0)
    assert await client.at_end()
    await stopping
    assert world.content[:3] == b"abc"


async def test_stopping_server_cuts_off_whose_request_hangs(world: World, calls: Calls) -> None:
    client = await world.go()
    held = calls.hold("pread")
    client.send(READ, 0, 4096)
    await world.until(lambda: held.full)
    await world.server.stop(1.2)
    assert await client.at_end()
    assert world.engine is not None
    assert [running.kind for running in world.engine.running()] == ["read"]
    held.release()
    await world.until(lambda: not lane_threads())


# Clients that are gone while no thread is free


async def take_the_thread(world: World, calls: Calls) -> tuple[Client, Hold]:
    """Let a new client's read hang on the only thread."""
    client = await world.go()
    held = calls.hold("pread")
    client.send(READ, 0, 4096)
    await world.until(lambda: held.full)
    return client, held


@pytest.mark.parametrize("command", [READ, WRITE])
async def test_operation_that_waits_for_a_thread_ends_with_its_client(
    narrow: World, calls: Calls, command: Command
) -> None:
    gone = await narrow.go()
    (lane,) = narrow.lanes.alive
    stays, held = await take_the_thread(narrow, calls)
    gone.pause_reading()
    sent = lane.stats.sent
    gone.send(READ, SIZE, 4096)  # is refused; what its client does not read tells the lane that it is gone
    gone.send(command, 8192, 4096, data=bytes(4096) if command == WRITE else b"")
    await narrow.until(lambda: narrow.engine.load().queued == 1 and lane.stats.sent > sent)
    gone.reset()
    await narrow.until(lambda: narrow.engine.load().queued == 0 and lane not in narrow.lanes.alive)
    held.release()
    await stays.receive()


async def test_operation_that_waits_for_a_thread_ends_when_its_lane_is_cut(narrow: World, calls: Calls) -> None:
    cut = await narrow.go()
    (lane,) = narrow.lanes.alive
    stays, held = await take_the_thread(narrow, calls)
    cut.send(READ, 8192, 4096)
    await narrow.until(lambda: narrow.engine.load().queued == 1)
    lane.abort()
    await narrow.until(lambda: narrow.engine.load().queued == 0 and lane not in narrow.lanes.alive)
    held.release()
    await stays.receive()
