# SPDX-License-Identifier: Apache-2.0
import asyncio
import errno
import os

import pytest

from imageio_daemon.lanes.shared import MIN_LANE_MEMORY
from imageio_daemon.nbdproto.constants import Chunk, Command, CommandFlag, ErrorNumber
from tests.frontends.nbd.client import Client
from tests.frontends.nbd.conftest import MakeWorld
from tests.frontends.nbd.world import SIZE, MiB, World
from tests.support.fakenbd import Asked
from tests.support.nbd_payloads import pack_extents
from tests.support.nbdoracle.limits import MAX_EXTENTS

READ, WRITE, FLUSH, TRIM = Command.READ, Command.WRITE, Command.FLUSH, Command.TRIM
ZERO, CACHE, STATUS = Command.WRITE_ZEROES, Command.CACHE, Command.BLOCK_STATUS
FUA, DF = CommandFlag.FUA, CommandFlag.DF
#: Requests of one connection in storage at a time: it has so many threads.
MAX_REQUESTS = 64

# Reading and writing


async def test_long_read_comes_in_pieces(world: World, chunked: Client) -> None:
    world.put(os.urandom(SIZE))
    result = await chunked.request(READ, 100, 3 * MiB)
    assert result.data == world.content[100 : 100 + 3 * MiB]
    assert result.chunks.count(Chunk.OFFSET_DATA) > 1


# Zeroing, trimming, flushing


async def test_flush_reaches_the_storage(world: World, client: Client) -> None:
    for count in (1, 2):
        assert (await client.request(FLUSH)).error == 0
        assert len(world.remote.commands(FLUSH)) == count


@pytest.mark.parametrize("command", [WRITE, ZERO, TRIM])
async def test_change_passes_fua_on(world: World, client: Client, command: Command) -> None:
    world.add("sparse", sparse=True)  # whose trims do something
    client = await world.go("sparse")
    for flags in (FUA, 0):
        data = bytes(4096) if command == WRITE else b""
        assert (await client.request(command, 0, 4096, flags, data=data)).error == 0
    assert [asked.header.flags & FUA for asked in world.remote.commands(command)] == [FUA, 0]


async def test_flush_with_reserved_fields_is_no_error(client: Client) -> None:
    assert (await client.request(FLUSH, 512, 512)).error == 0


@pytest.mark.parametrize("flags", [0, CommandFlag.NO_HOLE, CommandFlag.FAST_ZERO, 0x12])
@pytest.mark.parametrize("sparse", [False, True])
async def test_zeroing_asks_the_storage_for_what_client_and_ticket_say(world: World, sparse: bool, flags: int) -> None:
    world.add("t", sparse=sparse)
    client = await world.go("t")
    assert (await client.request(ZERO, 0, 4096, flags)).error == 0
    (asked,) = world.remote.commands(ZERO)
    no_hole = CommandFlag.NO_HOLE if flags & CommandFlag.NO_HOLE or not sparse else 0
    assert asked.header.flags == no_hole | flags & CommandFlag.FAST_ZERO


async def test_zero_that_would_not_be_fast_is_not_supported(world: World, client: Client) -> None:
    assert (await client.request(ZERO, 0, 4095, CommandFlag.FAST_ZERO)).error == ErrorNumber.ENOTSUP
    assert not world.remote.commands(ZERO)


# Errors


NUMBERS = [e for e in errno.errorcode if e < 133]


@pytest.mark.parametrize("command", [READ, WRITE, ZERO, FLUSH])
async def test_only_known_numbers_appear_whatever_storage_says(world: World, command: Command) -> None:
    client = await world.go()
    allowed = {ErrorNumber.EPERM, ErrorNumber.EIO, ErrorNumber.ENOMEM, ErrorNumber.EINVAL, ErrorNumber.ENOSPC}
    for number in NUMBERS:
        world.remote.refused[command] = number
        data = bytes(512) if command == WRITE else b""
        length = 0 if command in (FLUSH, WRITE) else 512
        result = await client.request(command, 0, length, data=data)
        assert result.error in allowed, errno.errorcode[number]
        if number == errno.ENOSPC and command != FLUSH:  # a flush goes on failing as the first one did
            assert result.error == ErrorNumber.ENOSPC
    world.remote.refused.clear()
    assert (await client.request(READ, 0, 512)).error == 0


async def test_storage_failing_in_a_long_read_ends_it_with_an_error(world: World, client: Client) -> None:
    world.remote.refused[READ] = errno.EIO
    assert (await client.request(READ, 0, 3 * MiB)).error == ErrorNumber.EIO
    world.remote.refused.clear()
    assert (await client.request(READ, 0, 3 * MiB)).error == 0


