# SPDX-License-Identifier: Apache-2.0
import asyncio
import errno
import os
import socket

import pytest

from imageio_daemon.errors import NotFast, NotFound, OutOfRange, StorageError, Unavailable
from imageio_daemon.extents import Extent, ExtentList, ExtentStream
from imageio_daemon.frontends.nbd.reads import HOLE, PIECE
from imageio_daemon.frontends.nbd.session import MAX_REQUESTS
from imageio_daemon.frontends.nbd.share import MAX_BYTES
from imageio_daemon.nbdproto.constants import MAX_EXTENTS, MAX_PAYLOAD, Chunk, Command, CommandFlag, ErrorNumber
from imageio_daemon.nbdproto.messages import RequestHeader
from imageio_daemon.tickets import Access
from tests.nbd.client import Client
from tests.nbd.world import SIZE, KiB, MiB, World

READ, WRITE, FLUSH, TRIM = Command.READ, Command.WRITE, Command.FLUSH, Command.TRIM
ZERO, CACHE, STATUS = Command.WRITE_ZEROES, Command.CACHE, Command.BLOCK_STATUS
FUA, DF = CommandFlag.FUA, CommandFlag.DF

# Reading and writing


@pytest.mark.parametrize("offset", [0, 4097, 70001])
@pytest.mark.parametrize("length", [1, 4096, 64 * KiB - 1, 64 * KiB, MiB, 2 * MiB + 17])
async def test_what_was_written_is_read(world: World, client: Client, offset: int, length: int) -> None:
    data = os.urandom(length)
    assert (await client.request(WRITE, offset, data=data)).error == 0
    assert world.memory.content[offset : offset + length] == data
    assert (await client.request(READ, offset, length)).data == data


async def test_largest_payload_is_written_and_read() -> None:
    async with World(size=MAX_PAYLOAD + 4096).running() as world:
        for options in ({"structured": True}, {"structured": False}):
            client = await world.go(**options)
            data = os.urandom(MAX_PAYLOAD)
            assert (await client.request(WRITE, 3, data=data)).error == 0
            assert (await client.request(READ, 3, MAX_PAYLOAD)).data == data


async def test_neighbours_of_a_write_are_kept(world: World, client: Client) -> None:
    world.memory.content[:] = b"x" * SIZE
    await client.request(WRITE, 4095, data=b"ab")
    assert world.memory.content[4094:4098] == b"xabx"
    assert world.memory.content.count(b"x") == SIZE - 2


async def test_requests_that_arrive_byte_by_byte_are_understood(world: World, client: Client) -> None:
    # Two writes and a read, of which every second byte waits for the server to have taken the one before.
    extended = client.extended
    flags = CommandFlag.PAYLOAD_LEN if extended else 0
    stream = b"".join(
        [
            RequestHeader(WRITE, flags, 1, 5, 3).pack(extended=extended) + b"abc",
            RequestHeader(WRITE, flags, 2, 8, 2).pack(extended=extended) + b"de",
        ]
    )
    for i in range(len(stream)):
        client.writer.write(stream[i : i + 1])
        await client.writer.drain()
        await asyncio.sleep(0)
    await world.until(lambda: world.memory.content[5:10] == b"abcde")


async def test_requests_that_arrive_together_are_all_answered(world: World, client: Client) -> None:
    cookies = [client.send(WRITE, i * 5000, data=bytes([i]) * 5000) for i in range(50)]
    results = await client.receive_all()
    assert sorted(results) == sorted(cookies)
    assert not any(result.error for result in results.values())
    assert all(world.memory.content[i * 5000 : (i + 1) * 5000] == bytes([i]) * 5000 for i in range(50))


@pytest.mark.parametrize("cookie", [1, 0x0123456789ABCDEF, 2**64 - 1])
async def test_cookie_is_echoed_and_may_be_used_again(client: Client, cookie: int) -> None:
    for _ in range(2):
        client.send(READ, 0, 512, cookie=cookie)
        assert (await client.receive())[0] == cookie


async def test_cookie_zero_is_echoed(client: Client) -> None:
    client.writer.write(RequestHeader(FLUSH, 0, 0, 0, 0).pack(extended=client.extended))
    head = await client.read(16)
    assert head[8:16] == bytes(8)


