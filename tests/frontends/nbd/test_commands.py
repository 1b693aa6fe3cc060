# SPDX-License-Identifier: Apache-2.0
import asyncio
import errno
import os

import pytest

from imageio_daemon.errors import NotFast, NotFound, OutOfRange, StorageError, Unavailable
from imageio_daemon.image.extents import Extent, ExtentList, ExtentStream
from imageio_daemon.lanes.shared import MIN_LANE_MEMORY
from imageio_daemon.nbdproto.constants import Chunk, Command, CommandFlag, ErrorNumber
from tests.frontends.nbd.client import Client
from tests.frontends.nbd.conftest import MakeWorld
from tests.frontends.nbd.world import SIZE, MiB, World
from tests.support.nbdoracle.limits import MAX_EXTENTS

READ, WRITE, FLUSH, TRIM = Command.READ, Command.WRITE, Command.FLUSH, Command.TRIM
ZERO, CACHE, STATUS = Command.WRITE_ZEROES, Command.CACHE, Command.BLOCK_STATUS
FUA, DF = CommandFlag.FUA, CommandFlag.DF
#: Requests of one connection in storage at a time: it has so many threads.
MAX_REQUESTS = 64

# Reading and writing


async def test_long_read_comes_in_pieces(world: World, chunked: Client) -> None:
    world.memory.content[:] = os.urandom(SIZE)
    result = await chunked.request(READ, 100, 3 * MiB)
    assert result.data == world.memory.content[100 : 100 + 3 * MiB]
    assert result.chunks.count(Chunk.OFFSET_DATA) > 1


# Zeroing, trimming, flushing


async def test_flush_and_fua_reach_the_storage(world: World, client: Client) -> None:
    await client.request(FLUSH)
    assert world.memory.flushes == 1
    await client.request(ZERO, 0, 4096, FUA)
    await client.request(TRIM, 0, 4096, FUA)
    assert world.memory.flushes == 3


async def test_write_passes_fua_on(world: World, client: Client) -> None:
    seen: list[object] = []
    pwrite = world.memory.pwrite

    async def spy(*args: object, fua: bool = False) -> None:
        seen.append(fua)
        await pwrite(*args)  # type: ignore[arg-type]

    world.memory.pwrite = spy  # type: ignore[method-assign, assignment]
    await client.request(WRITE, 0, data=b"abc", flags=FUA)
    await client.request(WRITE, 0, data=b"abc")
    assert seen == [True, False]


async def test_flush_with_reserved_fields_is_no_error(client: Client) -> None:
    assert (await client.request(FLUSH, 512, 512)).error == 0


@pytest.mark.parametrize("flags", [0, CommandFlag.NO_HOLE, CommandFlag.FAST_ZERO, 0x12])
@pytest.mark.parametrize("sparse", [False, True])
async def test_zeroing_asks_the_storage_for_what_client_and_ticket_say(world: World, sparse: bool, flags: int) -> None:
    asked: list[dict[str, object]] = []
    zero = world.memory.zero

    async def spy(*args: object, **kwargs: object) -> object:
        asked.append(kwargs)
        return await zero(*args, **kwargs)  # type: ignore[arg-type]

    world.memory.zero = spy  # type: ignore[method-assign, assignment]
    world.add("t", sparse=sparse)
    client = await world.go("t")
    await client.request(ZERO, 0, 4096, flags)
    no_hole, fast = bool(flags & CommandFlag.NO_HOLE), bool(flags & CommandFlag.FAST_ZERO)
    assert asked == [{"allocate": no_hole or not sparse, "fast_only": fast, "fua": False}]


async def test_zero_that_would_not_be_fast_is_not_supported(world: World, client: Client) -> None:
    world.backend.fail("zero", NotFast("no way"))
    assert (await client.request(ZERO, 0, 4096, CommandFlag.FAST_ZERO)).error == ErrorNumber.ENOTSUP


# Errors


NUMBERS = [e for e in errno.errorcode if e < 133]


@pytest.mark.parametrize(("command", "method"), [(READ, "pread"), (WRITE, "pwrite"), (ZERO, "zero"), (FLUSH, "flush")])
async def test_only_known_numbers_appear_whatever_storage_says(world: World, command: Command, method: str) -> None:
    client = await world.go()
    allowed = {ErrorNumber.EPERM, ErrorNumber.EIO, ErrorNumber.ENOMEM, ErrorNumber.EINVAL, ErrorNumber.ENOSPC}
    for number in NUMBERS:
        world.backend.fail(method, StorageError(number, "test", method))
        data = bytes(512) if command == WRITE else b""
        length = 0 if command in (FLUSH, WRITE) else 512
        result = await client.request(command, 0, length, data=data)
        assert result.error in allowed, errno.errorcode[number]
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            assert result.error == ErrorNumber.ENOSPC
    world.backend._faults.clear()
    assert (await client.request(READ, 0, 512)).error == 0


async def test_range_that_storage_has_not_is_out_of_space_or_invalid(world: World, client: Client) -> None:
    world.backend.fail("pwrite", OutOfRange("no"))
    world.backend.fail("pread", OutOfRange("no"))
    assert (await client.request(WRITE, 0, data=b"x")).error == ErrorNumber.ENOSPC
    assert (await client.request(READ, 0, 1)).error == ErrorNumber.EINVAL


