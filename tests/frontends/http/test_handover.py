# SPDX-License-Identifier: Apache-2.0
"""Connections on their way to a lane and back, in the test's own process, on a socket pair and a file."""

import asyncio
import select
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from imageio_daemon.frontends.http.connection import ServerConnection
from imageio_daemon.frontends.http.lane_service import LaneService
from imageio_daemon.frontends.http.routes import Routes
from imageio_daemon.frontends.http.server import HttpServer
from imageio_daemon.lanes.lane import Lane
from imageio_daemon.lanes.shared import MIN_LANE_MEMORY, Lanes
from imageio_daemon.net.connection_limit import ConnectionLimit
from imageio_daemon.storage.backend import Backend
from imageio_daemon.storage.file.backend import FileBackend
from imageio_daemon.storage.file.engine import Engine
from imageio_daemon.transfers.store import TransferStore
from imageio_daemon.transfers.ticket import Access, Ticket
from tests.support.polling import SOON, eventually, eventually_async

SIZE = 64 * 1024
#: Requests that a lane serves, and one that it gives back.
PLAIN = b"GET /images/disk HTTP/1.1\r\nHost: x\r\nRange: bytes=0-9\r\n\r\n"
UPLOAD = b"PUT /images/disk HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n"
OTHER = b"BREW /images/disk HTTP/1.1\r\nHost: x\r\n\r\n"


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
            Routes({}), inactivity_timeout=60, lanes=LaneService(self.store, self.lanes), limit=ConnectionLimit(9)
        )

    async def _open(self, ticket: Ticket) -> Backend:
        return await FileBackend.open(self.engine, ticket.path, writable=True)

    @property
    def connection(self) -> ServerConnection:
        """Return the only connection, as the server has it."""
        (connection,) = self.http._admission._connections
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
        await self.engine.release_loop()
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