@pytest.mark.parametrize("command", [READ, WRITE, TRIM, ZERO, CACHE])
async def test_empty_range_is_no_error(client: Client, command: Command) -> None:
    assert (await client.request(command, 512, 0)).error == 0
    assert (await client.request(READ, 0, 512)).error == 0


async def test_zeros_are_sent_as_holes(world: World, chunked: Client) -> None:
    world.memory.content[2 * HOLE : 2 * HOLE + 5] = b"hello"
    result = await chunked.request(READ, 0, 5 * HOLE + 9)
    assert result.holes == [(0, 2 * HOLE), (3 * HOLE, 2 * HOLE)]
    assert result.data == world.memory.content[: 5 * HOLE + 9]


async def test_short_zeros_are_sent_as_data(chunked: Client) -> None:
    result = await chunked.request(READ, 0, HOLE - 1)
    assert (result.holes, result.chunks) == ([], [Chunk.OFFSET_DATA])


@pytest.mark.parametrize("length", [64 * KiB, 3 * MiB])
async def test_dont_fragment_gives_one_chunk_of_data(world: World, chunked: Client, length: int) -> None:
    world.memory.content[100:103] = b"abc"
    result = await chunked.request(READ, 0, length, DF)
    assert result.chunks == [Chunk.OFFSET_DATA]
    assert result.data == world.memory.content[:length]


async def test_long_read_comes_in_pieces(world: World, chunked: Client) -> None:
    world.memory.content[:] = os.urandom(SIZE)
    result = await chunked.request(READ, 100, 3 * PIECE)
    assert result.data == world.memory.content[100 : 100 + 3 * PIECE]
    assert result.chunks.count(Chunk.OFFSET_DATA) == 3


async def test_export_larger_than_its_file_reads_zeros_at_the_end(world: World) -> None:
    world.memory.content[:] = b"x" * SIZE
    world.add("large", size=2 * SIZE)
    client = await world.go("large")
    assert client.export.size == 2 * SIZE
    assert (await client.request(READ, SIZE - 2, 4)).data == b"xx\0\0"
    assert (await client.request(READ, 2 * SIZE - 4, 4)).data == bytes(4)
    assert (await client.request(WRITE, SIZE + 2, data=b"new")).error == 0
    assert (await client.request(READ, SIZE - 2, 8)).data == b"xx\0\0new\0"


async def test_read_only_export_is_as_large_as_its_image(world: World) -> None:
    world.add("large", size=2 * SIZE, ops=(Access.READ,))
    client = await world.go("large")
    assert client.export.size == SIZE


# Zeroing, trimming, flushing


@pytest.mark.parametrize(("offset", "length"), [(0, 4096), (1, 4095), (4097, 3), (0, SIZE), (SIZE - 1, 1)])
async def test_zeroed_range_reads_as_zeros(world: World, client: Client, offset: int, length: int) -> None:
    world.memory.content[:] = b"x" * SIZE
    assert (await client.request(ZERO, offset, length)).error == 0
    assert world.memory.content == b"x" * offset + bytes(length) + b"x" * (SIZE - offset - length)


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


async def test_trim_and_cache_succeed(client: Client) -> None:
    assert (await client.request(TRIM, 0, SIZE)).error == 0
    assert (await client.request(CACHE, 0, SIZE)).error == 0


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
    assert asked == [{"allocate": no_hole or not sparse, "fast_only": fast}]


async def test_zero_that_would_not_be_fast_is_not_supported(world: World, client: Client) -> None:
    world.backend.fail("zero", NotFast("no way"))
    assert (await client.request(ZERO, 0, 4096, CommandFlag.FAST_ZERO)).error == ErrorNumber.ENOTSUP


# Errors


async def test_refused_write_consumes_its_payload(world: World, client: Client) -> None:
    for length in (10, 70000, MiB):
        result = await client.request(WRITE, SIZE - 1, data=b"x" * length)
        assert result.error == ErrorNumber.ENOSPC
        assert (await client.request(WRITE, 0, data=b"x" * length, flags=0x80)).error == ErrorNumber.EINVAL
    assert world.memory.content == bytes(SIZE)
    assert (await client.request(READ, 0, 512)).data == bytes(512)


