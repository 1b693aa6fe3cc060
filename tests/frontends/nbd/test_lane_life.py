# SPDX-License-Identifier: Apache-2.0
"""What is told of a ticket that a lane serves, how it is renewed, and how it ends."""

import asyncio
import errno
import logging
import os
import time
import warnings
from collections.abc import AsyncIterator

import pytest

from imageio_daemon.errors import StorageError
from imageio_daemon.frontends.nbd.handover import LaneSession
from imageio_daemon.frontends.nbd.handshake import ServerHandshake
from imageio_daemon.lanes import lane
from imageio_daemon.lanes.nbd import NbdTerms
from imageio_daemon.nbdproto.agreement import Event, FindExport
from imageio_daemon.nbdproto.constants import Command, CommandFlag, ErrorNumber
from imageio_daemon.transfers.ticket import Access
from ioutil_ext import ffi, lib
from tests.frontends.nbd.conftest import MakeWorld
from tests.frontends.nbd.world import REQUESTS, SIZE, MiB, World, lane_threads
from tests.support.polling import eventually

READ, WRITE, FLUSH, ZERO, TRIM = Command.READ, Command.WRITE, Command.FLUSH, Command.WRITE_ZEROES, Command.TRIM


@pytest.fixture
async def world(lane_world: MakeWorld) -> AsyncIterator[World]:
    async with lane_world() as running:
        yield running


# What is told


async def test_image_that_is_a_file_is_served_by_a_lane(world: World) -> None:
    await (await world.go()).request(FLUSH)
    assert lane_threads()
    await world.rest()
    await world.until(lambda: not lane_threads())


async def test_bytes_count_once(world: World) -> None:
    client = await world.go()
    await client.request(WRITE, 0, data=bytes(1000))
    await client.request(WRITE, 500, data=bytes(1000))
    await client.request(ZERO, MiB, 3 * MiB)
    await client.request(READ, 0, SIZE)
    await client.request(WRITE, SIZE, data=b"x")  # refused
    assert world.disk.status()["transferred"] == 1500 + 3 * MiB


async def test_bytes_of_a_read_only_ticket_are_those_that_were_read(world: World) -> None:
    transfer = world.add("ro", ops=(Access.READ,))
    client = await world.go("ro")
    for i in range(10):
        await client.request(READ, 2 * i * 4096, 4096)
    assert transfer.status()["transferred"] == 10 * 4096


async def test_bytes_count_while_the_connection_lives_and_after_it(world: World) -> None:
    for i in range(3):
        client = await world.go()
        await client.request(WRITE, i * MiB, data=bytes(MiB))
        assert world.disk.status()["transferred"] == (i + 1) * MiB
        await world.rest()
        assert world.disk.status()["transferred"] == (i + 1) * MiB


async def test_many_ranges_that_touch_nothing_are_counted(world: World) -> None:
    """More than are kept in C, so that it has to say that there are many."""
    world.add("large", size=1 << 40)
    client = await world.go("large")
    count = 16000  # below the limit of RangeSet
    for start in range(0, count, 1000):
        for i in range(start, start + 1000):
            client.send(ZERO, i * 8192, 4096)
        assert not any(result.error for result in (await client.receive_all()).values())
    assert world.store.get("large").status()["transferred"] == count * 4096  # type: ignore[union-attr]


async def test_idle_ticket_says_for_how_long(world: World) -> None:
    client = await world.go()
    await client.request(READ, 0, 4096)
    assert world.disk.status()["idle_time"] <= 1
    world.disk.permission.lease.active -= 100
    status = world.disk.status()
    assert status["idle_time"] in (100, 101)
    assert (status["active"], status["connections"]) == (False, 1)


async def test_connection_and_transfer_are_summed_up_in_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client = await world.go(structured=False)
    await client.request(WRITE, 0, data=bytes(MiB))
    await client.request(READ, 0, 4096)
    await client.request(FLUSH)
    await world.rest()
    await world.store.remove("disk", 10)
    (connection,) = [record for record in caplog.records if record.message == "connection ended"]
    (transfer,) = [record for record in caplog.records if record.message == "transfer ended"]
    assert connection.fields["requests"] == 3  # type: ignore[attr-defined]
    assert connection.fields["sent"] == 3 * 16 + 4096  # type: ignore[attr-defined]
    assert transfer.fields["bytes"] == MiB + 4096  # type: ignore[attr-defined]


