# SPDX-License-Identifier: Apache-2.0
"""Lanes while the storage of the journal of durable ranges hangs. The image is elsewhere, on a server."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import pytest

from imageio_daemon.nbdproto.constants import Command, CommandFlag
from imageio_daemon.storage.durable import DurableRecord
from imageio_daemon.storage.nbd.backend import NbdBackend
from ioutil_ext import lib
from tests.frontends.nbd.calls import Calls, Hold
from tests.frontends.nbd.client import Client
from tests.frontends.nbd.conftest import MakeWorld
from tests.frontends.nbd.world import World
from tests.support.durable import Record
from tests.support.polling import eventually_async

READ, WRITE, FLUSH, FUA = Command.READ, Command.WRITE, Command.FLUSH, CommandFlag.FUA
DATA = b"x" * 4096


@pytest.fixture
def record(tmp_path: Path, calls: Calls) -> Iterator[Record]:
    """A record by which 0..8192 is durable, on storage that the test controls."""
    with Record(tmp_path, [(0, 8192)]) as made:
        yield made
        calls.mend()


@pytest.fixture
async def world(remote_world: MakeWorld, record: Record, calls: Calls) -> AsyncIterator[World]:
    """A world whose image is open, and has the record."""
    async with remote_world() as running:
        client = await running.go()
        await client.request(READ, 0, 4096)
        cast(NbdBackend, running.disk.opened).keep(cast(DurableRecord, record))
        try:
            yield running
        finally:
            calls.mend()


async def succeeds(client: Client) -> None:
    """Check that all that the client still waits for succeeds."""
    assert {result.error for result in (await client.receive_all()).values()} == {0}


async def reads_go_on(world: World, client: Client, held: Hold) -> None:
    """Check that the client can read while a call is held, and that what it has sent before succeeds then."""
    await world.until(lambda: held.full)
    assert (await client.request(READ, 0, 4096)).error == 0
    held.release()
    await succeeds(client)


async def test_reads_do_not_wait_for_a_change_of_durable_bytes(world: World, calls: Calls) -> None:
    client = await world.go()
    held = calls.hold("fdatasync")
    client.send(WRITE, 0, data=DATA)
    await reads_go_on(world, client, held)


async def test_change_of_durable_bytes_waits_for_the_journal(world: World, calls: Calls) -> None:
    client = await world.go()
    held = calls.hold("fdatasync")
    client.send(WRITE, 0, data=DATA)
    await world.until(lambda: held.full)
    assert (await client.request(WRITE, 8192, data=DATA)).error == 0
    assert [asked.header.offset for asked in world.remote.commands(WRITE)] == [8192]
    held.release()
    await succeeds(client)
    assert [asked.header.offset for asked in world.remote.commands(WRITE)] == [8192, 0]


async def test_reads_of_another_connection_do_not_wait_either(world: World, calls: Calls) -> None:
    clients = [await world.go(), await world.go()]
    held = calls.hold("fdatasync")
    for number, client in enumerate(clients):
        client.send(WRITE, number * 4096, data=DATA)
    await world.until(lambda: held.full and world.engine.load().busy == 2)
    for client in clients:
        assert (await client.request(READ, 0, 4096)).error == 0
    held.release()
    for client in clients:
        await succeeds(client)


async def test_reads_do_not_wait_for_the_journal_of_a_flush(world: World, calls: Calls) -> None:
    client = await world.go()
    assert (await client.request(WRITE, 8192, data=DATA)).error == 0
    held = calls.hold("pwrite")
    client.send(FLUSH)
    await reads_go_on(world, client, held)


async def test_journal_has_what_a_flush_has_made_durable_when_it_is_answered(world: World, record: Record) -> None:
    client = await world.go()
    assert (await client.request(WRITE, 8192, data=DATA)).error == 0
    assert (await client.request(FLUSH)).error == 0
    assert record.on_disk() == [(0, 12288)]


async def test_reads_do_not_wait_for_the_journal_of_a_write_with_fua(
    world: World, calls: Calls, record: Record
) -> None:
    client = await world.go()
    assert (await client.request(WRITE, 8192, data=DATA, flags=FUA)).error == 0
    await eventually_async(lambda: bool(lib.iou_durable_is_due(record.shared)))
    held = calls.hold("pwrite")
    client.send(WRITE, 12288, data=DATA, flags=FUA)
    await reads_go_on(world, client, held)


async def test_change_that_ends_with_the_engine_is_no_change_that_runs_for_ever(world: World, record: Record) -> None:
    client = await world.go()
    assert (await client.request(WRITE, 8192, data=DATA, flags=FUA)).error == 0
    await eventually_async(lambda: bool(lib.iou_durable_is_due(record.shared)))
    held = world.remote.hold_back(WRITE)
    client.send(WRITE, 12288, data=DATA, flags=FUA)
    await held.reached.wait()
    world.engine.stop(0)  # no worker takes the journal
    held.release()
    await client.receive()
    with cast(NbdBackend, world.disk.opened).lane_handle() as handle:
        assert lib.iou_handle_generation(handle), "a change runs"
