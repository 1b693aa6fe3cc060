# SPDX-License-Identifier: Apache-2.0
"""Connections on their way to a lane and back, in the test's own process, on a socket pair and a file."""

import asyncio
import errno
import select
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from aiohttp import web

from imageio_daemon.errors import Canceled
from imageio_daemon.frontends.http.connection.connection import ServerConnection
from imageio_daemon.frontends.http.connection.lane_service import LaneService
from imageio_daemon.frontends.http.request import carry_out, exchange_of
from imageio_daemon.frontends.http.routes import Resource, Routes
from imageio_daemon.frontends.http.server import HttpServer
from imageio_daemon.lanes.http import HttpTerms, Instruction
from imageio_daemon.lanes.lane import Lane
from imageio_daemon.lanes.shared import MIN_LANE_MEMORY, Lanes
from imageio_daemon.net.connection_limit import ConnectionLimit
from imageio_daemon.storage.backend import Backend
from imageio_daemon.storage.engine import Engine
from imageio_daemon.storage.file import FileBackend
from imageio_daemon.transfers.store import TransferStore
from imageio_daemon.transfers.ticket import Access, Ticket
from tests.support.polling import SOON, eventually, eventually_async

SIZE = 64 * 1024
#: Requests that a lane serves, and one that it gives back.
PLAIN = b"GET /images/disk HTTP/1.1\r\nHost: x\r\nRange: bytes=0-9\r\n\r\n"
UPLOAD = b"PUT /images/disk HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n"
OTHER = b"BREW /images/disk HTTP/1.1\r\nHost: x\r\n\r\n"
#: Requests that Python decides, and an answer.
CHUNKED = b"PUT /images/disk HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
DECIDED = b"GET /images/disk?decide HTTP/1.1\r\nHost: x\r\n\r\n"
DONE = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class World:
    """A server whose connections are handed over to lanes, and a ticket `disk`."""

    def __init__(self, image: Path) -> None:
        self.engine = Engine(2)
        self.lanes = Lanes(self.engine, MIN_LANE_MEMORY)
        self.store = TransferStore(self._open, most_tickets=9, most_connections=9)
        self.disk = self.store.add(
            Ticket(
                ticket_id="disk",
                url=f"file://{image}",
                size=SIZE,
                ops=(Access.WRITE,),
                timeout=300,
                inactivity_timeout=60,
            )
        )
        self.http = HttpServer(
            Routes({"/images/{}": Resource({"PUT": self._put, "GET": self._get}, ("GET", "PUT"))}),
            inactivity_timeout=60,
            lanes=LaneService(self.store, self.lanes),
            limit=ConnectionLimit(9),
        )

    async def _put(self, request: web.Request) -> web.StreamResponse:
        """Have the body written at 5, which is not what a plain request asks for."""
        return await self._carry_out(request, Instruction(True, 5, None, 200, DONE, body=None))

    async def _get(self, request: web.Request) -> web.StreamResponse:
        """Answer with the first bytes, and keep the connection."""
        answer = DONE.replace(b"0\r\n", b"10\r\n")
        return await self._carry_out(request, Instruction(False, 0, 10, 200, answer))

    async def _carry_out(self, request: web.Request, instruction: Instruction) -> web.StreamResponse:
        exchange_of(request).use(self.disk)
        return await carry_out(request, self.disk, instruction, is_last=instruction.writes)

    async def _open(self, ticket: Ticket) -> Backend:
        return await FileBackend.open(self.engine, ticket.path, writable=True)

    @property
    def connection(self) -> ServerConnection:
        """Return the only connection, as the server has it."""
        (connection,) = self.http.admission._connections
        return cast(ServerConnection, connection)

    @property
    def lane(self) -> Lane:
        """Return the only lane."""
        (lane,) = self.lanes.alive
        return cast(Lane, lane)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[socket.socket]:
        """Connect a client whose connection a lane has, which rests after its first request."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(self.http.connection, theirs)
        with ours:
            await loop.sock_sendall(ours, PLAIN)
            async with asyncio.timeout(SOON):
                answer = b""
                while not answer.endswith(bytes(10)):
                    answer += await loop.sock_recv(ours, SIZE)
            yield ours

    async def stop(self) -> None:
        await self.http.stop(SOON)
        await self.store.close()
        assert not self.lanes.alive
        await self.engine.release()
        assert not self.engine.stop(SOON)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    image = tmp_path / "image"
    image.write_bytes(bytes(SIZE))
    world = World(image)
    await world.http.start()
    yield world
    await world.stop()


async def received(client: socket.socket) -> bytes:
    """Return what the client receives until the server closes."""
    data = b""
    async with asyncio.timeout(SOON):
        while more := await asyncio.get_running_loop().sock_recv(client, SIZE):
            data += more
    return data


async def test_connection_that_is_dropped_when_its_lane_has_just_ended_is_cut(world: World) -> None:
    async with world.client() as client:
        client.send(OTHER)
        eventually(lambda: world.lane.stats.ended, "the lane ends")  # the loop, which this blocks, does not know yet
        world.connection._drop()
        assert await received(client) == b""


async def test_upload_whose_connection_breaks_renews_the_ticket(world: World) -> None:
    async with world.client() as client:
        client.send(UPLOAD)
        eventually(lambda: select.select([client], [], [], 0)[0], "the client is told to send its body")
        world.disk.permission.lease.expires = 0
    # Its end of the socket was closed with 100 Continue unread, which resets the connection.
    await eventually_async(lambda: not world.lanes.alive)
    assert world.disk.permission.valid


async def test_body_in_chunks_is_written_however_it_comes(world: World, tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with world.client() as client:
        await loop.sock_sendall(client, CHUNKED + b"3\r\nabc\r\n4;x=y\r")
        await eventually_async(lambda: world.disk.running == 1)
        for piece in (b"\nde", b"fg\r\n0\r\nTrailer: 1\r", b"\n\r\n"):
            await loop.sock_sendall(client, piece)
        assert await received(client) == DONE
    assert (tmp_path / "image").read_bytes()[:14] == bytes(5) + b"abcdefg" + bytes(2)


async def test_connection_goes_on_after_what_was_carried_out(world: World) -> None:
    async with world.client() as client:
        client.send(DECIDED + DECIDED + PLAIN)
        answers = b""
        async with asyncio.timeout(SOON):
            while answers.count(b"HTTP/1.1 20") < 3 or not answers.endswith(bytes(10)):
                answers += await asyncio.get_running_loop().sock_recv(client, SIZE)
    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert answers.count(b"HTTP/1.1 206 ") == 1


async def test_request_is_unavailable_where_no_descriptor_is_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> int:
        raise OSError(24, "Too many open files")

    async with world.client() as client:
        monkeypatch.setattr("imageio_daemon.lanes.lane.os.dup", refuse)
        client.send(DECIDED)
        assert (await received(client)).startswith(b"HTTP/1.1 503 ")
    assert not world.lanes.places.taken


async def test_request_is_unavailable_where_no_thread_is_left(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.client() as client:
        monkeypatch.setattr(HttpTerms, "start", lambda *_: -errno.EAGAIN)
        client.send(DECIDED)
        assert (await received(client)).startswith(b"HTTP/1.1 503 ")
    assert not world.lanes.places.taken


async def test_request_is_refused_whose_image_was_closed_while_it_waited(world: World) -> None:
    async with world.client() as client:
        client.send(OTHER)  # ends the lane
        await eventually_async(lambda: not world.lanes.alive)
        service = LaneService(world.store, world.lanes)
        await world.disk._image.close()
        with pytest.raises(Canceled):
            service.start(world.connection._requests.exchange, world.connection._transport, world.disk, b"")
