# SPDX-License-Identifier: Apache-2.0
"""Lanes on storage that does not let them sleep: requests are done in small pieces, whatever their length."""

import errno
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from imageio_daemon.nbdproto.constants import Command, CommandFlag, ErrorNumber
from tests.ioutil.syscall_table import real_pread, real_pwrite, replaced
from tests.nbd.calls import Calls
from tests.nbd.client import Client
from tests.nbd.conftest import FORMS, MakeWorld
from tests.nbd.world import KiB, MiB, World
from tests.support.images import pattern

READ, WRITE = Command.READ, Command.WRITE
CONTENT = pattern(4 * MiB)
#: What is moved at once, at most.
QUICK_WRITE, QUICK_READ = 64 * KiB, 128 * KiB
#: After so many requests a lane knows its storage.
MANY = 100


@pytest.fixture
async def world(lane_world: MakeWorld) -> AsyncIterator[World]:
    if not Path("/dev/shm").is_dir():
        pytest.skip("needs storage that is quick")
    with TemporaryDirectory(dir="/dev/shm") as directory:
        async with lane_world(directory=Path(directory), size=len(CONTENT)) as running:
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
async def test_write_goes_to_storage_in_small_pieces(world: World, client: Client, offset: int) -> None:
    data, lengths = CONTENT[MiB + 1 : 2 * MiB], []

    def pwrite(fd: int, buffer: memoryview, offset: int) -> int:
        lengths.append(len(buffer))
        return real_pwrite(fd, buffer, offset)

    with replaced(pwrite=pwrite):
        assert (await client.request(WRITE, offset, data=data)).error == 0
    assert max(lengths) <= QUICK_WRITE
    assert world.content == CONTENT[:offset] + data + CONTENT[offset + len(data) :]


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


async def test_write_that_fails_leaves_what_follows_alone(world: World, client: Client) -> None:
    calls = Calls()
    calls.fail("pwrite", errno.EIO, after=2)
    with replaced(pwrite=calls.table()["pwrite"]):
        assert (await client.request(WRITE, 0, data=bytes(MiB))).error == ErrorNumber.EIO
        assert calls.failed == 1
    assert world.content == bytes(2 * QUICK_WRITE) + CONTENT[2 * QUICK_WRITE :]
    assert (await client.request(WRITE, 0, data=CONTENT[:MiB])).error == 0
    assert world.content == CONTENT