async def test_a_bug_is_an_error_of_the_request_and_logged(
    world: World, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    world.backend.fail("pread", ValueError("a bug"))
    assert (await client.request(READ, 0, 1)).error == ErrorNumber.EIO
    assert "a bug" in caplog.text
    assert (await client.request(FLUSH)).error == 0


async def test_storage_failing_in_a_long_read_ends_it_with_an_error(world: World, client: Client) -> None:
    world.backend.fail("pread", StorageError(5, "read", "pread"))
    assert (await client.request(READ, 0, 3 * MiB)).error == ErrorNumber.EIO
    world.backend._faults.clear()
    assert (await client.request(READ, 0, 3 * MiB)).error == 0


async def test_storage_failing_in_a_long_write_is_told_once(world: World, client: Client) -> None:
    world.backend.fail("pwrite", StorageError(28, "write", "pwrite"))
    assert (await client.request(WRITE, 10, data=bytes(3 * MiB))).error == ErrorNumber.ENOSPC
    assert (await client.request(FLUSH)).error == 0


async def test_unavailable_storage_ends_the_connection(world: World, client: Client) -> None:
    world.backend.fail("flush", Unavailable("stopping"))
    assert (await client.request(FLUSH)).error == ErrorNumber.ESHUTDOWN
    assert await client.at_end()


# Block status


async def test_image_without_extents_is_all_data(world: World, chunked: Client) -> None:
    async def extents(*_: object) -> ExtentStream:
        raise NotFound("no such information")
        yield

    world.memory.extents = extents  # type: ignore[method-assign, assignment]
    assert (await chunked.request(STATUS, 0, SIZE)).extents == [(SIZE, 0)]


# Many at once


async def test_slow_request_does_not_delay_later_ones(world: World, client: Client) -> None:
    held = world.backend.hold("zero")
    slow = client.send(ZERO, 0, 4096)
    await asyncio.wait_for(held.reached.wait(), 10)
    fast = client.send(READ, 0, 4096)
    assert (await client.receive())[0] == fast
    held.release()
    assert (await client.receive())[0] == slow


async def test_long_read_does_not_delay_short_ones(world: World) -> None:
    held = world.backend.hold("pread")
    client = await world.go()
    long = client.send(READ, 0, SIZE)
    await asyncio.wait_for(held.reached.wait(), 10)
    world.backend._faults.clear()
    short = client.send(READ, 0, 512)
    assert (await client.receive())[0] == short
    held.release()
    assert (await client.receive())[0] == long


async def test_requests_under_way_are_bounded(world: World) -> None:
    held = world.backend.hold("pread")
    client = await world.go()
    for i in range(3 * MAX_REQUESTS):
        client.send(READ, i * 512, 512)
    await client.writer.drain()
    await world.until(lambda: world.backend.calls.count("pread") == MAX_REQUESTS)
    # One more round trip: what is not read yet stays in the socket.
    other = await world.go()
    await other.request(FLUSH)
    assert world.backend.calls.count("pread") == MAX_REQUESTS
    held.release()
    assert len(await client.receive_all()) == 3 * MAX_REQUESTS


async def test_client_that_does_not_read_takes_bounded_memory(remote_world: MakeWorld) -> None:
    async with remote_world(lanes=MIN_LANE_MEMORY) as world:
        world.memory.content[:] = os.urandom(SIZE)
        client, other = await world.go(), await world.go()
        client.pause_reading()
        sent = [client.send(READ, 0, MiB) for _ in range(300)]
        for _ in range(5):
            assert (await other.request(READ, 0, MiB)).error == 0
        client.resume_reading()
        results = await client.receive_all()
        assert len(results) == len(sent)
        assert all(result.data == world.memory.content[:MiB] for result in results.values())


async def test_memory_is_not_used_again_before_it_was_sent(world: World) -> None:
    """What a slow reader gets is of the range that it asked for, whatever others have read since."""
    client, other = await world.go(), await world.go()
    client.pause_reading()
    world.memory.content[:MiB] = b"a" * MiB
    world.memory.content[MiB:] = b"b" * (SIZE - MiB)
    asked = [client.send(READ, 0, MiB) for _ in range(8)]
    await world.until(lambda: world.backend.calls.count("pread") >= 8)
    for _ in range(16):
        assert (await other.request(READ, MiB, MiB)).data == b"b" * MiB
    client.resume_reading()
    results = await client.receive_all()
    assert all(results[cookie].data == b"a" * MiB for cookie in asked)


async def test_extents_above_the_limit_are_told_in_the_next_reply(world: World, chunked: Client) -> None:
    count = MAX_EXTENTS + 100  # of 32 bytes each, every second one a hole

    async def extents(_: object, offset: int, length: int, __: object) -> ExtentStream:
        for start in range(offset, offset + length, 32):
            yield ExtentList.of([Extent(start, 32, zero=bool(start // 32 % 2))], start)

    world.memory.extents = extents  # type: ignore[method-assign, assignment]
    told = (await chunked.request(STATUS, 0, count * 32)).extents
    assert told == [(32, 3 * (i % 2)) for i in range(MAX_EXTENTS)]
    rest = (await chunked.request(STATUS, MAX_EXTENTS * 32, 100 * 32)).extents
    assert len(told) + len(rest) == count
