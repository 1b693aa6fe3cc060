# SPDX-License-Identifier: Apache-2.0
"""Clients of one ticket that take memory and do not go on: those of other tickets keep half of their speed."""

import asyncio
import socket
import statistics
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from imageio_daemon.nbdproto.constants import Command
from tests.frontends.nbd.client import Client
from tests.support.daemon import Certificates, Daemon, Section
from tests.support.http_client import Connection, encode_request
from tests.support.images import Image, MiB, make_image

pytestmark = pytest.mark.alone  # rates are compared

SIZE = 256 * MiB
#: What a client moves to tell how fast it is, at once and in all.
PIECE = 2 * MiB
WORK = 32 * MiB
ROUNDS = 9
#: Seconds between the bytes of a client that sends slowly.
TRICKLE = 1.0


class World(NamedTuple):
    """A daemon, an image of which clients take memory, and another one.

    most: connections of those that do so by HTTP.
    """

    daemon: Daemon
    nbd: str
    hogs: Image
    others: Image
    most: int = 64

    async def export(self, image: Image) -> Client:
        """Return an NBD client in the transmission."""
        return await (await Client.connect(self.nbd)).go(image.ticket)


@contextmanager
def _running(certificates: Certificates, directory: Path) -> Iterator[World]:
    address = f"/tmp/nbd-{uuid.uuid4().hex[:8]}"
    nbd = {"enable": True, "port": -1, "socket": address}
    config: dict[str, Section] = {"nbd": nbd, "daemon": {"max_connections": 100}}
    with Daemon(certificates, config) as daemon:
        try:
            hogs, others = (make_image(daemon, directory)(size=SIZE, inactivity_timeout=60) for _ in range(2))
            yield World(daemon, address, hogs, others)
        finally:
            Path(address).unlink(missing_ok=True)


@pytest.fixture
def world(certificates: Certificates, tmp_path: Path) -> Iterator[World]:
    with _running(certificates, tmp_path) as world:
        yield world


# How fast a client is


def _http(world: World) -> None:
    with world.daemon.connect("unix") as connection:
        for at in range(0, WORK, PIECE):
            assert connection.put_at(world.others.url, at, bytes(PIECE)).status == 200
            assert connection.get(world.others.url, {"Range": f"bytes={at}-{at + PIECE - 1}"}).status == 206


async def _nbd(world: World) -> None:
    client = await world.export(world.others)
    for command in (Command.WRITE, Command.READ):
        for at in range(0, WORK, PIECE):
            client.send(command, at, PIECE, data=bytes(PIECE) if command == Command.WRITE else b"")
        assert not any(result.error for result in (await client.receive_all()).values())
    await client.close()


async def _http_in_thread(world: World) -> None:
    await asyncio.to_thread(_http, world)


CLIENTS = {"http": _http_in_thread, "nbd": _nbd}


async def _seconds(client: Callable[..., object], world: World) -> float:
    took = []
    for _ in range(ROUNDS):
        began = time.monotonic()
        await client(world)  # type: ignore[misc]
        took.append(time.monotonic() - began)
    return statistics.median(took)


# What takes memory


@contextmanager
def _requests(world: World, request: bytes) -> Iterator[list[Connection]]:
    """Send a request on many connections, on half of them after another one: then C has the connection."""
    first = encode_request("GET", world.hogs.url, {"Range": "bytes=0-0"})
    with ExitStack() as cleanup:
        connections = [cleanup.enter_context(world.daemon.connect("unix")) for _ in range(world.most)]
        for i, connection in enumerate(connections):
            connection.send(request if i % 2 else first + request)
        yield connections


@asynccontextmanager
async def unread_gets(world: World) -> AsyncIterator[None]:
    get = encode_request("GET", world.hogs.url, {"Range": f"bytes=0-{SIZE - 1}"})
    with _requests(world, get):
        yield


@asynccontextmanager
async def slow_puts(world: World) -> AsyncIterator[None]:
    head = {"Content-Range": f"bytes 0-{SIZE - 1}/*", "Content-Length": str(SIZE)}
    ends = threading.Event()
    with _requests(world, encode_request("PUT", world.hogs.url, head)) as connections:
        trickle = threading.Thread(target=_trickle, args=(connections, ends))
        trickle.start()
        try:
            yield
        finally:
            ends.set()
            trickle.join()


def _trickle(connections: list[Connection], ends: threading.Event) -> None:
    while not ends.wait(TRICKLE):
        for connection in connections:
            connection.sock.send(b"slowly", socket.MSG_DONTWAIT)


@asynccontextmanager
async def _exports(world: World, count: int, begin: Callable[[Client], None]) -> AsyncIterator[None]:
    async with AsyncExitStack() as cleanup:
        for _ in range(count):
            client = await world.export(world.hogs)
            cleanup.callback(client.reset)  # and so keep it: a writer that is collected closes its connection
            client.pause_reading()
            begin(client)
        yield


def unread_reads(world: World) -> AbstractAsyncContextManager[None]:
    def begin(client: Client) -> None:
        for i in range(64):
            client.send(Command.READ, i * PIECE, PIECE)

    return _exports(world, 12, begin)


def half_sent_writes(world: World) -> AbstractAsyncContextManager[None]:
    def begin(client: Client) -> None:
        client.writer.write(client.begin(Command.WRITE, 0, PIECE, 0, 1) + bytes(PIECE // 2))

    return _exports(world, 48, begin)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("hogs", [unread_gets, slow_puts, unread_reads, half_sent_writes])
async def test_others_keep_half_of_their_speed(
    world: World, client: str, hogs: Callable[[World], AbstractAsyncContextManager[None]]
) -> None:
    before = await _seconds(CLIENTS[client], world)
    async with hogs(world):
        await _seconds(CLIENTS[client], world)  # those who take memory begin with some work
        beside = await _seconds(CLIENTS[client], world)
    after = await _seconds(CLIENTS[client], world)
    assert beside <= 2 * max(before, after)  # others use the machine, too


@pytest.mark.parametrize("hogs", [unread_gets, slow_puts])
async def test_clients_that_pause_have_no_memory_meanwhile(
    certificates: Certificates, tmp_path: Path, hogs: Callable[[World], AbstractAsyncContextManager[None]]
) -> None:
    """There are more tickets than there is memory for pieces."""
    with _running(certificates, tmp_path) as world:
        async with AsyncExitStack() as pausing:
            for _ in range(40):
                hog = make_image(world.daemon, tmp_path)(of=world.hogs, inactivity_timeout=60)
                await pausing.enter_async_context(hogs(world._replace(hogs=hog, most=1)))
            await CLIENTS["nbd"](world)
