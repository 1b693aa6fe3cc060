# SPDX-License-Identifier: Apache-2.0
"""Lanes on storage that only copies: long requests are done in small parts, a write once it is whole."""

import asyncio
import errno
import fcntl
import os
import termios
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from imageio_daemon.lanes.shared import MIN_LANE_MEMORY
from imageio_daemon.nbdproto.constants import Command, CommandFlag, ErrorNumber
from imageio_daemon.nbdproto.messages import RequestHeader
from tests.frontends.nbd.calls import Calls
from tests.frontends.nbd.client import FORMS, Client
from tests.frontends.nbd.conftest import MakeWorld
from tests.frontends.nbd.world import KiB, MiB, World
from tests.ioutil.syscall_table import real_fdatasync, real_pread, real_pwrite, replaced
from tests.support.images import pattern
from tests.support.polling import SOON

READ, WRITE, FLUSH = Command.READ, Command.WRITE, Command.FLUSH
CONTENT = pattern(4 * MiB)
#: What is read at once, at most.
QUICK_READ = 128 * KiB
#: What is written at once, at most.
QUICK_WRITE = 64 * KiB


@pytest.fixture
async def world(lane_world: MakeWorld, quick_directory: Path) -> AsyncIterator[World]:
    async with lane_world(directory=quick_directory, size=len(CONTENT)) as running:
        running.put(CONTENT)
        yield running


@pytest.fixture(params=FORMS)
async def client(request: pytest.FixtureRequest, world: World) -> Client:
    return await world.go(**FORMS[request.param])


