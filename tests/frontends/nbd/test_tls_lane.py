# SPDX-License-Identifier: Apache-2.0
"""C serves connections with TLS: records that come in pieces, are changed on their way, or end."""

import asyncio
import logging
import os
import random
import socket
import ssl
from collections.abc import AsyncIterator

import pytest

from imageio_daemon.nbdproto.constants import Command, OptionType
from imageio_daemon.nbdproto.messages import RequestHeader
from imageio_daemon.nbdproto.option_payloads import InfoRequest, OptionHeader
from imageio_daemon.net import connection_limit
from tests.frontends.nbd.conftest import MakeWorld
from tests.frontends.nbd.records import Records
from tests.frontends.nbd.test_ends import POINTS
from tests.frontends.nbd.world import REQUESTS, SIZE, MiB, World, lane_threads
from tests.support.nbd_payloads import SimpleReply
from tests.support.polling import SOON
from tests.support.tlsflood import FloodingClient

READ, WRITE, FLUSH, DISC = Command.READ, Command.WRITE, Command.FLUSH, Command.DISC
STARTTLS = b"\0\0\0\3" + OptionHeader(OptionType.STARTTLS, 0).pack()
GO = OptionHeader(OptionType.GO, 10).pack() + InfoRequest("disk", ()).pack()
#: What the server says before TLS, and to GO.
GREETING, ENTERED = 18 + 20, (20 + 12) + (20 + 14) + 20


@pytest.fixture
async def world(secure_world: MakeWorld) -> AsyncIterator[World]:
    async with secure_world() as running:
        yield running


async def enter(world: World) -> Records:
    """Connect and enter the transmission; all replies are simple ones."""
    assert world.trust is not None
    records = await Records.connect(world.address, world.trust)
    world.clients.append(records)
    records.writer.write(records.encrypt(GO))
    assert len(await records.read(ENTERED)) == ENTERED
    return records


def request(command: Command, cookie: int, offset: int = 0, length: int = 0, payload: bytes = b"") -> bytes:
    return RequestHeader(command, 0, cookie, offset, length or len(payload)).pack() + payload


async def test_connection_with_tls_is_served_by_a_lane(world: World) -> None:
    assert not lane_threads()
    await (await world.go()).request(FLUSH)
    assert lane_threads()
    await world.rest()
    await world.until(lambda: not lane_threads())


def enter_flooding(sock: socket.socket, address: str, version: ssl.TLSVersion) -> FloodingClient:
    """Connect and negotiate up to GO, whose answer is still to come."""
    sock.settimeout(SOON)
    sock.connect(address)
    sock.sendall(STARTTLS)
    received = b""
    while len(received) < GREETING:
        received += sock.recv(GREETING - len(received))
    client = FloodingClient(sock, version)
    sock.sendall(client.data_record(GO))
    return client


# Records


@pytest.mark.parametrize(("length", "piece"), [(500, 1), (5000, 13), (40_000, 1000), (40_000, 16_000)])
async def test_records_that_come_in_pieces_are_understood(world: World, length: int, piece: int) -> None:
    data = os.urandom(length)
    records = await enter(world)
    sent = records.encrypt(request(WRITE, 1, 3, payload=data))
    for start in range(0, len(sent), piece):
        records.writer.write(sent[start : start + piece])
        await asyncio.sleep(0)
    assert SimpleReply.unpack(await records.read(16)).cookie == 1
    assert world.content[: 3 + length] == bytes(3) + data


async def test_requests_that_share_records_are_all_answered(world: World) -> None:
    records = await enter(world)
    asked = b"".join(request(READ, cookie, cookie * 512, 512) for cookie in range(1, 200))
    records.writer.write(records.encrypt(asked))
    answers = await records.read(199 * (16 + 512))
    cookies = {SimpleReply.unpack(answers[i : i + 16]).cookie for i in range(0, len(answers), 16 + 512)}
    assert cookies == set(range(1, 200))


