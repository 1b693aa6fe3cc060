# SPDX-License-Identifier: Apache-2.0
"""Memory of lanes: little is enough, and nobody has all of it."""

import asyncio
import errno
import mmap
import os
import tempfile
import time
from pathlib import Path

import pytest

from imageio_daemon.errors import StorageError
from imageio_daemon.lanes.shared import MIN_LANE_MEMORY, Lanes
from imageio_daemon.nbdproto.constants import MAX_PAYLOAD, Command, CommandFlag, ErrorNumber
from imageio_daemon.storage.engine import Engine
from ioutil_ext import lib
from tests.frontends.nbd.calls import Calls
from tests.frontends.nbd.client import FORMS, Client
from tests.frontends.nbd.conftest import MakeWorld
from tests.frontends.nbd.world import SIZE, MiB, World
from tests.support.images import pattern

READ, WRITE = Command.READ, Command.WRITE


def address_space() -> int:
    """Return how many bytes this process has mapped."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


def test_too_little_memory_is_refused() -> None:
    engine = Engine(1)
    try:
        with pytest.raises(StorageError):
            Lanes(engine, 8 * MiB)
        Lanes(engine, MIN_LANE_MEMORY)
    finally:
        engine.stop(1)


async def test_memory_is_kept_as_long_as_it_is_used(lane_world: MakeWorld) -> None:
    async with lane_world() as world:
        client = await world.go()
        await client.request(READ, 0, 4096)
        assert world.lanes is not None
        assert -lib.iou_lanes_free(world.lanes.shared) == errno.EBUSY
        assert (await client.request(READ, 0, 4096)).data == bytes(4096)


@pytest.mark.parametrize("form", FORMS)
async def test_many_connections_share_little_memory(lane_world: MakeWorld, form: str) -> None:
    async with lane_world(lanes=MIN_LANE_MEMORY) as world:
        clients = [await world.go(**FORMS[form]) for _ in range(8)]
        piece = SIZE // 8

        async def move(i: int, client: Client) -> None:
            for _ in range(8):
                client.send(WRITE, i * piece, data=bytes([i]) * piece)
            assert not any(result.error for result in (await client.receive_all()).values())
            for _ in range(8):
                client.send(READ, i * piece, piece)
            assert all(result.data == bytes([i]) * piece for result in (await client.receive_all()).values())

        await asyncio.gather(*(move(i, client) for i, client in enumerate(clients)))
        assert world.content == b"".join(bytes([i]) * piece for i in range(8))


@pytest.mark.parametrize("flags", [0, CommandFlag.DF])
async def test_longest_read_is_answered(lane_world: MakeWorld, flags: int) -> None:
    async with lane_world(size=MAX_PAYLOAD + MiB) as world:
        world.put(os.urandom(MAX_PAYLOAD + MiB))
        client = await world.go()
        assert (await client.request(READ, 5, MAX_PAYLOAD, flags)).data == world.content[5 : 5 + MAX_PAYLOAD]


async def test_long_read_leaves_no_address_space(lane_world: MakeWorld) -> None:
    async with lane_world() as world:
        client = await world.go()
        sizes = []
        for _ in range(16):
            await client.request(READ, 0, 3 * MiB + 1, CommandFlag.DF)
            sizes.append(address_space())
        assert sizes[-1] - sizes[3] < 8 * MiB  # the first ones start threads


async def test_longest_read_is_answered_while_others_read(lane_world: MakeWorld) -> None:
    """It needs most of the memory at once, of which others always use some."""
    async with lane_world(size=MAX_PAYLOAD, lanes=72 * MiB) as world:
        long, *others = [await world.go() for _ in range(4)]
        answered = asyncio.Event()

        async def load(client: Client) -> None:
            while not answered.is_set():
                for i in range(8):
                    client.send(READ, i * MiB, MiB)
                await client.receive_all()

        loads = [asyncio.create_task(load(other)) for other in others]
        async with asyncio.timeout(10):
            result = await long.request(READ, 0, MAX_PAYLOAD, CommandFlag.DF)
        answered.set()
        await asyncio.gather(*loads)
        assert result.data == bytes(MAX_PAYLOAD)


async def test_storage_that_hangs_leaves_memory_for_other_connections(gated: World, calls: Calls) -> None:
    one, other = await gated.go(), await gated.go()
    held = calls.hold("pread", 4)
    for i in range(64):
        one.send(READ, i % 8 * MiB, 2 * MiB)
    await gated.until(lambda: held.full)
    held.most = 64  # what comes now hangs, too
    assert (await other.request(WRITE, 0, data=bytes(2 * MiB))).error == 0
    held.release()
    assert len(await one.receive_all()) == 64


@pytest.mark.alone
async def test_clients_that_have_paused_go_on_as_fast_as_before(lane_world: MakeWorld) -> None:
    """Replies whose memory was given back do not wait for that of replies that wait for them."""

    async def seconds(world: World, client: Client, pause: float) -> float:
        """Return how long the replies take from when they are read."""
        for i in range(48):
            client.send(READ, i * 4096, 2 * MiB if i % 3 else 300000)
        client.pause_reading()
        paused = time.monotonic()
        await world.until(lambda: time.monotonic() >= paused + pause)
        client.resume_reading()
        resumed = time.monotonic()
        assert not any(result.error for result in (await client.receive_all()).values())
        return time.monotonic() - resumed

    async with lane_world(lanes=64 * MiB) as world:
        world.put(os.urandom(SIZE))
        clients = [await world.go() for _ in range(4)]
        before = max(await asyncio.gather(*(seconds(world, client, 0) for client in clients)))
        for _ in range(2):
            async with asyncio.timeout(0.6 + max(1, 4 * before)):
                await asyncio.gather(*(seconds(world, client, 0.6) for client in clients))  # a pause is 250 ms


async def test_ticket_whose_storage_hangs_leaves_memory_to_another_one(gated: World, calls: Calls) -> None:
    """To one of the same file system, and for requests as long as there are."""
    gated.add("other")
    hogs, other = [await gated.go() for _ in range(4)], await gated.go("other")
    held = calls.hold("pread", 6)
    for hog in hogs:
        for i in range(8):
            hog.send(READ, i * MiB, 2 * MiB)
    await gated.until(lambda: held.full)
    held.most = 64
    for _ in range(3):
        assert (await other.request(WRITE, 0, data=bytes(2 * MiB))).error == 0
    held.release()
    for hog in hogs:
        assert not any(result.error for result in (await hog.receive_all()).values())


async def test_requests_that_wait_let_one_of_another_ticket_pass(lane_world: MakeWorld, calls: Calls) -> None:
    async with lane_world(lanes=MIN_LANE_MEMORY, size=16 * MiB) as world:
        names = "one", "two", "three", "many", "other"
        for name in names:
            world.add(name, size=16 * MiB)
        *holders, many, other = [await world.go(name) for name in names]
        held = calls.hold("pread", 3)
        for holder in holders:  # a piece each is all that there is for one device
            holder.send(READ, 0, 2 * MiB)
        await world.until(lambda: held.full)
        for i in range(8):
            many.send(READ, i * MiB, 2 * MiB)
        other.send(WRITE, 0, data=bytes(2 * MiB))
        later = calls.hold("pread", 64)
        held.release()
        assert not (await other.receive())[1].error
        later.release()
        for client in (*holders, many):
            assert not any(result.error for result in (await client.receive_all()).values())


async def test_device_that_hangs_leaves_memory_for_requests_of_any_length_to_another(
    lane_world: MakeWorld, calls: Calls
) -> None:
    """Each length is cut from a part of the memory of its own, of which the device that hangs has most."""
    lengths = 4096, 200 * 1024, 900 * 1024, 2 * MiB
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as image:
        image.truncate(SIZE)
        async with lane_world(lanes=MIN_LANE_MEMORY) as world:
            assert world.image is not None
            assert world.image.stat().st_dev != os.fstat(image.fileno()).st_dev
            world.add("other", path=Path(image.name))
            for i in range(len(lengths)):
                world.add(f"hog{i}")
            hogs, other = [await world.go(f"hog{i}") for i in range(len(lengths))], await world.go("other")
            held = calls.hold("pread", 3)
            try:
                for hog, length in zip(hogs, lengths, strict=True):
                    hog.send(READ, 0, length)
                await world.until(lambda: held.full)
                for length in lengths:
                    assert (await other.request(WRITE, 0, data=bytes(length))).error == 0
            finally:
                held.release()
            for hog in hogs:
                assert not (await hog.receive())[1].error


@pytest.mark.parametrize("command", [READ, WRITE])
async def test_request_that_waits_for_memory_ends_when_its_ticket_does(
    lane_world: MakeWorld, calls: Calls, command: Command
) -> None:
    async with lane_world(lanes=MIN_LANE_MEMORY) as world:
        ticket = world.add("short")
        hogs = [world.add(f"hog{i}") for i in range(3)]  # with a piece each they have what one device may have
        clients = [await world.go(hog.ticket.ticket_id) for hog in hogs]
        client = await world.go("short")
        held = calls.hold("pread", 3)
        try:
            for hog in clients:
                hog.send(READ, 0, 2 * MiB)
            await world.until(lambda: held.full)
            ticket.permission.lease.expires = time.monotonic() + 0.5
            data = bytes(2 * MiB) if command == WRITE else b""
            assert (await client.request(command, 0, 2 * MiB, data=data)).error == ErrorNumber.ESHUTDOWN
            assert await client.at_end()
        finally:
            held.release()
        for hog in clients:
            assert not (await hog.receive())[1].error


@pytest.mark.parametrize("offset", [0, 1, 511, 4095])
async def test_memory_that_was_used_before_shows_nothing_of_it(
    lane_world: MakeWorld, tmp_path: Path, offset: int
) -> None:
    """Past the end of the image are zeros, whatever the memory held."""
    async with lane_world(lanes=MIN_LANE_MEMORY) as world:
        world.put(pattern(SIZE))
        world.add("large", size=4 * SIZE)
        client = await world.go("large")
        for _ in range(4):
            assert (await client.request(READ, offset, 3 * MiB)).data == world.content[offset : offset + 3 * MiB]
            end = await client.request(READ, SIZE - offset, 3 * MiB, CommandFlag.DF)
            assert end.data == world.content[SIZE - offset :] + bytes(3 * MiB - offset)


# What waits in vain, and who has memory meanwhile. The least memory is three pieces for a device.


@pytest.mark.parametrize("command", [READ, WRITE])
async def test_request_that_waits_for_memory_in_vain_is_told_so(
    lane_world: MakeWorld, calls: Calls, command: Command
) -> None:
    async with lane_world(lanes=MIN_LANE_MEMORY, inactivity_timeout=1) as world:
        hogs = [await world.go(world.add(f"hog{i}").ticket.ticket_id) for i in range(3)]
        client = await world.go()
        held = calls.hold("pread", 3)
        try:
            for hog in hogs:
                hog.send(READ, 0, 2 * MiB)
            await world.until(lambda: held.full)
            data = b"x" * (2 * MiB) if command == WRITE else b""
            assert (await client.request(command, 0, 2 * MiB, data=data)).error == ErrorNumber.ENOMEM
        finally:
            held.release()
        assert not (await client.request(command, 0, 2 * MiB, data=data)).error
        for hog in hogs:
            assert not (await hog.receive())[1].error


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("there", [1, 100, 64 * 1024, MiB + 5])
async def test_write_that_stops_on_its_way_keeps_no_memory(lane_world: MakeWorld, form: str, there: int) -> None:
    data = os.urandom(2 * MiB - 3000)
    async with lane_world(lanes=MIN_LANE_MEMORY) as world:
        hogs = [await world.go(world.add(f"hog{i}").ticket.ticket_id, **FORMS[form]) for i in range(4)]
        other = await world.go()
        for cookie, hog in enumerate(hogs):
            hog.writer.write(hog.begin(WRITE, 1000, len(data), 0, cookie) + data[:there])
        async with asyncio.timeout(5):
            for _ in range(3):
                assert not (await other.request(READ, 0, 2 * MiB)).error
        for hog in hogs:
            hog.writer.write(data[there:])
        for hog in hogs:
            assert not (await hog.receive())[1].error
        assert world.content[1000 : 1000 + len(data)] == data


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("length", [2 * MiB, 3 * MiB + 5])
async def test_reply_that_is_not_read_keeps_no_memory(lane_world: MakeWorld, form: str, length: int) -> None:
    """It goes on where it stopped, holes of it, too."""
    content = b"".join(os.urandom(200_000) + bytes(300_000) for _ in range(8))
    async with lane_world(lanes=MIN_LANE_MEMORY) as world:
        world.put(content)
        hogs = [await world.go(world.add(f"hog{i}").ticket.ticket_id, **FORMS[form]) for i in range(4)]
        other = await world.go(**FORMS[form])
        for hog in hogs:
            hog.pause_reading()
            hog.send(READ, 1, length)
        async with asyncio.timeout(5):
            for _ in range(3):
                assert (await other.request(READ, 1, length)).data == world.content[1 : 1 + length]
        for hog in hogs:
            hog.resume_reading()
            assert (await hog.receive())[1].data == world.content[1 : 1 + length]


async def test_reply_that_cannot_be_read_again_ends_the_connection(gated: World, calls: Calls) -> None:
    client = await gated.go()
    client.pause_reading()
    client.send(READ, 0, 2 * MiB)
    began = time.monotonic()
    await gated.until(lambda: time.monotonic() > began + 0.6)  # a pause is 250 ms
    calls.fail("pread", errno.EIO)
    client.resume_reading()
    await client.drop_all()
    await gated.until(lambda: not gated.server.admission.count)
