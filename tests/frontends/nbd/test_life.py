# SPDX-License-Identifier: Apache-2.0
"""Connections: how they begin, whom they belong to, and how they end."""

import asyncio
import contextlib
import logging
import time
from pathlib import Path

import pytest

from imageio_daemon.errors import Forbidden
from imageio_daemon.frontends.nbd import exports, handshake
from imageio_daemon.lanes import shared
from imageio_daemon.nbdproto.constants import Command, ErrorNumber, ExportFlag, OptionType, Reply
from imageio_daemon.nbdproto.messages import RequestHeader
from imageio_daemon.nbdproto.option_payloads import ContextRequest, InfoRequest, OptionHeader
from imageio_daemon.net import connection_limit
from tests.frontends.nbd.client import Client, Refused
from tests.frontends.nbd.world import REQUESTS, SIZE, MiB, World

READ, WRITE, FLUSH, DISC = Command.READ, Command.WRITE, Command.FLUSH, Command.DISC
GO = OptionHeader(OptionType.GO, 10).pack() + InfoRequest("disk", ()).pack()


def info(name: str) -> bytes:
    return InfoRequest(name, ()).pack()


# Tickets


@pytest.mark.parametrize("option", [OptionType.INFO, OptionType.GO])
async def test_unknown_expired_cancelled_and_forbidden_get_one_answer(world: World, option: OptionType) -> None:
    world.add("expired").permission.lease.expires = 0
    world.add("cancelled").cancel()
    world.add("nothing", ops=())
    texts = set()
    for name in ("unknown", "expired", "cancelled", "nothing", "", "n" * 4096):
        client = await world.connect()
        with pytest.raises(Refused) as e:
            await client.ask(option, info(name))
        assert e.value.reply == Reply.ERR_UNKNOWN
        texts.add(str(e.value))
    assert len(texts) == 1
    assert world.opened == []


async def test_refused_client_may_try_another_name(world: World) -> None:
    client = await world.connect()
    with pytest.raises(Refused):
        await client.ask(OptionType.GO, info("unknown"))
    await client.go("disk")
    assert client.export.size == SIZE


async def test_image_is_opened_only_for_a_ticket(world: World) -> None:
    client = await world.connect()
    await client.ask(OptionType.STRUCTURED_REPLY)
    assert world.opened == []
    await client.ask(OptionType.INFO, info("disk"))
    assert world.opened == ["disk"]


async def test_image_that_cannot_be_opened_is_said_so_and_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.add("lost", path=Path("/nowhere/image"))
    client = await world.connect()
    with pytest.raises(Refused) as e:
        await client.ask(OptionType.GO, info("lost"))
    assert e.value.reply == Reply.ERR_PLATFORM
    assert "nowhere" not in str(e.value)
    assert "/nowhere/image" in caplog.text
    await client.go("disk")


async def test_bug_ends_the_negotiation_and_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise ValueError("a bug")

    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(str(context["exception"])))
    monkeypatch.setattr(exports, "find", fail)
    client = await world.connect()
    client.writer.write(GO)
    assert await client.at_end()
    await world.rest()
    assert told == ["a bug"]


async def test_negotiation_tries_to_open_an_image_once_until_it_is_refused(world: World) -> None:
    world.add("lost", path=Path("/nowhere/image"))
    client = await world.connect()
    for tries in (1, 2):
        await client.ask(OptionType.STRUCTURED_REPLY)
        contexts = ContextRequest("lost", ("base:allocation",)).pack()
        for option, payload in ((OptionType.SET_META_CONTEXT, contexts), (OptionType.GO, info("lost"))):
            with pytest.raises(Refused) as e:
                await client.ask(option, payload)
            assert e.value.reply == Reply.ERR_PLATFORM
        assert world.opened == tries * ["lost"]


async def test_activity_renews_the_ticket_and_counts(world: World) -> None:
    client = await world.go()
    world.disk.permission.lease.expires = time.monotonic() + 20
    await client.request(WRITE, 0, data=bytes(1000))
    await client.request(WRITE, 500, data=bytes(1000))
    await client.request(READ, 0, 9000)
    assert world.disk.permission.lease.expires > time.monotonic() + 290
    status = world.disk.status()
    assert status["transferred"] == 1500
    assert status["connections"] == 1
    assert not status["active"]
    assert (await client.request(FLUSH)).error == 0


async def test_running_request_is_active(world: World) -> None:
    held = world.remote.hold_back(READ)
    client = await world.go()
    client.send(READ, 0, 512)
    await asyncio.wait_for(held.reached.wait(), 10)
    assert world.disk.status()["active"]
    held.release()
    await client.receive()


