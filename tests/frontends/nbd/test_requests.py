# SPDX-License-Identifier: Apache-2.0
"""Requests on an image that does what it is asked."""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from imageio_daemon.lanes.shared import MIN_LANE_MEMORY
from imageio_daemon.nbdproto.constants import MAX_PAYLOAD, Chunk, Command, CommandFlag, ErrorNumber
from imageio_daemon.nbdproto.messages import RequestHeader
from imageio_daemon.transfers.ticket import Access
from tests.frontends.nbd.client import Client
from tests.frontends.nbd.conftest import MakeWorld
from tests.frontends.nbd.world import SIZE, KiB, MiB, World

READ, WRITE, FLUSH, TRIM = Command.READ, Command.WRITE, Command.FLUSH, Command.TRIM
ZERO, CACHE, STATUS = Command.WRITE_ZEROES, Command.CACHE, Command.BLOCK_STATUS
DF = CommandFlag.DF
#: Zeros of so many bytes are told as a hole.
HOLE = 64 * KiB


@pytest.fixture
async def world(make_world: MakeWorld) -> AsyncIterator[World]:
    async with make_world() as running:
        yield running


@pytest.mark.parametrize("offset", [0, 4097, 70001])
@pytest.mark.parametrize("length", [1, 4096, 64 * KiB - 1, 64 * KiB, MiB, 2 * MiB + 17])
async def test_what_was_written_is_read(world: World, client: Client, offset: int, length: int) -> None:
    data = os.urandom(length)
    assert (await client.request(WRITE, offset, data=data)).error == 0
    assert world.content[offset : offset + length] == data
    assert (await client.request(READ, offset, length)).data == data


async def test_largest_payload_is_written_and_read(make_world: MakeWorld) -> None:
    async with make_world(size=MAX_PAYLOAD + 4096) as world:
        for options in ({"structured": True}, {"structured": False}):
            client = await world.go(**options)
            data = os.urandom(MAX_PAYLOAD)
            assert (await client.request(WRITE, 3, data=data)).error == 0
            assert (await client.request(READ, 3, MAX_PAYLOAD)).data == data


async def test_neighbours_of_a_write_are_kept(world: World, client: Client) -> None:
    world.put(b"x" * SIZE)
    await client.request(WRITE, 4095, data=b"ab")
    assert world.content[4094:4098] == b"xabx"
    assert world.content.count(b"x") == SIZE - 2


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
    await world.until(lambda: world.content[5:10] == b"abcde")


async def test_requests_that_arrive_together_are_all_answered(world: World, client: Client) -> None:
    cookies = [client.send(WRITE, i * 5000, data=bytes([i]) * 5000) for i in range(50)]
    results = await client.receive_all()
    assert sorted(results) == sorted(cookies)
    assert not any(result.error for result in results.values())
    assert all(world.content[i * 5000 : (i + 1) * 5000] == bytes([i]) * 5000 for i in range(50))


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
    world.put(b"hello", 2 * HOLE)
    result = await chunked.request(READ, 0, 5 * HOLE + 9)
    assert result.holes == [(0, 2 * HOLE), (3 * HOLE, 2 * HOLE)]
    assert result.data == world.content[: 5 * HOLE + 9]


async def test_short_zeros_are_sent_as_data(chunked: Client) -> None:
    result = await chunked.request(READ, 0, HOLE - 1)
    assert (result.holes, result.chunks) == ([], [Chunk.OFFSET_DATA])


@pytest.mark.parametrize("length", [64 * KiB, 3 * MiB])
async def test_dont_fragment_gives_one_chunk_of_data(world: World, chunked: Client, length: int) -> None:
    world.put(b"abc", 100)
    result = await chunked.request(READ, 0, length, DF)
    assert result.chunks == [Chunk.OFFSET_DATA]
    assert result.data == world.content[:length]


async def test_export_larger_than_its_file_reads_zeros_at_the_end(file_world: MakeWorld) -> None:
    async with file_world() as world:
        world.put(b"x" * SIZE)
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


@pytest.mark.parametrize(("offset", "length"), [(0, 4096), (1, 4095), (4097, 3), (0, SIZE), (SIZE - 1, 1)])
async def test_zeroed_range_reads_as_zeros(world: World, client: Client, offset: int, length: int) -> None:
    world.put(b"x" * SIZE)
    assert (await client.request(ZERO, offset, length)).error == 0
    assert world.content == b"x" * offset + bytes(length) + b"x" * (SIZE - offset - length)


async def test_trim_and_cache_succeed(client: Client) -> None:
    assert (await client.request(TRIM, 0, SIZE)).error == 0
    assert (await client.request(CACHE, 0, SIZE)).error == 0


async def test_refused_write_consumes_its_payload(world: World, client: Client) -> None:
    for length in (10, 70000, MiB):
        result = await client.request(WRITE, SIZE - 1, data=b"x" * length)
        assert result.error == ErrorNumber.ENOSPC
        assert (await client.request(WRITE, 0, data=b"x" * length, flags=0x80)).error == ErrorNumber.EINVAL
    assert world.content == bytes(SIZE)
    assert (await client.request(READ, 0, 512)).data == bytes(512)


async def test_write_longer_than_the_largest_payload_is_drained(client: Client) -> None:
    assert (await client.request(WRITE, 0, data=bytes(MAX_PAYLOAD + 1))).error == ErrorNumber.ENOSPC
    assert (await client.request(READ, 0, 1)).error == 0


