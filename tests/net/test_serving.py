# SPDX-License-Identifier: Apache-2.0
"""Connections are accepted, and passed to their servers."""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
import uvloop

from imageio_daemon.net import connection_limit, tls_handshake
from imageio_daemon.net import serving as module
from imageio_daemon.net.connection_limit import ConnectionLimit, Stage
from imageio_daemon.net.serving import Acceptor, Serving
from imageio_daemon.net.tls_contexts import ServerTls, client_context
from imageio_daemon.net.tls_socket import TlsContext, TlsSocket
from tests.support.daemon import Certificates
from tests.support.polling import SOON


class Echo(asyncio.Protocol):
    def __init__(self, server: "EchoServer") -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.open.add(self)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.open.discard(self)

    def abort(self) -> None:
        self._transport.abort()


class EchoServer:
    """Answer with what was received."""

    def __init__(self) -> None:
        self.open: set[Echo] = set()
        self.refuses: Exception | None = None
        self.limit = ConnectionLimit(100)

    @property
    def connections(self) -> int:
        return len(self.open)

    def connection(self) -> Echo:
        if self.refuses is not None:
            raise self.refuses
        return Echo(self)

    async def start(self) -> None:
        """Do nothing."""

    async def finish(self, timeout: float) -> None:
        """Do nothing."""

    async def stop(self, timeout: float) -> None:
        for connection in list(self.open):
            connection.abort()
        while self.open:
            await asyncio.sleep(0.001)


class World:
    """A server behind a listening socket."""

    def __init__(self, serving: Serving, server: EchoServer) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.setblocking(False)
        self.serving = serving
        self.server = server
        self.address = self.listening.getsockname()
        self.acceptor = Acceptor(self.listening, serving, server, None)

    async def connect(self) -> "Client":
        client = Client(*await asyncio.open_connection(*self.address))
        await client.echo()
        return client


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def echo(self) -> bytes:
        """Return what the server answers."""
        self._writer.write(b"x\n")
        return await asyncio.wait_for(self._reader.readline(), SOON)

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    serving, server = Serving(), EchoServer()
    await serving.start([server])
    made = World(serving, server)
    yield made
    made.acceptor.close()
    await serving.stop(SOON)


async def test_many_connect_at_once(world: World) -> None:
    clients = await asyncio.gather(*(world.connect() for _ in range(40)))
    assert world.server.connections == 40
    for client in clients:
        await client.close()


async def test_stopping_ends_connections(world: World) -> None:
    clients = [await world.connect() for _ in range(4)]
    await world.serving.stop(SOON)
    for client in clients:
        assert await client._reader.read() == b""
        await client.close()