async def test_connections_of_a_ticket_are_limited(world: World) -> None:
    for _ in range(9):
        await world.go()
    client = await world.connect()
    with pytest.raises(Refused) as e:
        await client.ask(OptionType.GO, info("disk"))
    assert e.value.reply == Reply.ERR_POLICY


async def test_cancelling_the_ticket_ends_running_requests(world: World) -> None:
    held = world.remote.hold_back(READ)
    client = await world.go()
    client.send(READ, 0, 512)
    await asyncio.wait_for(held.reached.wait(), 10)
    world.disk.cancel()
    late = client.send(FLUSH)
    held.release()
    results = await client.receive_all()
    assert {result.error for result in results.values()} <= {0, ErrorNumber.ESHUTDOWN}  # storage had begun
    assert results[late].error == ErrorNumber.ESHUTDOWN
    assert await client.at_end()


async def test_list_is_refused_by_default(world: World) -> None:
    client = await world.connect()
    with pytest.raises(Refused) as e:
        await client.list()
    assert e.value.reply == Reply.ERR_POLICY


async def test_list_shows_tickets_that_can_be_used() -> None:
    async with World(listed=True).running() as world:
        world.add("expired").permission.lease.expires = 0
        world.add("b")
        world.add("cancelled").cancel()
        assert sorted(await (await world.connect()).list()) == ["b", "disk"]


# The image is finalized


async def test_connection_that_may_write_ends_when_the_image_is_finalized(world: World) -> None:
    held = world.remote.hold_back(WRITE)
    client = await world.go()
    client.send(WRITE, 0, data=bytes(512))
    await asyncio.wait_for(held.reached.wait(), 10)
    quiet = world.disk.permission.seal.begin_closing()
    late = client.send(WRITE, 512, data=bytes(512))
    assert not quiet.is_set()
    held.release()
    results = await client.receive_all()
    assert sorted(result.error for result in results.values()) == [0, ErrorNumber.ESHUTDOWN]
    assert results[late].error == ErrorNumber.ESHUTDOWN
    assert await client.at_end()
    await asyncio.wait_for(quiet.wait(), 10)


async def test_export_of_a_finalized_image_is_read_only(world: World) -> None:
    await world.disk.backend()
    world.disk.permission.seal.close()
    client = await world.go()
    assert client.export.flags & ExportFlag.READ_ONLY
    assert (await client.request(READ, 0, 512)).error == 0
    assert (await client.request(WRITE, 0, data=bytes(512))).error == ErrorNumber.EPERM


async def test_reading_connection_stays_when_the_image_is_finalized(world: World) -> None:
    world.disk.permission.seal.close()
    client = await world.go()
    with pytest.raises(Forbidden):
        world.disk.permission.seal.begin_closing()
    assert (await client.request(READ, 0, 512)).error == 0


# The end of a connection


async def test_goodbye_is_not_answered_and_what_runs_is(world: World, client: Client) -> None:
    held = world.remote.hold_back(READ)
    cookies = {client.send(READ, i * 512, 512) for i in range(4)}
    await asyncio.wait_for(held.reached.wait(), 10)
    client.writer.write(RequestHeader(DISC, 0, 99, 0, 0).pack(extended=client.extended) + b"ignored")
    held.release()
    assert set(await client.receive_all()) == cookies
    assert await client.at_end()


async def test_half_close_is_a_goodbye(world: World, client: Client) -> None:
    held = world.remote.hold_back(READ)
    cookie = client.send(READ, 0, 512)
    await asyncio.wait_for(held.reached.wait(), 10)
    client.writer.write_eof()
    held.release()
    assert (await client.receive())[0] == cookie
    assert await client.at_end()


async def test_client_that_dies_while_storage_works_frees_everything(world: World) -> None:
    held = world.remote.hold_back(READ)
    client = await world.go()
    for i in range(20):
        client.send(READ, i * MiB % SIZE, MiB)
        client.send(READ, 0, SIZE)
    await asyncio.wait_for(held.reached.wait(), 10)
    client.reset()
    held.release()
    await world.until(lambda: world.disk.status()["connections"] == 0)
    await world.rest()
    await world.until(lambda: not world.disk.status()["active"])


HANDSHAKE = b"\0\0\0\3" + OptionHeader(OptionType.STRUCTURED_REPLY, 0).pack() + GO


@pytest.mark.parametrize("where", range(0, len(HANDSHAKE) + 1, 3))
async def test_client_that_leaves_anywhere_in_the_negotiation_harms_nobody(
    world: World, where: int, caplog: pytest.LogCaptureFixture
) -> None:
    _, writer = await asyncio.open_unix_connection(world.address)
    writer.write(HANDSHAKE[:where])
    await writer.drain()
    writer.close()
    await world.until(lambda: not world.server.admission.count)
    assert (await (await world.go()).request(READ, 0, 1)).error == 0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_many_clients_that_connect_and_go(world: World) -> None:
    for _ in range(100):
        _, writer = await asyncio.open_unix_connection(world.address)
        writer.close()
    await world.until(lambda: not world.server.admission.count)