@pytest.mark.parametrize("seed", range(8))
async def test_record_that_was_changed_ends_the_connection_and_nothing_of_it_is_written(
    world: World, seed: int
) -> None:
    chance = random.Random(seed)
    records = await enter(world)
    sent = bytearray(records.encrypt(request(WRITE, 1, 0, payload=b"x" * 10_000)))
    sent[chance.randrange(5, len(sent))] ^= 1 << chance.randrange(8)
    records.writer.write(sent)
    await records.drain()
    await world.rest()
    assert world.content == bytes(SIZE)


async def test_clear_text_between_records_ends_the_connection(world: World) -> None:
    records = await enter(world)
    records.writer.write(request(WRITE, 1, 0, payload=b"x" * 512))
    await records.drain()
    await world.rest()
    assert world.content == bytes(SIZE)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_records_without_data_are_limited_in_the_transmission_too(world: World, version: ssl.TLSVersion) -> None:
    def flood(address: str) -> bool:
        with socket.socket(socket.AF_UNIX) as sock:
            client = enter_flooding(sock, address, version)
            sock.recv(MiB)
            client.send_all(client.idle_records(200))
            return client.is_cut()

    assert await asyncio.to_thread(flood, world.address)
    await world.rest()


async def test_keys_may_be_changed_between_requests(world: World) -> None:
    def talk(address: str) -> int:
        with socket.socket(socket.AF_UNIX) as sock:
            client = enter_flooding(sock, address, ssl.TLSVersion.TLSv1_3)
            for i in range(100):
                write = request(WRITE, i, 512 * i, payload=b"x" * 512)
                sock.sendall(client.idle_records(1) + client.data_record(write))
            sock.sendall(client.data_record(request(DISC, 0)))
            answers = b""
            while piece := sock.recv(MiB):
                answers += piece
        return len(answers)

    assert await asyncio.to_thread(talk, world.address)
    assert world.content[: 100 * 512] == b"x" * 100 * 512


# Ends


async def test_goodbye_is_followed_by_the_answers_and_a_farewell(world: World) -> None:
    records = await enter(world)
    asked = b"".join(request(READ, cookie, 0, 70_000) for cookie in range(4))
    records.writer.write(records.encrypt(asked + request(DISC, 9)) + records.farewell())
    assert len(await records.drain()) == 4 * (16 + 70_000)
    assert records.parted


async def test_farewell_is_a_goodbye(world: World) -> None:
    records = await enter(world)
    asked = b"".join(request(READ, cookie, 0, 70_000) for cookie in range(4))
    records.writer.write(records.encrypt(asked) + records.farewell())
    assert len(await records.drain()) == 4 * (16 + 70_000)
    assert records.parted


@pytest.mark.parametrize("farewell", [False, True])
async def test_end_anywhere_in_the_transmission_leaves_nothing(
    world: World, farewell: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for point in POINTS:
        records = await enter(world)
        sent = records.encrypt(REQUESTS[:point]) if point else b""
        records.writer.write(sent + records.farewell() if farewell else sent[: len(sent) - 7])
        records.writer.write_eof()
        await records.drain()
        assert records.parted or not farewell
        await world.rest()
    await world.until(lambda: not lane_threads())
    assert world.disk.status()["connections"] == 0
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_connection_that_is_cut_gets_no_farewell(world: World) -> None:
    records = await enter(world)
    (session,) = world.server.admission._connections
    session.abort("test")
    await records.drain()
    assert not records.parted


async def test_stopping_server_says_farewell(world: World) -> None:
    records = await enter(world)
    await world.server.stop(10)
    await records.drain()
    assert records.parted


# While TLS starts


async def starting(world: World) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(world.address)
    writer.write(STARTTLS)
    await reader.readexactly(GREETING)
    return reader, writer


async def test_oldest_client_whose_tls_starts_goes_for_a_new_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limit, "MAX_GREETING", 4)
    world.server.limit._strangers[connection_limit.Stage.GREETING].most = 4
    clients = [await starting(world) for _ in range(5)]
    async with asyncio.timeout(SOON):
        assert await clients[0][0].read() == b""
    await world.until(lambda: world.server.admission.count == 4)
    for _, writer in clients:
        writer.close()


async def test_stopping_server_does_not_wait_for_tls_to_start(world: World) -> None:
    reader, writer = await starting(world)
    async with asyncio.timeout(SOON):
        await world.server.stop(2 * SOON)
        assert await reader.read() == b""
    writer.close()