class Parts:
    """The parts of writes: `lengths`. The second one begins (`begun`), and waits until it may `go_on`."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.begun = False
        self.go_on = threading.Event()

    def pwrite(self, fd: int, buffer: memoryview, offset: int) -> int:
        self.lengths.append(len(buffer))
        if len(self.lengths) == 2:
            self.begun = True
            assert self.go_on.wait(SOON), "the test does not let it go on"
        return real_pwrite(fd, buffer, offset)


@contextmanager
def parts_of_writes() -> Iterator[Parts]:
    parts = Parts()
    with replaced(pwrite=parts.pwrite):
        try:
            yield parts
        finally:
            parts.go_on.set()


def _unread(fd: int) -> int:
    """Return the bytes of memory of what the server has not taken from the socket."""
    return int.from_bytes(fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)), "little")


@pytest.mark.parametrize("offset", [0, 512, 4095])
async def test_read_that_may_be_cut_is_in_small_pieces(client: Client, offset: int) -> None:
    lengths = []

    def pread(fd: int, buffer: memoryview, offset: int) -> int:
        lengths.append(len(buffer))
        return real_pread(fd, buffer, offset)

    with replaced(pread=pread):
        result = await client.request(READ, offset, MiB)
    assert result.data == CONTENT[offset : offset + MiB]
    assert (max(lengths) <= QUICK_READ) == (client.structured or client.extended)


async def test_read_that_may_not_be_cut_is_whole(world: World) -> None:
    client = await world.go()
    result = await client.request(READ, 0, MiB, CommandFlag.DF)
    assert result.data == CONTENT[:MiB]
    assert len(result.chunks) == 1


async def test_write_whose_client_dies_in_the_middle_changes_nothing(world: World, client: Client) -> None:
    client.send(WRITE, 0, MiB)
    client.writer.write(bytes(MiB - 1))
    await client.writer.drain()
    client.reset()
    await world.rest()
    assert world.content == CONTENT


async def test_read_overtakes_a_writer_that_hangs(world: World, client: Client) -> None:
    calls = Calls()
    with replaced(pwrite=calls.table()["pwrite"]):
        held = calls.hold("pwrite")
        try:
            slow = client.send(WRITE, 0, data=CONTENT[:MiB])
            await world.until(lambda: held.full)
            fast = client.send(READ, 2 * MiB, 4096)
            assert (await client.receive())[0] == fast
        finally:
            held.release()
        assert (await client.receive())[0] == slow


async def calls_of(client: Client, offset: int, data: bytes, flags: int = 0) -> list[tuple[str, int]]:
    """Write, and return the system calls and their lengths."""
    calls: list[tuple[str, int]] = []

    def pwrite(fd: int, buffer: memoryview, offset: int) -> int:
        calls.append(("pwrite", len(buffer)))
        return real_pwrite(fd, buffer, offset)

    def fdatasync(fd: int) -> None:
        calls.append(("fdatasync", 0))
        real_fdatasync(fd)

    with replaced(pwrite=pwrite, fdatasync=fdatasync):
        assert (await client.request(WRITE, offset, flags=flags, data=data)).error == 0
    return calls


@pytest.mark.parametrize("offset", [0, 512, 100])
async def test_long_write_is_done_in_small_parts(world: World, client: Client, offset: int) -> None:
    data = CONTENT[::-1][: 200 * KiB]
    lengths = [length for _, length in await calls_of(client, offset, data)]
    assert len(lengths) >= 4
    assert max(lengths) <= QUICK_WRITE
    assert world.content == CONTENT[:offset] + data + CONTENT[offset + len(data) :]


async def test_parts_end_at_pages(world: World, client: Client) -> None:
    offsets = []

    def pwrite(fd: int, buffer: memoryview, offset: int) -> int:
        offsets.append(offset)
        return real_pwrite(fd, buffer, offset)

    with replaced(pwrite=pwrite):
        assert (await client.request(WRITE, 8192 + 512, data=bytes(200 * KiB))).error == 0
    assert [offset for offset in offsets[1:] if offset % 4096] == []


async def test_flush_of_a_write_in_parts_comes_after_the_last(client: Client) -> None:
    calls = await calls_of(client, 0, bytes(256 * KiB), CommandFlag.FUA)
    assert [name for name, _ in calls] == ["pwrite"] * 4 + ["fdatasync"]


@pytest.mark.parametrize("flags", [0, CommandFlag.FUA])
async def test_next_writes_are_received_while_one_is_done(world: World, client: Client, flags: int) -> None:
    data = CONTENT[::-1]
    offsets = range(0, len(data), 256 * KiB)
    for offset in offsets:
        client.send(WRITE, offset, flags=flags, data=data[offset : offset + 256 * KiB])
    results = await client.receive_all()
    assert [result.error for result in results.values()] == [0] * len(offsets)
    assert world.content == data


@pytest.mark.parametrize("cut", [0, 1, 27, 28, 32, 4096])
async def test_what_follows_is_taken_before_a_write_has_ended(world: World, client: Client, cut: int) -> None:
    """Also if a part of it comes later."""
    fd = client.writer.get_extra_info("socket").fileno()
    follows = client.begin(WRITE, MiB, 64 * KiB, 0, 1) + bytes(64 * KiB)
    parts = iter((b"", follows[:cut], follows[cut:]))
    taken: list[bool] = []

    def pwrite(to: int, buffer: memoryview, offset: int) -> int:
        deadline = time.monotonic() + (10 if len(taken) < 4 else 0)  # of interest are the first four
        while _unread(fd) and time.monotonic() < deadline:
            time.sleep(0.001)
        taken.append(_unread(fd) == 0)
        os.write(fd, next(parts, b""))
        return real_pwrite(to, buffer, offset)

    with replaced(pwrite=pwrite):
        client.send(WRITE, 0, data=bytes(256 * KiB))
        assert not any(result.error for result in (await client.receive_all()).values())
    assert taken[:4] == [True] * 4
    assert world.content == bytes(256 * KiB) + CONTENT[256 * KiB : MiB] + bytes(64 * KiB) + CONTENT[MiB + 64 * KiB :]


async def test_next_write_whose_client_dies_in_the_middle_changes_nothing(world: World, client: Client) -> None:
    with parts_of_writes() as parts:
        client.send(WRITE, 0, data=bytes(256 * KiB))
        await world.until(lambda: parts.begun)
        client.send(WRITE, MiB, MiB)
        client.writer.write(bytes(100 * KiB))
        await client.writer.drain()
        client.reset()
        parts.go_on.set()
        await world.rest()
    assert world.content[MiB:] == CONTENT[MiB:]


async def test_requests_overtake_a_writer_that_hangs_between_parts(world: World, client: Client) -> None:
    with parts_of_writes() as parts:
        slow = client.send(WRITE, 0, data=bytes(MiB))
        next_one = client.send(WRITE, MiB, MiB)
        client.writer.write(bytes(MiB // 2))
        await world.until(lambda: parts.begun)
        client.writer.write(bytes(MiB // 2))
        assert (await client.receive())[0] == next_one
        fast = client.send(READ, 2 * MiB, 4096)
        assert (await client.receive())[0] == fast
        parts.go_on.set()
        assert (await client.receive())[0] == slow
    assert world.content == bytes(2 * MiB) + CONTENT[2 * MiB :]


def _garbage(client: Client) -> None:
    client.writer.write(b"\xff" * 64)


def _goodbye(client: Client) -> None:
    client.writer.write(RequestHeader(Command.DISC, 0, 1, 0, 0).pack(extended=client.extended))


@pytest.mark.parametrize("follow", [_garbage, _goodbye])
async def test_write_before_the_end_is_whole(world: World, client: Client, follow: Callable[[Client], None]) -> None:
    with parts_of_writes() as parts:
        client.send(WRITE, 0, data=bytes(MiB))
        follow(client)
        await world.until(lambda: parts.begun)
        parts.go_on.set()
        await world.rest()
    assert world.content == bytes(MiB) + CONTENT[MiB:]


async def test_connection_that_breaks_leaves_whole_parts(world: World, client: Client) -> None:
    client.pause_reading()
    client.send(READ, 0, 4096)  # a reply that nobody reads makes the end an error for the server
    with parts_of_writes() as parts:
        client.send(WRITE, 0, data=bytes(MiB))
        await world.until(lambda: parts.begun)
        client.reset()
        await client.close()
        parts.go_on.set()
        await world.rest()
    done = sum(parts.lengths)
    assert world.content == bytes(done) + CONTENT[done:]


async def test_removed_ticket_ends_what_was_received_ahead(world: World, client: Client) -> None:
    with parts_of_writes() as parts:
        client.send(WRITE, 0, data=bytes(MiB))
        client.send(WRITE, MiB, MiB)
        client.writer.write(bytes(MiB // 2))
        await world.until(lambda: parts.begun)
        removing = asyncio.create_task(world.store.remove("disk", 10))
        await world.until(lambda: world.disk.permission.canceled)
        parts.go_on.set()
        await removing
        await world.rest()
    assert world.content[MiB:] == CONTENT[MiB:]


async def test_write_that_fails_in_a_later_part_is_an_error_but_not_of_the_next(world: World, client: Client) -> None:
    calls = Calls()
    with replaced(pwrite=calls.table()["pwrite"]):
        calls.fail("pwrite", errno.EIO, after=2)
        failed = client.send(WRITE, 0, data=bytes(MiB))
        await world.until(lambda: calls.failed)
        calls.mend()
        done = client.send(WRITE, MiB, data=bytes(MiB))
        results = await client.receive_all()
    assert (results[failed].error, results[done].error) == (ErrorNumber.EIO, 0)
    assert world.content[MiB : 2 * MiB] == bytes(MiB)


async def test_memory_of_what_was_received_ahead_is_given_back(lane_world: MakeWorld, quick_directory: Path) -> None:
    async with lane_world(directory=quick_directory, size=len(CONTENT), lanes=MIN_LANE_MEMORY) as world:
        for _ in range(2 * MIN_LANE_MEMORY // (2 * MiB)):
            client = await world.go()
            client.send(WRITE, 0, data=CONTENT[: 2 * MiB])
            client.send(WRITE, 0, 2 * MiB)
            client.writer.write(CONTENT[:MiB])
            await client.writer.drain()
            client.reset()
            await world.rest()
        client = await world.go()
        assert (await client.request(WRITE, 0, data=CONTENT)).error == 0
        assert world.content == CONTENT


async def test_many_connections_share_little_memory(lane_world: MakeWorld, quick_directory: Path) -> None:
    async with lane_world(directory=quick_directory, size=len(CONTENT), lanes=MIN_LANE_MEMORY) as world:
        clients = [await world.go() for _ in range(8)]
        piece = len(CONTENT) // len(clients)

        async def fill(i: int, client: Client) -> None:
            for _ in range(16):
                client.send(WRITE, i * piece, data=bytes([i]) * piece)
            assert not any(result.error for result in (await client.receive_all()).values())

        await asyncio.gather(*(fill(i, client) for i, client in enumerate(clients)))
        assert world.content == b"".join(bytes([i]) * piece for i in range(len(clients)))