async def test_write_longer_than_the_largest_payload_is_drained(client: Client) -> None:
    assert (await client.request(WRITE, 0, data=bytes(MAX_PAYLOAD + 1))).error == ErrorNumber.ENOSPC
    assert (await client.request(READ, 0, 1)).error == 0


async def test_write_much_longer_is_answered_and_ends_the_connection(client: Client) -> None:
    result = await client.request(WRITE, 0, 2**31)
    assert result.error
    assert await client.at_end()


@pytest.mark.parametrize("magic", [0x12560953, 0x96744668, 0x25609514, 0x67446698, 0xDEADBEEF])
async def test_wrong_magic_ends_the_connection(client: Client, magic: int) -> None:
    client.writer.write(magic.to_bytes(4) + bytes(28))
    assert await client.at_end()


async def test_unknown_command_is_invalid_and_the_next_one_served(client: Client) -> None:
    for command in (8, 77, 65535):
        assert (await client.request(command, 0, 512)).error == ErrorNumber.EINVAL
    assert (await client.request(READ, 0, 512)).error == 0


@pytest.mark.parametrize("command", [WRITE, TRIM, ZERO])
async def test_read_only_ticket_permits_no_changes(world: World, command: Command) -> None:
    world.add("ro", ops=(Access.READ,))
    client = await world.go("ro")
    assert client.export.flags & 0x0862 == 0x0002
    result = await client.request(command, 0, 512, data=bytes(512) if command == WRITE else b"")
    assert result.error == ErrorNumber.EPERM
    assert (await client.request(FLUSH)).error == 0


async def test_error_has_a_text_only_in_chunks(world: World, client: Client) -> None:
    result = await client.request(READ, SIZE, 1)
    assert result.error == ErrorNumber.EINVAL
    assert bool(result.text) == (client.structured or client.extended)


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


async def test_storage_failing_in_a_long_write_is_told_once(world: World) -> None:
    async with World(piece=64 * KiB).running() as small:
        client = await small.go()
        small.backend.fail("pwrite", StorageError(28, "write", "pwrite"))
        assert (await client.request(WRITE, 10, data=bytes(MiB))).error == ErrorNumber.ENOSPC
        assert (await client.request(FLUSH)).error == 0


async def test_unavailable_storage_ends_the_connection(world: World, client: Client) -> None:
    world.backend.fail("flush", Unavailable("stopping"))
    assert (await client.request(FLUSH)).error == ErrorNumber.ESHUTDOWN
    assert await client.at_end()


# Block status


@pytest.mark.parametrize(("offset", "length"), [(0, SIZE), (3, 5), (SIZE - 1, 1)])
@pytest.mark.parametrize("flags", [0, CommandFlag.REQ_ONE])
async def test_status_covers_the_range(chunked: Client, offset: int, length: int, flags: int) -> None:
    result = await chunked.request(STATUS, offset, length, flags)
    assert result.extents == [(length, 0)]


async def test_status_that_was_not_asked_for_is_invalid(world: World) -> None:
    for options in ({"structured": False}, {"structured": True, "allocation": False}):
        client = await world.go(**options)
        assert (await client.request(STATUS, 0, 512)).error == ErrorNumber.EINVAL


@pytest.mark.parametrize(("offset", "length"), [(0, 0), (SIZE, 1), (SIZE - 1, 2), (2**64 - 1, 1)])
async def test_status_outside_of_the_export_is_invalid(chunked: Client, offset: int, length: int) -> None:
    assert (await chunked.request(STATUS, offset, length)).error == ErrorNumber.EINVAL


async def test_image_without_extents_is_all_data(world: World, chunked: Client) -> None:
    async def extents(*_: object) -> ExtentStream:
        raise NotFound("no such information")
        yield

    world.memory.extents = extents  # type: ignore[method-assign, assignment]
    assert (await chunked.request(STATUS, 0, SIZE)).extents == [(SIZE, 0)]


async def test_status_past_the_image_is_a_hole(world: World) -> None:
    world.add("large", size=2 * SIZE)
    client = await world.go("large")
    assert (await client.request(STATUS, 0, 2 * SIZE)).extents == [(SIZE, 0), (SIZE, 3)]
    assert (await client.request(STATUS, SIZE + 5, 10)).extents == [(10, 3)]


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