async def test_request_of_many_pieces_is_one_in_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world.add("large", size=16 * MiB)
    client = await world.go("large")
    await client.request(WRITE, 0, data=bytes(8 * MiB))
    await client.request(READ, 0, 8 * MiB)
    await client.close()
    await world.rest()
    (connection,) = [record for record in caplog.records if record.message == "connection ended"]
    assert connection.fields["requests"] == 2  # type: ignore[attr-defined]


# Expiry


@pytest.mark.parametrize("command", [READ, WRITE, FLUSH, ZERO, TRIM, Command.BLOCK_STATUS])
async def test_request_renews_the_ticket(world: World, command: Command) -> None:
    world.add("t", sparse=True)
    client = await world.go("t")
    transfer = world.store.authorize("t", Access.READ)
    transfer.permission.lease.expires = time.monotonic() + 20
    data = bytes(4096) if command == WRITE else b""
    assert (await client.request(command, 0, 0 if command in (WRITE, FLUSH) else 4096, data=data)).error == 0
    assert transfer.permission.lease.expires > time.monotonic() + 290


async def test_request_does_not_shorten_what_is_left(world: World) -> None:
    client = await world.go()
    world.disk.permission.extend(5000)
    await client.request(READ, 0, 4096)
    assert world.disk.permission.lease.expires > time.monotonic() + 4900


async def test_request_does_not_renew_a_ticket_that_was_ended_meanwhile(world: World) -> None:
    client = await world.go()
    # In a while, so that the request is one that has begun before.
    world.disk.permission.lease.end(time.monotonic() + 20)
    assert (await client.request(READ, 0, 4096)).error == 0
    assert world.disk.permission.lease.expires < time.monotonic() + 21


async def test_ticket_may_be_extended_while_its_connection_is_idle(world: World) -> None:
    client = await world.go()
    world.disk.permission.lease.expires = 0
    world.disk.permission.extend(300)
    assert (await client.request(READ, 0, 4096)).error == 0


async def test_all_requests_after_expiry_are_refused_and_nothing_is_written(world: World) -> None:
    client = await world.go()
    world.disk.permission.lease.expires = 0
    client.send_writes((i * 512, b"x" * 512) for i in range(10))
    results = await client.receive_all()
    assert [result.error for result in results.values()] == 10 * [ErrorNumber.ESHUTDOWN]
    assert await client.at_end()
    assert world.content == bytes(SIZE)


# The end of a ticket


async def test_removed_ticket_ends_writes_in_flight_and_the_image_is_left_alone(world: World) -> None:
    world.add("large", size=64 * MiB)
    writer = await world.go("large")
    cookies = {writer.send(WRITE, i * MiB, data=bytes([i + 1]) * MiB): i for i in range(64)}
    first = await writer.receive()
    await world.store.remove("large", 10)
    content = world.content
    results = dict([first])
    try:
        while len(results) < 64:
            cookie, result = await writer.receive()
            results[cookie] = result
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # what was not read of the socket is not answered
    assert {result.error for result in results.values()} <= {0, ErrorNumber.ESHUTDOWN}
    for cookie, result in results.items():
        i = cookies[cookie]
        assert result.error or content[i * MiB : (i + 1) * MiB] == bytes([i + 1]) * MiB
    assert world.content == content


async def test_ticket_that_is_cancelled_before_the_lane_begins_ends_the_connection(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    begin = LaneSession.start

    def cancel_and_begin(self: LaneSession, rest: bytes, reply: bytes) -> None:
        world.disk.cancel()  # as another loop may, at any time
        begin(self, rest, reply)

    monkeypatch.setattr(LaneSession, "start", cancel_and_begin)
    with pytest.raises(asyncio.IncompleteReadError):
        await world.go()
    await world.store.remove("disk", 10)
    assert "connection ends: the transfer has ended" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("bug", [False, True])
async def test_lane_that_cannot_begin_ends_the_connection_and_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, bug: bool
) -> None:
    def fail(*_: object) -> None:
        raise TypeError("a bug") if bug else StorageError(errno.EAGAIN, "disk", "serve")

    monkeypatch.setattr(NbdTerms, "start", fail)
    with pytest.raises(asyncio.IncompleteReadError):
        await world.go()
    await world.until(lambda: not world.server.admission.count)
    assert world.disk.status()["connections"] == 0
    await world.store.remove("disk", 10)
    assert "connection ends: it cannot be served" in caplog.text
    assert ("Traceback" in caplog.text) == bug