async def test_client_that_says_nothing_is_closed_in_time() -> None:
    async with World(handshake_timeout=0.1).running() as world:
        client = await world.connect()
        assert await client.at_end()


async def test_client_that_stalls_inside_an_option_is_closed_in_time() -> None:
    async with World(handshake_timeout=1).running() as world:
        client = await world.connect()
        await client.ask(OptionType.STRUCTURED_REPLY)
        client.writer.write(GO[:20])
        assert await client.at_end()


async def test_time_that_storage_takes_to_open_is_not_the_clients() -> None:
    async with World(handshake_timeout=1).running() as world:
        world.opens.clear()
        client = await world.connect()
        going = asyncio.create_task(client.go("disk"))
        await world.until(lambda: world.opened)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(going), 1.5)
        world.opens.set()
        await going
        assert (await client.request(READ, 0, 1)).error == 0


async def test_client_that_stalls_after_the_image_was_opened_is_closed_in_time() -> None:
    async with World(handshake_timeout=1).running() as world:
        client = await world.connect()
        await client.ask(OptionType.INFO, info("disk"))
        assert await client.at_end()


async def test_client_without_a_ticket_has_no_more_time_while_storage_hangs() -> None:
    async with World(handshake_timeout=1).running() as world:
        world.opens.clear()
        waiting = asyncio.create_task((await world.connect()).go("disk"))
        await world.until(lambda: world.opened)
        stranger = await world.connect()
        with pytest.raises(Refused):
            await stranger.ask(OptionType.GO, info("unknown"))
        assert await stranger.at_end()
        assert not waiting.done()
        world.opens.set()
        await waiting


async def test_storage_that_does_not_open_the_image_is_not_waited_for_without_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshake, "OPEN_TIMEOUT", 0.1)
    async with World(handshake_timeout=1).running() as world:
        world.opens.clear()
        client = await world.connect()
        client.writer.write(GO)
        await world.until(lambda: world.opened)
        assert await client.at_end()
        world.opens.set()


async def test_slow_storage_is_not_the_clients_fault() -> None:
    async with World(inactivity_timeout=1).running() as world:
        held = world.remote.hold_back(READ)
        client = await world.go()
        cookie = client.send(READ, 0, 512)
        await asyncio.wait_for(held.reached.wait(), 10)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reader.read(1), 1.5)
        held.release()
        assert (await client.receive())[0] == cookie


async def test_clients_above_the_limit_are_told() -> None:
    async with World(most=2).running() as world:
        first, _ = await world.go(), await world.go()
        client = await world.connect()
        with pytest.raises(Refused, match="the limit is 2") as e:
            await client.ask(OptionType.GO, info("disk"))
        assert e.value.reply == Reply.ERR_POLICY
        assert world.disk.status()["connections"] == 2
        await first.close()
        await world.until(lambda: world.server.limit.count == 1)
        await client.go("disk")
        assert (await client.request(READ, 0, 1)).error == 0


async def test_client_for_whom_there_is_no_lane_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "MAX_LANES", 1)
    first, client = await world.go(), await world.connect()
    with pytest.raises(Refused, match="the limit is 1") as e:
        await client.ask(OptionType.GO, info("disk"))
    assert e.value.reply == Reply.ERR_POLICY
    assert world.disk.status()["connections"] == 1
    await first.close()
    await world.until(lambda: not world.lanes.alive)
    await client.go("disk")
    assert (await client.request(READ, 0, 1)).error == 0


async def test_clients_without_a_ticket_take_nobodys_place() -> None:
    async with World(most=2).running() as world:
        for _ in range(10):
            await world.connect()
        for _ in range(2):
            client = await world.go()
            assert (await client.request(READ, 0, 1)).error == 0


@pytest.mark.parametrize(("speaks", "limit"), [(False, "MAX_SILENT"), (True, "MAX_GREETING")])
async def test_oldest_client_in_the_negotiation_goes_for_a_new_one(
    monkeypatch: pytest.MonkeyPatch, speaks: bool, limit: str
) -> None:
    monkeypatch.setattr(connection_limit, limit, 4)
    async with World().running() as world:
        greeted = []
        for _ in range(5):
            reader, writer = await asyncio.open_unix_connection(world.address)
            await reader.readexactly(18)
            if speaks:
                writer.write(b"\0\0\0\3" + OptionHeader(OptionType.LIST, 0).pack())
                await reader.readexactly(20)
            greeted.append((reader, writer))
        with contextlib.suppress(asyncio.IncompleteReadError):
            await asyncio.wait_for(greeted[0][0].read(), 10)
        assert greeted[0][0].at_eof()
        await world.until(lambda: world.server.admission.count == 4)
        for _, writer in greeted:
            writer.close()


