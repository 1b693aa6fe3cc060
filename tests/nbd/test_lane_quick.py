# SPDX-License-Identifier: Apache-2.0
"""Lanes on storage that does not let them sleep: long reads are done in small pieces, writes are not."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from imageio_daemon.nbdproto.constants import Command, CommandFlag
from tests.ioutil.syscall_table import real_pread, replaced
from tests.nbd.calls import Calls
from tests.nbd.client import Client
from tests.nbd.conftest import FORMS, MakeWorld
from tests.nbd.world import KiB, MiB, World
from tests.support.images import pattern

READ, WRITE = Command.READ, Command.WRITE
CONTENT = pattern(4 * MiB)
#: What is read at once, at most.
QUICK_READ = 128 * KiB
#: After so many requests a lane knows its storage.
MANY = 100


@pytest.fixture
async def world(lane_world: MakeWorld, quick_directory: Path) -> AsyncIterator[World]:
    async with lane_world(directory=quick_directory, size=len(CONTENT)) as running:
        running.put(CONTENT)
        yield running


@pytest.fixture(params=FORMS)
async def client(request: pytest.FixtureRequest, world: World) -> Client:
    """A client whose lane has found its storage quick."""
    client = await world.go(**FORMS[request.param])
    for _ in range(MANY):
        await client.request(WRITE, 0, data=CONTENT[:4096])
        await client.request(READ, 0, 4096)
    return client


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
    for _ in range(MANY):
        await client.request(READ, 0, 4096)
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


async def test_writer_that_hangs_is_relieved(world: World, client: Client) -> None:
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