async def test_bug_in_a_protocol_is_told_and_costs_nobody_else(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.server.refuses = RuntimeError("a bug")
    broken = Client(*await asyncio.open_connection(*world.address))
    with contextlib.suppress(ConnectionError):
        assert await broken.echo() == b""
    world.server.refuses = None
    served = await world.connect()
    await served.close()
    await broken.close()
    assert "a bug" in caplog.text


# TLS


@pytest.fixture
async def arriving() -> AsyncIterator["Arriving"]:
    made = Arriving()
    yield made
    await made.serving.stop(SOON)
    for sock in made.clients:
        sock.close()


class Arriving:
    """Connections with TLS whose clients are silent."""

    def __init__(self) -> None:
        self.serving, self.server = Serving(), EchoServer()
        self.clients: list[socket.socket] = []
        self._secure = cast(ServerTls, SimpleNamespace(context=TlsContext(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))))

    @property
    def count(self) -> int:
        return len(self.serving._arrivals) + self.server.connections

    def connect(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ours.setblocking(False)
        self.clients.append(ours)
        self.serving.connect(theirs, "192.0.2.1", self.server, self._secure)
        return ours

    async def greet(self) -> socket.socket:
        """Connect, and have the handshake begun, if the client is to stay."""
        client = self.connect()
        client.send(b"\x16\x03\x01")
        async with asyncio.timeout(SOON):
            while any(arrival._place.stage is Stage.SILENT for arrival in self.serving._arrivals):
                await asyncio.sleep(0)
        return client

    async def until(self, count: int) -> None:
        async with asyncio.timeout(SOON):
            while self.count != count:
                await asyncio.sleep(0.001)


async def received(sock: socket.socket) -> bytes:
    async with asyncio.timeout(SOON):
        try:
            return await asyncio.get_running_loop().sock_recv(sock, 1000)
        except ConnectionResetError:  # what the client has sent was not read
            return b""


async def test_oldest_silent_connection_goes_for_a_new_one(arriving: Arriving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limit, "MAX_SILENT", 2)
    arriving.server.limit = ConnectionLimit(100)
    first, second, third = (arriving.connect() for _ in range(3))
    assert await received(first) == b""
    assert arriving.count == 2
    arriving.connect()
    assert await received(second) == b""
    with pytest.raises(BlockingIOError):
        third.recv(1)


async def test_connection_that_has_begun_its_handshake_does_not_go_for_silent_ones(
    arriving: Arriving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limit, "MAX_SILENT", 2)
    arriving.server.limit = ConnectionLimit(100)
    began = await arriving.greet()
    silent = [arriving.connect() for _ in range(3)]
    assert await received(silent[0]) == b""
    with pytest.raises(BlockingIOError):
        began.recv(1)


async def test_oldest_connection_in_its_handshake_goes_for_a_new_one(
    arriving: Arriving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limit, "MAX_GREETING", 2)
    arriving.server.limit = ConnectionLimit(100)
    clients = [await arriving.greet() for _ in range(3)]
    assert await received(clients[0]) == b""
    await arriving.until(2)


@pytest.mark.parametrize("speaks", [False, True])
async def test_handshake_that_takes_too_long_is_given_up(
    arriving: Arriving, monkeypatch: pytest.MonkeyPatch, speaks: bool
) -> None:
    monkeypatch.setattr(tls_handshake, "HANDSHAKE_TIMEOUT", 0.1)
    client = await arriving.greet() if speaks else arriving.connect()
    assert await received(client) == b""
    await arriving.until(0)


async def test_client_that_speaks_no_tls_is_closed(arriving: Arriving) -> None:
    client = arriving.connect()
    client.send(b"GET / HTTP/1.1\r\n\r\n")
    while await received(client):
        pass
    await arriving.until(0)


@pytest.mark.parametrize("speaks", [False, True])
async def test_stopping_closes_connections_that_are_not_made_yet(arriving: Arriving, speaks: bool) -> None:
    client = await arriving.greet() if speaks else arriving.connect()
    await arriving.serving.stop(SOON)
    assert await received(client) == b""
    assert arriving.count == 0


# A listening socket


class Refusing:
    """A listening socket whose accept fails as often as it is told, then takes one connection."""

    def __init__(self, *errors: int) -> None:
        self._errors = list(errors)
        self.wake, self._reading = socket.socketpair()
        self.accepted, self.peer = socket.socketpair()

    def fileno(self) -> int:
        return self._reading.fileno()

    def accept(self) -> tuple[socket.socket, object]:
        if self._errors:
            number = self._errors.pop(0)
            raise OSError(number, os.strerror(number))
        if not self._reading.recv(1):
            raise BlockingIOError
        return self.accepted, None

    def close(self) -> None:
        for sock in (self.wake, self._reading, self.peer):
            sock.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_accepting_goes_on_after_descriptors_or_memory_were_used_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    monkeypatch.setattr(module, "ACCEPT_PAUSE", 0.01)
    server = EchoServer()
    listening = Refusing(number, number)
    acceptor = Acceptor(cast(socket.socket, listening), Serving(), server, None)
    listening.wake.send(b"x")
    listening.wake.shutdown(socket.SHUT_WR)
    async with asyncio.timeout(SOON):
        while not server.open:
            await asyncio.sleep(0.001)
    assert caplog.text.count("cannot accept connections") == 1
    acceptor.close()
    await server.stop(SOON)


async def test_without_descriptors_a_stranger_is_closed_and_accepting_goes_on_at_once() -> None:
    server, closed = EchoServer(), list[str]()
    listening = Refusing(errno.EMFILE, errno.EMFILE)

    def relieve() -> bool:
        closed.append("one")
        return True

    acceptor = Acceptor(cast(socket.socket, listening), Serving(), server, None, relieve)
    listening.wake.send(b"x")
    listening.wake.shutdown(socket.SHUT_WR)
    async with asyncio.timeout(module.ACCEPT_PAUSE):
        while not server.open:
            await asyncio.sleep(0.001)
    assert closed == ["one"] * 2
    acceptor.close()
    await server.stop(SOON)


async def test_connection_that_was_given_up_before_it_was_accepted_is_no_error() -> None:
    server = EchoServer()
    listening = Refusing(errno.ECONNABORTED)
    acceptor = Acceptor(cast(socket.socket, listening), Serving(), server, None)
    listening.wake.send(b"x")
    listening.wake.shutdown(socket.SHUT_WR)
    async with asyncio.timeout(SOON):
        while not server.open:
            await asyncio.sleep(0.001)
    acceptor.close()
    await server.stop(SOON)


class CanceledThen(asyncio.Protocol):
    """Ends its making as soon as it can."""

    connecting: "asyncio.Task[object]"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connecting.cancel()


def _same(protocol: CanceledThen) -> CanceledThen:
    return protocol


def test_a_tls_connection_that_is_given_up_in_its_handshake_is_no_accident(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.certfile, certificates.keyfile)
    listening, tries = socket.create_server(("127.0.0.1", 0)), 20  # not each of them brings it about
    served = threading.Semaphore(0)

    def serve() -> None:
        for _ in range(tries):
            sock, _ = listening.accept()
            with sock, suppress(OSError):
                context.wrap_socket(sock, server_side=True).close()
            served.release()

    async def give_up() -> None:
        trusting = client_context(str(certificates.cafile))
        serving = Serving()
        for _ in range(tries):
            client = CanceledThen()
            connecting = asyncio.get_running_loop().create_connection(
                partial(_same, client), *listening.getsockname(), ssl=trusting, server_hostname="localhost"
            )
            client.connecting = asyncio.create_task(connecting)
            with pytest.raises(asyncio.CancelledError):
                await client.connecting
            assert await asyncio.to_thread(served.acquire, timeout=SOON)
        await serving.stop(SOON)

    serving = threading.Thread(target=serve)
    serving.start()
    with listening:
        uvloop.run(give_up())
        serving.join()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_an_accident_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    serving = Serving()
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await serving.stop(SOON)
    assert "ZeroDivisionError" in caplog.text


class HeldHandshake:
    """A handshake whose step waits for that of another one."""

    def __init__(self, together: threading.Barrier) -> None:
        self._together = together

    def handshake(self) -> int:
        self._together.wait(SOON)
        return 0


async def test_handshakes_need_no_new_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the start of one failed, the step would run later, when the descriptor may be that of another client."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    handshakes = tls_handshake.Handshakes(asyncio.get_running_loop())
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    held = cast(TlsSocket, HeldHandshake(threading.Barrier(2)))
    assert list(await asyncio.gather(handshakes._step(held), handshakes._step(held))) == [0, 0]
    handshakes.close()


async def test_handshakes_are_refused_where_there_are_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def start_one(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(RuntimeError):
        tls_handshake.Handshakes(asyncio.get_running_loop())
    started[0].join(SOON)
    assert not started[0].is_alive()