async def test_client_whose_ticket_has_expired_goes_for_a_new_one() -> None:
    async with World(most=2).running() as world:
        short = world.add("short")
        client = await world.go("short")
        await world.go()
        short.permission.lease.expires = 0
        assert (await (await world.go()).request(READ, 0, 1)).error == 0
        assert await client.at_end()


# The end of the server


async def test_stopping_server_finishes_what_runs_and_leaves_what_comes_to_the_next(world: World) -> None:
    held = world.remote.hold_back(WRITE)
    client = await world.go()
    running = client.send(WRITE, 0, data=b"abc")
    await asyncio.wait_for(held.reached.wait(), 10)
    stopping = asyncio.create_task(world.server.stop(10))
    await asyncio.sleep(0)
    client.send(READ, 0, 3)
    held.release()
    cookie, result = await client.receive()
    assert (cookie, result.error) == (running, 0)
    assert await client.at_end()
    await stopping
    assert world.content[:3] == b"abc"


async def test_stopping_server_does_not_wait_for_the_rest_of_a_request(world: World) -> None:
    client = await world.go()
    client.send(WRITE, 0, MiB, data=b"x")
    await client.writer.drain()
    stopping = asyncio.create_task(world.server.stop(30))
    assert await client.at_end()
    await asyncio.wait_for(stopping, 20)


async def test_stopping_server_waits_for_requests_although_it_was_idle_before(world: World) -> None:
    await (await world.go()).close()
    await world.until(lambda: not world.server.admission.count)
    held = world.remote.hold_back(WRITE)
    client = await world.go()
    client.send(WRITE, 0, data=b"abc")
    await asyncio.wait_for(held.reached.wait(), 10)
    stopping = asyncio.create_task(world.server.stop(10))
    await asyncio.wait({stopping}, timeout=0.1)
    assert not stopping.done()
    held.release()
    assert (await client.receive())[1].error == 0
    await stopping


async def test_stopping_server_tells_clients_in_the_negotiation(world: World) -> None:
    client = await world.connect()
    await client.ask(OptionType.STRUCTURED_REPLY)
    stopping = asyncio.create_task(world.server.stop(10))
    await asyncio.sleep(0)
    with pytest.raises(Refused) as e:
        await client.ask(OptionType.GO, info("disk"))
    assert e.value.reply == Reply.ERR_SHUTDOWN
    await client.ask(OptionType.ABORT)
    assert await client.at_end()
    await stopping


async def test_stopping_server_cuts_off_who_does_not_leave(world: World) -> None:
    held = world.remote.hold_back(READ)
    running = await world.go()
    running.send(READ, 0, 512)
    await asyncio.wait_for(held.reached.wait(), 10)
    silent = await world.connect()
    await world.server.stop(1.2)
    assert await silent.at_end()
    assert await running.at_end()
    held.release()


async def test_error_of_storage_while_stopping_is_answered(world: World) -> None:
    held = world.remote.hold_back(READ)
    client = await world.go()
    cookie = client.send(READ, 0, 512)
    await asyncio.wait_for(held.reached.wait(), 10)
    world.remote.refused[READ] = ErrorNumber.EIO
    stopping = asyncio.create_task(world.server.stop(10))
    held.release()
    assert (await client.receive())[0] == cookie
    await stopping


async def test_server_stops_with_clients_in_every_state(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def raw(data: bytes) -> Client:
        client = Client(*await asyncio.open_unix_connection(world.address))
        world.clients.append(client)
        await client.read(18)
        client.writer.write(data)
        return client

    held = world.remote.hold_back(WRITE)
    clients = [await raw(HANDSHAKE[:end]) for end in (0, 2, 4, 10, 20, 25, len(HANDSHAKE) - 1)]
    for data in (b"", REQUESTS[:10], REQUESTS[:100]):
        client = await world.go()
        client.writer.write(data)
        clients.append(client)
    unread = await world.go()
    unread.pause_reading()
    for _ in range(40):
        unread.send(READ, 0, MiB)
    busy = await world.go()
    busy.send(WRITE, 0, data=b"abc")
    await asyncio.wait_for(held.reached.wait(), 10)
    stopping = asyncio.create_task(world.server.stop(1.5))
    await asyncio.sleep(0)
    held.release()
    await stopping
    unread.resume_reading()
    for client in clients:
        await client.drop_all()
    assert (await busy.receive())[1].error == 0
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