async def test_a_thousand_pipelined_requests_are_answered(world: World, client: Client) -> None:
    for i in range(1000):
        client.send(READ, i * 4000, 4000)
    results = await client.receive_all()
    assert len(results) == 1000
    assert not any(result.error for result in results.values())


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


async def test_client_that_does_not_read_takes_bounded_memory(world: World) -> None:
    client = await world.go()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    world.memory.content[:] = os.urandom(SIZE)
    sent = [client.send(READ, 0, MiB) for _ in range(300)]
    await world.until(lambda: world.backend.calls.count("pread") >= MAX_BYTES // MiB)
    other = await world.go()
    for _ in range(5):
        await other.request(READ, 0, 4096)
    assert world.pool.lent <= MAX_BYTES + MiB
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    results = await client.receive_all()
    assert len(results) == len(sent)
    assert all(result.data == world.memory.content[:MiB] for result in results.values())


async def test_writes_and_reads_at_once_do_not_block_each_other(world: World, client: Client) -> None:
    for i in range(20):
        client.send(READ, 0, MiB)
        client.send(WRITE, MiB, data=bytes([i]) * MiB)
    results = await client.receive_all()
    assert len(results) == 40
    assert not any(result.error for result in results.values())


@pytest.mark.parametrize("pool", [256 * KiB, MiB])
async def test_little_memory_is_enough(pool: int) -> None:
    async with World(pool=pool, piece=64 * KiB).running() as world:
        data = os.urandom(SIZE)
        client = await world.go()
        other = await world.go()
        for start in range(0, SIZE, 100000):
            client.send(WRITE, start, data=data[start : start + 100000])
        for result in (await client.receive_all()).values():
            assert result.error == 0
        for start in range(0, SIZE, 50000):
            other.send(READ, start, min(50000, SIZE - start))
        results = await other.receive_all()
        assert b"".join(results[cookie].data for cookie in sorted(results)) == data


async def test_read_that_no_memory_holds_is_refused(world: World) -> None:
    async with World(pool=MiB, piece=64 * KiB).running() as small:
        client = await small.go(structured=False)
        assert (await client.request(READ, 0, 2 * MiB)).error == ErrorNumber.EOVERFLOW
        assert (await client.request(READ, 0, 512)).error == 0


async def test_buffers_are_not_used_again_before_they_are_sent(world: World) -> None:
    """A slow reader gets what was read, although the image and the buffers changed since."""
    client = await world.go()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    world.memory.content[:] = b"a" * SIZE
    first = [client.send(READ, 0, MiB) for _ in range(8)]
    await world.until(lambda: world.backend.calls.count("pread") == 8)
    other = await world.go()
    world.memory.content[:] = b"b" * SIZE
    for _ in range(16):
        assert (await other.request(READ, 0, MiB)).data == b"b" * MiB
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    results = await client.receive_all()
    assert all(results[cookie].data == b"a" * MiB for cookie in first)


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


async def test_write_longer_than_the_largest_payload_is_invalid_and_drained() -> None:
    async with World(size=MAX_PAYLOAD + MiB).running() as world:
        client = await world.go()
        assert (await client.request(WRITE, 0, data=b"x" * (MAX_PAYLOAD + 1))).error == ErrorNumber.EINVAL
        assert (await client.request(READ, 0, 1)).data == b"\0"


async def test_large_writes_pass_while_large_replies_wait_in_small_sockets(world: World) -> None:
    with socket.socket(socket.AF_INET) as listening:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            listening.setsockopt(socket.SOL_SOCKET, option, 4096)  # connections inherit them
        listening.bind(("127.0.0.1", 0))
        server = await asyncio.get_running_loop().create_server(world.server.connection, sock=listening.dup())
        client = await Client.connect(("127.0.0.1", listening.getsockname()[1]))
        world.clients.append(client)
        await client.go("disk")
        world.memory.content[:] = b"x" * SIZE
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for i in range(4):
            client.send(READ, i * MiB // 2, MiB // 2)
        for i in range(8):
            client.send(WRITE, 2 * MiB + i * MiB // 4, data=bytes([i]) * (MiB // 4))
        # Nobody reads a reply before all is sent: the server has to take it.
        await world.until(lambda: world.memory.content[-1] == 7)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        results = await client.receive_all()
        assert len(results) == 12
        assert not any(result.error for result in results.values())
        server.close()
