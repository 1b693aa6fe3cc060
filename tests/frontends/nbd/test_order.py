# SPDX-License-Identifier: Apache-2.0
"""Several connections to one export: what one of them was answered is not undone by another, not even by a dead one."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from imageio_daemon.nbdproto.constants import Command, CommandFlag
from tests.frontends.nbd.calls import Calls
from tests.frontends.nbd.client import Client, Result
from tests.frontends.nbd.conftest import CONTENT, MakeWorld
from tests.frontends.nbd.world import KiB, MiB, World, leaving_nothing

READ, WRITE, ZERO, TRIM, FLUSH = Command.READ, Command.WRITE, Command.WRITE_ZEROES, Command.TRIM, Command.FLUSH


@pytest.fixture
async def world(calls: Calls, lane_world: MakeWorld, tmp_path: Path) -> AsyncIterator[World]:
    """A world on storage that the test controls."""
    async with leaving_nothing(), World(directory=tmp_path, lanes=64 * MiB, size=len(CONTENT)).running() as running:
        running.put(CONTENT)
        running.disk = running.add("sparse", size=len(CONTENT), sparse=True)
        try:
            yield running
        finally:
            calls.mend()


async def is_waiting(answer: "asyncio.Future[Result]") -> bool:
    """Tell whether it does not come for a while."""
    done, _ = await asyncio.wait([answer], timeout=0.3)
    return not done


CHANGES = {
    "write": (WRITE, "pwrite", 0),
    "write with FUA": (WRITE, "pwrite", CommandFlag.FUA),
    "long write": (WRITE, "pwrite", 0),
    "zero": (ZERO, "fallocate", 0),
    "trim": (TRIM, "fallocate", 0),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_newer_write_waits_for_what_a_dead_connection_has_left(world: World, calls: Calls, change: str) -> None:
    command, call, flags = CHANGES[change]
    length = 3 * MiB if change == "long write" else 64 * KiB
    old, new = await world.go("sparse"), await world.go("sparse")
    held = calls.hold(call)
    data = b"o" * length if command == WRITE else b""
    old.send(command, 0, length, flags, data=data)
    await world.until(lambda: held.full)
    old.reset()
    answer = asyncio.ensure_future(new.request(WRITE, 4096, 4096, CommandFlag.FUA, data=b"n" * 4096))
    assert await is_waiting(answer)
    held.release()
    assert (await answer).error == 0
    await world.until(lambda: not world.disk.status()["active"])
    assert world.content[4096:8192] == b"n" * 4096
    assert (await new.request(READ, 4096, 4096)).data == b"n" * 4096


async def test_what_overlaps_nothing_does_not_wait(world: World, calls: Calls) -> None:
    old, new = await world.go("sparse"), await world.go("sparse")
    held = calls.hold("pwrite")
    old.send(WRITE, 0, 64 * KiB, data=b"o" * 64 * KiB)
    await world.until(lambda: held.full)
    old.reset()
    assert (await new.request(WRITE, 64 * KiB, 4096, CommandFlag.FUA, data=b"n" * 4096)).error == 0
    held.release()


async def test_what_a_dead_connection_waited_with_is_not_done(gated: World, calls: Calls) -> None:
    world = gated
    # TCP tells that it is dead, and not only that it says nothing more.
    listening = await asyncio.get_running_loop().create_server(world.server.connection, "127.0.0.1", 0)
    dead = await Client.connect(listening.sockets[0].getsockname())
    listening.close()
    world.clients.append(dead)
    await dead.go("disk")
    first = await world.go()
    held = calls.hold("pwrite")
    answer = asyncio.ensure_future(first.request(WRITE, 0, 4096, data=b"1" * 4096))
    await world.until(lambda: held.full)
    dead.send(WRITE, 0, 64 * KiB, data=b"2" * 64 * KiB)
    await world.until(lambda: world.disk.running == 2)
    dead.reset()
    await world.until(lambda: world.disk.running == 1)
    held.release()
    assert (await answer).error == 0
    assert (await first.request(READ, 0, 64 * KiB)).data == b"1" * 4096 + CONTENT[4096 : 64 * KiB]
