# SPDX-License-Identifier: Apache-2.0
"""Records of requests that lanes serve: how many are kept, when they are read, and that the log's level is followed."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator

import pytest

from imageio_daemon.lanes import records as lane_records
from imageio_daemon.lanes.shared import Lanes
from imageio_daemon.nbdproto.constants import Command
from imageio_daemon.runtime import request_log
from ioutil_ext import lib
from tests.frontends.nbd.conftest import MakeWorld
from tests.frontends.nbd.world import World

READ = Command.READ
MORE = 100


@pytest.fixture
async def world(lane_world: MakeWorld) -> AsyncIterator[World]:
    async with lane_world() as world:
        yield world


@pytest.fixture
def debug(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The log, at DEBUG for requests."""
    caplog.set_level(logging.DEBUG, logger=request_log.__name__)
    return caplog


def lanes_of(world: World) -> Lanes:
    assert world.lanes is not None
    return world.lanes


def told(log: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    """Return the fields of the lines about requests."""
    return [vars(record)["fields"] for record in log.records if record.getMessage() == "request"]


async def tell(world: World, requests: int) -> None:
    """Have so many requests told, since the beginning. The record of one comes a moment after its answer."""
    records = lanes_of(world).records

    def recorded() -> bool:
        stats = records._stats()
        return bool(stats.written + stats.lost == requests)

    await world.until(recorded)
    records.tell()


async def test_nothing_is_recorded_while_the_log_does_not_want_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    records = lanes_of(world).records
    assert not records.follow()
    await (await world.go()).request(READ, 0, 10)
    assert records._stats().written == 0
    caplog.set_level(logging.DEBUG, logger=request_log.__name__)
    records.tell()
    assert told(caplog) == []


async def test_records_are_kept_until_they_are_read_and_more_are_counted(
    debug: pytest.LogCaptureFixture, world: World
) -> None:
    client = await world.go()
    for start in range(0, lib.IOU_RECORDS + MORE, 64):
        for offset in range(start, min(start + 64, lib.IOU_RECORDS + MORE)):
            client.send(READ, offset, 1)
        await client.receive_all()
    await tell(world, lib.IOU_RECORDS + MORE)
    lines = told(debug)
    assert len(lines) == lib.IOU_RECORDS
    assert [line["command"] for line in lines] == ["READ"] * lib.IOU_RECORDS
    (lost,) = [record for record in debug.records if record.getMessage() == "requests are missing in the log"]
    assert vars(lost)["fields"] == {"count": MORE}
    debug.clear()
    await client.request(READ, 1, 2)  # there is room again, and what was lost is told once
    await tell(world, lib.IOU_RECORDS + MORE + 1)
    (line,) = told(debug)
    assert (line["offset"], line["length"]) == (1, 2)
    assert len(debug.records) == 1


async def test_requests_of_a_connection_that_has_ended_are_told_with_its_name(
    debug: pytest.LogCaptureFixture, world: World
) -> None:
    lanes = lanes_of(world)
    client = await world.go()
    await client.request(READ, 0, 10)
    await client.close()
    await world.until(lambda: not lanes.alive)
    lanes.records.tell()
    (line,) = told(debug)
    assert line["client"] == "unix"
    assert line["transfer"] == world.disk.ticket.log_name
    assert lanes.records._known == {}, "it is forgotten"


async def test_lane_that_does_not_start_is_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = lanes_of(world)
    monkeypatch.setattr("imageio_daemon.lanes.nbd.NbdTerms.start", lambda *_: -11)
    client = await world.connect()
    with pytest.raises(asyncio.IncompleteReadError):
        await client.go("disk")
    lanes.records.tell()
    assert lanes.records._known == {}


async def test_reading_keeps_the_loop_for_a_while_only(debug: pytest.LogCaptureFixture, world: World) -> None:
    records = lanes_of(world).records
    client = await world.go()
    for start in range(0, 2 * lane_records.BATCH, 64):
        for offset in range(start, start + 64):
            client.send(READ, offset, 1)
        await client.receive_all()
    await world.until(lambda: records._stats().written == 2 * lane_records.BATCH)
    assert not records.tell(1e-9)
    assert len(told(debug)) == lane_records.BATCH
    while not records.tell(1e-9):
        pass
    assert len(told(debug)) == 2 * lane_records.BATCH


async def test_level_of_the_log_is_followed_while_a_connection_lasts(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_records, "LOOK", 0.001)
    lanes = lanes_of(world)
    client = await world.go()
    telling = asyncio.create_task(lanes.records.run())
    try:
        caplog.set_level(logging.DEBUG, logger=request_log.__name__)

        async def read_until(wanted: bool) -> None:
            async with asyncio.timeout(10):
                while True:
                    caplog.clear()
                    before = lanes.records._stats().written
                    await client.request(READ, 0, 10)
                    await asyncio.sleep(2 * lane_records.PERIOD)
                    if (lanes.records._stats().written > before) == wanted == bool(told(caplog)):
                        return

        await read_until(wanted=True)
        caplog.set_level(logging.INFO, logger=request_log.__name__)
        await read_until(wanted=False)
    finally:
        telling.cancel()


async def test_seconds_are_those_of_the_request(debug: pytest.LogCaptureFixture, world: World) -> None:
    client = await world.go()
    before = time.monotonic()
    await client.request(READ, 0, 1000)
    await tell(world, 1)
    taken = time.monotonic() - before
    (line,) = told(debug)
    assert isinstance(line["seconds"], float)
    assert 0 < line["seconds"] < taken
    assert re.fullmatch(r"0x\d", str(line["flags"]))


async def test_slow_requests_are_told_at_every_level(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, logger=request_log.__name__)
    monkeypatch.setattr(request_log, "SLOW", 0.0)
    assert not lanes_of(world).records.follow()
    await (await world.go()).request(READ, 0, 10)
    await tell(world, 1)
    (line,) = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "slow request"]
    assert (line["command"], line["length"]) == ("READ", 10)