async def test_bug_in_what_is_told_of_a_lane_leaves_nothing_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise TypeError("a bug")

    client = await world.go()
    await client.request(WRITE, 0, data=b"abc")
    monkeypatch.setattr(lane.Lane, "counted", fail)
    await client.close()
    await world.until(lambda: not world.server.admission.count)
    await world.store.remove("disk", 10)
    assert "a bug" in caplog.text


# The end of connections and of the server


async def test_server_that_stops_before_the_lane_begins_ends_the_connection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, stopping = ServerHandshake._find, []

    async def find_and_stop(self: ServerHandshake, event: FindExport) -> Event | None:
        found = await find(self, event)
        stopping.append(asyncio.create_task(world.server.stop(10)))
        await asyncio.sleep(0)
        return found

    monkeypatch.setattr(ServerHandshake, "_find", find_and_stop)
    client = await world.go(allocation=False)
    async with asyncio.timeout(5):  # before the server gives up
        assert await client.at_end()
    await stopping[0]


async def test_many_requests_have_one_thread(world: World) -> None:
    client = await world.go()
    for i in range(500):
        client.send(READ, i * 4096, 4096, CommandFlag.FUA)
    await client.receive_all()
    assert lane_threads() == 1


async def test_lane_is_not_for_a_forked_child(world: World) -> None:
    client = await world.go()
    await client.request(WRITE, 0, data=b"abc")
    (found,) = world.lanes.alive
    with warnings.catch_warnings():
        # Python 3.12 warns of exactly this: a fork beside threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        lib.iou_lane_refuse(found._lane)
        lib.iou_lane_abort(found._lane)
        codes = {
            lib.iou_lane_reports(found._lane, ffi.new("iou_lane_report *"), 1),
            lib.iou_lane_counted(found._lane, ffi.new("iou_range *"), 1),
            lib.iou_lane_free(found._lane),
            lib.iou_lanes_free(world.lanes.shared),
        }
        os._exit(0 if codes == {-errno.ECHILD} and not found.stats.requests else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (await client.request(READ, 0, 3)).data == b"abc"


async def test_connections_that_come_and_go_leave_nothing(world: World) -> None:
    for _ in range(50):
        clients = [await world.go() for _ in range(3)]
        for client in clients:
            client.send(WRITE, 0, data=bytes(4096))
        clients[0].reset()
        await clients[1].close()
        await clients[2].receive()
        await world.rest()
    await world.until(lambda: not lane_threads())
    assert world.disk.status()["connections"] == 0


async def test_client_that_dies_in_a_long_payload_leaves_whole_pages_of_what_it_sent(world: World) -> None:
    piece = 4 * MiB
    world.add("large", size=3 * piece)
    client = await world.go("large")
    client.send(WRITE, 0, 3 * piece)
    client.writer.write(b"x" * (piece + MiB))
    await client.writer.drain()
    await world.until(lambda: world.content[piece - 1 : piece] == b"x")
    client.reset()
    await world.rest()
    content = bytes(world.content)
    end = len(content) - len(content.lstrip(b"x"))  # one that is slow is written as it comes
    assert piece <= end <= piece + MiB
    assert end % 4096 == 0
    assert not any(content[end:])


async def test_server_stops_with_lanes_in_every_state(world: World, caplog: pytest.LogCaptureFixture) -> None:
    clients = []
    for data in (b"", REQUESTS[:10], REQUESTS[:100], REQUESTS):
        client = await world.go()
        client.writer.write(data)
        clients.append(client)
    unread = await world.go()
    unread.pause_reading()
    for _ in range(40):
        unread.send(READ, 0, MiB, CommandFlag.DF)
    await world.server.stop(1.5)
    unread.resume_reading()
    for client in [*clients, unread]:
        await client.drop_all()
    await world.until(lambda: not lane_threads())
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_end_in_the_middle_of_a_look_is_seen(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.go()
    (found,) = world.lanes.alive
    tell = found._reports.tell

    def end_first(lost: int) -> None:
        if not found.stats.ended:
            found.abort()
            eventually(lambda: found.stats.ended, "the lane has ended")
        tell(lost)

    monkeypatch.setattr(found._reports, "tell", end_first)
    found._look()
    await world.until(lambda: not world.lanes.alive)