async def test_storage_failing_in_a_long_write_is_told_once(world: World, client: Client) -> None:
    world.remote.refused[WRITE] = errno.ENOSPC
    assert (await client.request(WRITE, 10, data=bytes(3 * MiB))).error == ErrorNumber.ENOSPC
    assert (await client.request(FLUSH)).error == 0


# Block status


async def test_image_without_extents_is_all_data(world: World, chunked: Client) -> None:
    world.remote.contexts = ()
    world.add("untold")
    client = await world.go("untold", extended=chunked.extended)
    assert (await client.request(STATUS, 0, SIZE)).extents == [(SIZE, 0)]
    assert not world.remote.commands(STATUS)


# Many at once


async def test_slow_request_does_not_delay_later_ones(world: World, client: Client) -> None:
    held = world.remote.hold_back(ZERO)
    slow = client.send(ZERO, 0, 4096)
    await asyncio.wait_for(held.reached.wait(), 10)
    fast = client.send(READ, 0, 4096)
    assert (await client.receive())[0] == fast
    held.release()
    assert (await client.receive())[0] == slow


async def test_long_read_does_not_delay_short_ones(world: World) -> None:
    held = world.remote.hold_back(READ)
    client = await world.go()
    long = client.send(READ, 0, SIZE)
    await asyncio.wait_for(held.reached.wait(), 10)
    world.remote.held.clear()  # later ones are answered
    short = client.send(READ, 0, 512)
    assert (await client.receive())[0] == short
    held.release()
    assert (await client.receive())[0] == long


async def test_requests_under_way_are_bounded(world: World) -> None:
    held = world.remote.hold_back(READ)
    client = await world.go()
    for i in range(3 * MAX_REQUESTS):
        client.send(READ, i * 512, 512)
    await client.writer.drain()
    await world.until(lambda: len(held.asked) == MAX_REQUESTS)
    # One more round trip, which the server of the image has no part in: what is not read yet stays in the socket.
    other = await world.go()
    await other.request(CACHE, 0, 512)
    assert len(held.asked) == MAX_REQUESTS
    held.release()
    assert len(await client.receive_all()) == 3 * MAX_REQUESTS


async def test_client_that_does_not_read_takes_bounded_memory(remote_world: MakeWorld) -> None:
    async with remote_world(lanes=MIN_LANE_MEMORY) as world:
        world.put(os.urandom(SIZE))
        client, other = await world.go(), await world.go()
        client.pause_reading()
        sent = [client.send(READ, 0, MiB) for _ in range(300)]
        for _ in range(5):
            assert (await other.request(READ, 0, MiB)).error == 0
        client.resume_reading()
        results = await client.receive_all()
        assert len(results) == len(sent)
        assert all(result.data == world.content[:MiB] for result in results.values())


async def test_memory_is_not_used_again_before_it_was_sent(world: World) -> None:
    """What a slow reader gets is of the range that it asked for, whatever others have read since."""
    client, other = await world.go(), await world.go()
    client.pause_reading()
    world.put(b"a" * MiB + b"b" * (SIZE - MiB))
    asked = [client.send(READ, 0, MiB) for _ in range(8)]
    await world.until(lambda: len(world.remote.commands(READ)) >= 8)
    for _ in range(16):
        assert (await other.request(READ, MiB, MiB)).data == b"b" * MiB
    client.resume_reading()
    results = await client.receive_all()
    assert all(results[cookie].data == b"a" * MiB for cookie in asked)


async def test_extents_above_the_limit_are_told_in_the_next_reply(world: World, chunked: Client) -> None:
    count = MAX_EXTENTS + 100  # of 16 bytes each, every second one a hole

    async def answer(asked: Asked) -> bytes:
        lengths = [16] * (asked.header.length // 16)
        start = asked.header.offset // 16
        flags = [3 * ((start + i) % 2) for i in range(len(lengths))]
        return world.remote.chunk(asked, Chunk.BLOCK_STATUS, pack_extents(10, lengths, flags, extended=False))

    world.remote.answer = answer
    told = (await chunked.request(STATUS, 0, count * 16)).extents
    assert told == [(16, 3 * (i % 2)) for i in range(MAX_EXTENTS)]
    rest = (await chunked.request(STATUS, MAX_EXTENTS * 16, 100 * 16)).extents
    assert len(told) + len(rest) == count