async def test_write_longer_than_the_largest_payload_is_invalid_and_drained(make_world: MakeWorld) -> None:
    async with make_world(size=MAX_PAYLOAD + MiB) as world:
        client = await world.go()
        assert (await client.request(WRITE, 0, data=b"x" * (MAX_PAYLOAD + 1))).error == ErrorNumber.EINVAL
        assert (await client.request(READ, 0, 1)).data == b"\0"


async def test_write_much_longer_is_answered_and_ends_the_connection(client: Client) -> None:
    result = await client.request(WRITE, 0, 2**31)
    assert result.error
    assert await client.at_end()


async def test_payload_that_is_not_read_is_not_taken_for_requests(world: World, client: Client) -> None:
    flags = CommandFlag.PAYLOAD_LEN if client.extended else 0
    headers = [RequestHeader(WRITE, flags, cookie, 0, 512).pack(extended=client.extended) for cookie in range(1, 9)]
    client.send(WRITE, 0, 2**31, data=b"".join(header + b"x" * 512 for header in headers))
    assert (await client.receive())[1].error
    assert await client.at_end()
    await world.rest()
    assert world.content == bytes(SIZE)


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


@pytest.mark.parametrize(("offset", "length"), [(0, SIZE), (3, 5), (SIZE - 1, 1)])
@pytest.mark.parametrize("flags", [0, CommandFlag.REQ_ONE])
async def test_status_covers_the_range(world: World, chunked: Client, offset: int, length: int, flags: int) -> None:
    world.put(b"x" * SIZE)
    result = await chunked.request(STATUS, offset, length, flags)
    assert result.extents == [(length, 0)]


async def test_status_that_was_not_asked_for_is_invalid(world: World) -> None:
    for options in ({"structured": False}, {"structured": True, "allocation": False}):
        client = await world.go(**options)
        assert (await client.request(STATUS, 0, 512)).error == ErrorNumber.EINVAL


@pytest.mark.parametrize(("offset", "length"), [(0, 0), (SIZE, 1), (SIZE - 1, 2), (2**64 - 1, 1)])
async def test_status_outside_of_the_export_is_invalid(chunked: Client, offset: int, length: int) -> None:
    assert (await chunked.request(STATUS, offset, length)).error == ErrorNumber.EINVAL


async def test_status_past_the_image_is_a_hole(file_world: MakeWorld) -> None:
    async with file_world() as world:
        world.put(b"x" * SIZE)
        world.add("large", size=2 * SIZE)
        client = await world.go("large")
        assert (await client.request(STATUS, 0, 2 * SIZE)).extents == [(SIZE, 0), (SIZE, 3)]
        assert (await client.request(STATUS, SIZE + 5, 10)).extents == [(10, 3)]


async def test_a_thousand_pipelined_requests_are_answered(world: World, client: Client) -> None:
    for i in range(1000):
        client.send(READ, i * 4000, 4000)
    results = await client.receive_all()
    assert len(results) == 1000
    assert not any(result.error for result in results.values())


async def test_writes_and_reads_at_once_do_not_block_each_other(world: World, client: Client) -> None:
    for i in range(20):
        client.send(READ, 0, MiB)
        client.send(WRITE, MiB, data=bytes([i]) * MiB)
    results = await client.receive_all()
    assert len(results) == 40
    assert not any(result.error for result in results.values())


async def test_little_memory_is_enough(make_world: MakeWorld) -> None:
    async with make_world(lanes=MIN_LANE_MEMORY) as world:
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


async def test_read_that_no_memory_holds_is_refused(make_world: MakeWorld) -> None:
    async with make_world(lanes=MIN_LANE_MEMORY, size=16 * MiB) as small:
        client = await small.go(structured=False)
        assert (await client.request(READ, 0, 10 * MiB)).error == ErrorNumber.EOVERFLOW
        assert (await client.request(READ, 0, 512)).error == 0


async def test_large_writes_pass_while_large_replies_wait_in_small_sockets(world: World) -> None:
    with socket.socket(socket.AF_INET) as listening:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            listening.setsockopt(socket.SOL_SOCKET, option, 4096)  # connections inherit them
        listening.bind(("127.0.0.1", 0))
        server = await asyncio.get_running_loop().create_server(world.server.connection, sock=listening.dup())
        client = await Client.connect(("127.0.0.1", listening.getsockname()[1]))
        world.clients.append(client)
        await client.go("disk")
        world.put(b"x" * SIZE)
        client.pause_reading()
        for i in range(4):
            client.send(READ, i * MiB // 2, MiB // 2)
        for i in range(8):
            client.send(WRITE, 2 * MiB + i * MiB // 4, data=bytes([i]) * (MiB // 4))
        # Nobody reads a reply before all is sent: the server has to take it.
        await world.until(lambda: world.content[-1] == 7)
        client.resume_reading()
        results = await client.receive_all()
        assert len(results) == 12
        assert not any(result.error for result in results.values())
        server.close()


async def test_image_that_looks_like_qcow2_is_served_as_it_is(world: World, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"not for guests")
    # A header that a guest may write: version 2, a backing file, 1 GiB.
    header = struct.pack(">4sIQIIQ", b"QFI\xfb", 2, 512, len(str(secret)), 16, 1 << 30)
    image = tmp_path / "image"
    image.write_bytes(header.ljust(512, b"\0") + str(secret).encode().ljust(MiB - 512, b"\0"))
    world.add("guest", size=MiB, path=image)
    client = await world.go("guest")
    assert client.export.size == MiB
    assert (await client.request(READ, 0, MiB)).data == image.read_bytes()
