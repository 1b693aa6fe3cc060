# SPDX-License-Identifier: Apache-2.0
"""Lanes on an image that an NBD server has: what fails, what is cancelled, and what is waited for."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest

from imageio_daemon.nbdproto.constants import Chunk, Command, CommandFlag, ErrorNumber
from imageio_daemon.storage.nbd.backend import NbdBackend
from imageio_daemon.storage.operation import Operation
from tests.frontends.nbd.conftest import MakeWorld
from tests.frontends.nbd.world import SIZE, KiB, MiB, World
from tests.support.changes import pwrite
from tests.support.fakenbd import Asked, FakeNbd
from tests.support.images import pattern
from tests.support.nbd_payloads import pack_extents

READ, WRITE, FLUSH = Command.READ, Command.WRITE, Command.FLUSH
TRIM, ZERO = Command.TRIM, Command.WRITE_ZEROES
FAILED = "the server failed to perform the operation"


@pytest.fixture
async def world(remote_world: MakeWorld) -> AsyncIterator[World]:
    async with remote_world() as running:
        yield running


async def test_export_of_an_image_that_cannot_grow_is_as_large_as_the_image(world: World) -> None:
    world.add("large", size=2 * SIZE)
    client = await world.go("large")
    assert client.export.size == SIZE
    assert (await client.request(WRITE, SIZE, data=b"x")).error == ErrorNumber.ENOSPC


# Failures


@pytest.mark.parametrize(
    ("refusal", "command", "told", "text"),
    [
        (errno.EIO, READ, ErrorNumber.EIO, FAILED),
        (errno.ENOSPC, WRITE, ErrorNumber.ENOSPC, FAILED),
        (errno.EPERM, WRITE, ErrorNumber.EPERM, FAILED),
        (errno.ECANCELED, READ, ErrorNumber.EIO, FAILED),
        (errno.ENOTSUP, ZERO, ErrorNumber.EIO, FAILED),
        (5000, READ, ErrorNumber.EIO, FAILED),
    ],
)
async def test_refusal_of_the_server_is_told_and_the_connection_lives(
    world: World, refusal: int, command: Command, told: ErrorNumber, text: str
) -> None:
    client = await world.go()
    world.remote.refused[command] = refusal
    flags = CommandFlag.FAST_ZERO if command == ZERO else 0
    result = await client.request(command, 4096, 4096, flags, data=bytes(4096) if command == WRITE else b"")
    assert (result.error, result.text) == (told, text)
    assert (await client.request(FLUSH)).error == 0


async def test_server_that_is_gone_is_an_error_until_it_is_back(world: World) -> None:
    client = await world.go()
    await world.remote.stop()
    assert (await client.request(READ, 0, 4096)).error == ErrorNumber.EIO
    await world.remote.start()
    assert (await client.request(READ, 0, 4096)).error == 0


async def test_failure_is_logged_with_what_the_server_has_said(world: World, caplog: pytest.LogCaptureFixture) -> None:
    client = await world.go()
    assert (await client.request(ZERO, 0, 4095, CommandFlag.FAST_ZERO)).error == ErrorNumber.ENOTSUP
    world.remote.refused[READ] = ErrorNumber.EIO
    for count in (1, 2):
        assert (await client.request(READ, 0, 4096)).error == ErrorNumber.EIO
        await world.until(lambda: caplog.text.count("storage failed: ") == count)  # noqa: B023 - it is awaited
    assert caplog.text.count("storage failed: NBD READ offset=0 length=4096: the server says 'no'") == 2


@pytest.mark.parametrize("flags", [0, CommandFlag.REQ_ONE])
async def test_what_the_server_did_not_tell_is_not_told_as_zeros(world: World, flags: int) -> None:
    async def first(asked: Asked) -> bytes:
        told = pack_extents(10, [min(MiB, asked.header.length)], [3 * (asked.header.offset == 0)], extended=False)
        return world.remote.chunk(asked, Chunk.BLOCK_STATUS, told)

    client = await world.go()
    world.remote.answer = first
    extents = (await client.request(Command.BLOCK_STATUS, 0, SIZE, flags)).extents
    assert extents == ([(MiB, 3)] if flags else [(MiB, 3), (SIZE - MiB, 0)])


# Order


@pytest.mark.parametrize("flags", [0, CommandFlag.FUA])
async def test_write_does_not_overtake_a_trim(world: World, flags: int) -> None:
    world.disk = world.add("disk", sparse=True)  # the ticket that lets a trim do something
    clients = [await world.go(), await world.go()]
    held = world.remote.hold_back(TRIM)
    clients[0].send(TRIM, 0, 4096, flags)
    await world.until(lambda: held.asked)
    clients[1].send(WRITE, 0, data=b"x" * 4096)
    assert (await clients[1].request(READ, 4096, 4096)).error == 0  # it was sent after the write
    assert not world.remote.commands(WRITE)
    held.release()
    for client in clients:
        assert {result.error for result in (await client.receive_all()).values()} == {0}
    assert len(world.remote.commands(WRITE)) == 1


async def test_write_of_python_does_not_overtake_one_of_a_lane(world: World) -> None:
    client = await world.go()
    await client.request(READ, 0, 4096)  # opens the image
    backend = cast(NbdBackend, world.disk.opened)
    held = world.remote.hold_back(WRITE)
    client.send(WRITE, 0, data=b"1" * 4096)
    await world.until(lambda: held.asked)
    buffer = await world.pool.acquire(4096)
    buffer.view[:4096] = b"2" * 4096
    writing = asyncio.ensure_future(pwrite(backend, Operation(), buffer.slice(0, 4096), 0))
    await world.until(lambda: world.engine.load().queued == 1)
    assert [asked.payload[:1] for asked in world.remote.commands(WRITE)] == [b"1"]
    held.release()
    await writing
    buffer.release()
    assert {result.error for result in (await client.receive_all()).values()} == {0}
    assert [asked.payload[:1] for asked in world.remote.commands(WRITE)] == [b"1", b"2"]


# Durability


@pytest.mark.parametrize("length", [4096, 3 * MiB])
async def test_all_of_a_write_with_fua_is_durable(world: World, length: int) -> None:
    client = await world.go()
    assert (await client.request(WRITE, 4096, data=bytes(length), flags=CommandFlag.FUA)).error == 0
    writes = world.remote.commands(WRITE)
    assert sum(asked.header.length for asked in writes) == length
    # FUA says something of its own request only (proto.md, "NBD_CMD_FLAG_FUA").
    assert world.remote.commands(FLUSH) or all(asked.header.flags & CommandFlag.FUA for asked in writes)


# Cancellation


async def test_lane_that_is_cut_waits_for_the_server(world: World) -> None:
    client = await world.go()
    held = world.remote.hold_back(WRITE)
    client.send(WRITE, 0, data=b"x" * 4096)
    await held.reached.wait()
    (lane,) = world.lanes.alive
    lane.abort()
    assert lane.running == 1
    held.release()
    await world.until(lambda: not world.lanes.alive)


async def test_removed_ticket_waits_for_the_server(world: World) -> None:
    client = await world.go()
    held = world.remote.hold_back(READ)
    client.send(READ, 0, 4096)
    await held.reached.wait()
    world.disk.cancel()
    assert not world.disk.end.has_ended
    held.release()
    assert (await client.receive())[1].error in (0, ErrorNumber.ESHUTDOWN)
    assert await client.at_end()
    await world.until(lambda: world.disk.end.has_ended)


# Servers that answer in other ways


Answer = Callable[[FakeNbd, Asked], bytes | None]


def _hang_up(server: FakeNbd, asked: Asked) -> bytes | None:
    server.hang_up()
    return None


def _late(server: FakeNbd, asked: Asked) -> bytes | None:
    asyncio.get_running_loop().call_later(0.01, server.reply, asked)
    return None


def _no(server: FakeNbd, asked: Asked) -> bytes | None:
    return server.failure(asked, ErrorNumber.EIO)


def _early(server: FakeNbd, asked: Asked) -> bytes | None:
    return server.success(asked)


@pytest.mark.parametrize("answer", [_hang_up, _late, _no, _early])
@pytest.mark.parametrize("leaves", [False, True])
async def test_requests_end_however_their_server_answers(world: World, answer: Answer, *, leaves: bool) -> None:
    server = world.remote
    client = await world.go()
    count = 0

    async def answered(asked: Asked) -> bytes | None:
        nonlocal count
        count += 1
        return answer(server, asked) if count % 3 == 0 else server.success(asked)

    server.answer = answered
    for i in range(12):
        length = (4 * KiB, 300 * KiB, 2 * MiB)[i % 3]
        client.send(WRITE, i * 100 * KiB, data=pattern(length))
        client.send(READ, i * 100 * KiB, length)
    await client.writer.drain()
    if leaves:
        client.writer.transport.abort()
    else:
        errors = []
        try:
            for _ in range(24):
                errors.append((await client.receive())[1].error)
        except asyncio.IncompleteReadError:
            assert answer is _hang_up, "only a server that hangs up can end a long read that has begun"
        assert set(errors) <= {0, ErrorNumber.EIO}
    await world.rest()
    assert server.asked
