# SPDX-License-Identifier: Apache-2.0
import asyncio
import contextlib
import errno
import functools
import os
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from imageio_daemon.net import poller
from imageio_daemon.net.poller import READABLE, Poller
from imageio_daemon.net.tls_handshake import Handshakes
from imageio_daemon.net.tls_socket import WANTS_INPUT, TlsSocket
from imageio_daemon.net.tls_transport import TlsTransport, detached
from imageio_daemon.units import KiB, MiB
from tests.support.daemon import Certificates
from tests.support.polling import SOON
from tests.support.tls import server_context


@pytest.fixture(params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy], ids=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    policy: asyncio.AbstractEventLoopPolicy = request.param()
    return policy


class Recorder(asyncio.BufferedProtocol):
    """Keep what comes, and what happens."""

    def __init__(self) -> None:
        self.transport: TlsTransport
        self.received = bytearray()
        self.events: list[object] = []
        self.changed = asyncio.Event()
        self.bug: Exception | None = None
        self._memory = memoryview(bytearray(16 * KiB))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsTransport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._memory

    def buffer_updated(self, nbytes: int) -> None:
        if self.bug is not None:
            raise self.bug
        self.received += self._memory[:nbytes]
        self.changed.set()

    def eof_received(self) -> None:
        self._note("eof")

    def pause_writing(self) -> None:
        self._note("pause")

    def resume_writing(self) -> None:
        self._note("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self._note(exc)

    def _note(self, event: object) -> None:
        self.events.append(event)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class World:
    """A server's side with our transport, a client's with asyncio's."""

    def __init__(self, certificates: Certificates) -> None:
        self.context = server_context(certificates)
        self.client = ssl.create_default_context(cafile=certificates.cafile)
        self.client.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF  # an end without a farewell is an error
        self.handshakes = Handshakes(asyncio.get_running_loop())
        self.protocol = Recorder()
        self.sock: socket.socket

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, and remember the client's socket."""
        ours, self.sock = await _tcp_pair()
        making = asyncio.create_task(self.handshakes.shake(ours, self.context, lambda: self.protocol))
        streams = await asyncio.open_connection(sock=self.sock, ssl=self.client, server_hostname="localhost")
        await making
        return streams

    async def connect_patient(self) -> ssl.SSLSocket:
        """Connect with a socket that blocks."""
        ours, theirs = await _tcp_pair()
        theirs.settimeout(SOON)
        making = asyncio.create_task(self.handshakes.shake(ours, self.context, lambda: self.protocol))
        client = await asyncio.to_thread(
            self.client.wrap_socket, theirs, server_hostname="localhost", suppress_ragged_eofs=False
        )
        await making
        return client


def _read_to_the_end(client: ssl.SSLSocket) -> bytes:
    data = bytearray()
    with client:
        while piece := client.recv(MiB):
            data += piece
    return bytes(data)


async def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        theirs = socket.create_connection(listening.getsockname(), SOON)
        ours, _ = listening.accept()
    for sock in (ours, theirs):
        sock.setblocking(False)
    return ours, theirs


@pytest.fixture
async def world(certificates: Certificates) -> AsyncIterator[World]:
    world = World(certificates)
    yield world
    world.protocol.transport.abort()
    await asyncio.sleep(0)
    world.handshakes.close()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def streams(world: World) -> AsyncIterator[Streams]:
    reader, writer = await world.connect()
    yield reader, writer
    writer.transport.abort()
    await asyncio.sleep(0)


# Data


async def test_all_that_is_sent_is_received(world: World, streams: Streams) -> None:
    _, writer = streams
    data = os.urandom(3 * MiB + 5)
    writer.write(data)
    await world.protocol.until(lambda: len(world.protocol.received) == len(data))
    assert world.protocol.received == data


async def test_all_that_is_written_is_sent_though_the_reader_is_slow(world: World, streams: Streams) -> None:
    reader, _ = streams
    data = os.urandom(24 * MiB)
    world.protocol.transport.write(data)
    assert world.protocol.events == ["pause"]
    assert 0 < world.protocol.transport.get_write_buffer_size() < len(data)
    async with asyncio.timeout(SOON):
        assert await reader.readexactly(len(data)) == data
    await world.protocol.until(lambda: world.protocol.events == ["pause", "resume"])
    assert world.protocol.transport.get_write_buffer_size() == 0


async def test_what_is_written_behind_a_full_socket_keeps_its_order(world: World, streams: Streams) -> None:
    reader, _ = streams
    first, second = os.urandom(24 * MiB), bytearray(b"behind")
    world.protocol.transport.write(first)
    world.protocol.transport.write(second)
    second[:] = b"______"
    async with asyncio.timeout(SOON):
        assert await reader.readexactly(len(first)) == first
        assert await reader.readexactly(6) == b"behind"
    assert world.protocol.events[0] == "pause"


async def test_small_write_holds_nothing(world: World, streams: Streams) -> None:
    reader, _ = streams
    world.protocol.transport.write(b"hello")
    assert world.protocol.events == []
    async with asyncio.timeout(SOON):
        assert await reader.readexactly(5) == b"hello"


async def test_nothing_is_received_while_reading_is_paused(world: World, streams: Streams) -> None:
    _, writer = streams
    transport = world.protocol.transport
    writer.write(b"first")
    await world.protocol.until(lambda: world.protocol.received == b"first")
    transport.pause_reading()
    assert not transport.is_reading()
    writer.write(b", second")
    await writer.drain()
    for _ in range(20):
        await asyncio.sleep(0)
    assert world.protocol.received == b"first"
    transport.resume_reading()
    await world.protocol.until(lambda: world.protocol.received == b"first, second")


async def test_bytes_that_the_socket_no_longer_has_are_received_after_a_pause(world: World, streams: Streams) -> None:
    _, writer = streams
    transport, protocol = world.protocol.transport, world.protocol
    real = protocol.buffer_updated

    def pause_in_the_middle(nbytes: int) -> None:
        real(nbytes)
        transport.pause_reading()

    protocol.buffer_updated = pause_in_the_middle  # type: ignore[method-assign]
    protocol._memory = memoryview(bytearray(4))
    writer.write(b"head" + b"body")  # one record
    await protocol.until(lambda: protocol.received == b"head")
    transport.resume_reading()
    await protocol.until(lambda: protocol.received == b"headbody")


async def test_short_writes_do_not_wait_for_each_other(world: World, streams: Streams) -> None:
    del streams
    sock = world.protocol.transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_connection_that_cannot_be_watched_is_told_its_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no more watches")

    class Refused(Recorder):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            monkeypatch.setattr(world.handshakes.poller, "watch", refuse)

    world.protocol = Refused()
    (await world.connect_patient()).close()
    await world.protocol.until(lambda: bool(world.protocol.events))
    assert isinstance(world.protocol.events[0], OSError)


# Ends


async def test_close_sends_what_waits_and_a_farewell(world: World) -> None:
    client = await world.connect_patient()
    data = os.urandom(24 * MiB)
    world.protocol.transport.write(data)
    world.protocol.transport.close()
    world.protocol.transport.write(b"nobody reads this")
    assert world.protocol.transport.is_closing()
    assert await asyncio.to_thread(_read_to_the_end, client) == data
    await world.protocol.until(lambda: world.protocol.events == ["pause", None])


async def test_last_bytes_reach_a_peer_that_still_sends(world: World) -> None:
    client = await world.connect_patient()
    world.protocol.transport.pause_reading()
    await asyncio.to_thread(client.sendall, bytes(256 * KiB))
    world.protocol.transport.write(b"that is too much")
    world.protocol.transport.close()
    await asyncio.to_thread(client.sendall, bytes(256 * KiB))
    assert await asyncio.to_thread(_read_to_the_end, client) == b"that is too much"


async def test_abort_is_no_farewell(world: World) -> None:
    client = await world.connect_patient()
    world.protocol.transport.write(b"half")
    world.protocol.transport.abort()
    with pytest.raises(ssl.SSLError):
        await asyncio.to_thread(_read_to_the_end, client)


async def test_abort_lets_go_of_what_waits(world: World, streams: Streams) -> None:
    reader, _ = streams
    memory = bytearray(24 * MiB)
    world.protocol.transport.write(memoryview(memory))
    world.protocol.transport.abort()
    memory.clear()  # BufferError if somebody refers to it
    await world.protocol.until(lambda: world.protocol.events == ["pause", None])
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        async with asyncio.timeout(SOON):
            await reader.readexactly(len(memory) or 24 * MiB)


async def test_farewell_of_the_peer_ends_the_connection(world: World, streams: Streams) -> None:
    _, writer = streams
    writer.close()
    await world.protocol.until(lambda: world.protocol.events == ["eof", None])


async def test_farewell_that_comes_with_the_last_bytes_ends_the_connection(world: World) -> None:
    client = await world.connect_patient()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)  # until the kernel sends what it has, after 200 ms
    client.sendall(b"hello")
    sock = await asyncio.to_thread(client.unwrap)  # says farewell, and waits for the other one
    sock.close()
    await world.protocol.until(lambda: world.protocol.events == ["eof", None])
    assert world.protocol.received == b"hello"


async def test_idle_connection_notices_a_reset(world: World, streams: Streams) -> None:
    del streams
    world.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), world.sock.fileno())  # closed, though the client's loop has it
    await world.protocol.until(lambda: len(world.protocol.events) == 1)
    assert isinstance(world.protocol.events[0], ConnectionResetError)


async def test_write_to_a_peer_that_is_gone_is_the_end(world: World, streams: Streams) -> None:
    _, writer = streams
    world.protocol.transport.pause_reading()
    writer.transport.abort()
    async with asyncio.timeout(SOON):
        while not world.protocol.transport.is_closing():
            world.protocol.transport.write(bytes(MiB))
            await asyncio.sleep(0)
    await world.protocol.until(lambda: isinstance(world.protocol.events[-1], OSError))


async def test_bug_of_the_protocol_is_told_and_ends_its_connection(world: World, streams: Streams) -> None:
    _, writer = streams
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    world.protocol.bug = RuntimeError("a bug")
    writer.write(b"x")
    await world.protocol.until(lambda: world.protocol.events == [world.protocol.bug])
    assert [context["exception"] for context in told] == [world.protocol.bug]


@pytest.mark.parametrize("sizes", [(20, 16 * MiB, 20, 30, 64 * KiB), (16 * MiB, MiB), (1, 2, 3), ()])
async def test_pieces_arrive_in_order_and_long_ones_are_not_copied(
    world: World, streams: Streams, sizes: tuple[int, ...]
) -> None:
    reader, _ = streams
    pieces = [memoryview(os.urandom(size)) for size in sizes]
    world.protocol.transport.writelines(pieces)
    held = [piece.obj for piece in world.protocol.transport._unsent if isinstance(piece, memoryview)]
    assert {id(whole) for whole in held} <= {id(piece.obj) for piece in pieces}
    assert bool(held) == (16 * MiB in sizes)  # more than the socket takes
    async with asyncio.timeout(SOON):
        assert await reader.readexactly(sum(sizes)) == b"".join(pieces)


async def test_another_protocol_takes_over(world: World, streams: Streams) -> None:
    _, writer = streams
    other = Recorder()
    world.protocol.transport.set_protocol(other)
    assert world.protocol.transport.get_protocol() is other
    writer.write(b"x")
    await other.until(lambda: other.received == b"x")


# Giving it away


async def test_what_was_received_goes_with_the_tls(world: World) -> None:
    client = await world.connect_patient()
    client.sendall(b"one")
    await world.protocol.until(lambda: world.protocol.received == b"one")
    world.protocol.transport.pause_reading()
    client.sendall(b"two")
    sock, tls = world.protocol.transport.detach()
    memory = memoryview(bytearray(10))
    while (count := tls.readinto(memory)) == WANTS_INPUT:
        await asyncio.sleep(0)
    assert bytes(memory[:count]) == b"two"
    assert tls.write(b"three") == 5
    assert client.recv(10) == b"three"
    tls.end()
    sock.close()
    assert await asyncio.to_thread(_read_to_the_end, client) == b""
    assert bytes(world.protocol.received) == b"one"
    assert world.protocol.events == []


async def test_transport_does_nothing_to_what_it_gave_away(world: World) -> None:
    client = await world.connect_patient()
    transport = world.protocol.transport
    sock, tls = transport.detach()
    transport.write(b"nobody sends this")
    transport.resume_reading()
    transport.close()
    transport.abort()
    await asyncio.sleep(0)
    assert transport.is_closing()
    assert tls.write(b"alive") == 5
    assert client.recv(10) == b"alive"
    assert world.protocol.events == []
    sock.close()
    client.close()


async def test_connection_that_has_ended_cannot_be_given_away(world: World, streams: Streams) -> None:
    del streams
    world.protocol.transport.abort()
    with pytest.raises(ConnectionAbortedError):
        world.protocol.transport.detach()


async def test_what_waits_to_be_sent_cannot_be_given_away(world: World, streams: Streams) -> None:
    del streams
    world.protocol.transport.write(bytes(24 * MiB))
    with pytest.raises(RuntimeError, match="holds something"):
        world.protocol.transport.detach()


async def test_transport_of_the_loop_gives_a_copy_of_its_socket() -> None:
    ours, theirs = await _tcp_pair()
    transport, _ = await asyncio.get_running_loop().connect_accepted_socket(asyncio.Protocol, ours)
    transport.pause_reading()
    sock, tls = detached(transport)
    assert tls is None
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    theirs.setblocking(True)
    theirs.sendall(b"for you")
    with sock, theirs:
        assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 10), SOON) == b"for you"
        sock.sendall(b"alive")
        assert theirs.recv(10) == b"alive"


# Handshakes


async def test_cancelled_handshake_leaves_the_socket_alone(certificates: Certificates) -> None:
    world = World(certificates)
    ours, theirs = await _tcp_pair()
    with ours, theirs:
        task = asyncio.create_task(world.handshakes.shake(ours, world.context, Recorder))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        theirs.send(b"x")
        await asyncio.sleep(0)
        assert ours.recv(1) == b"x"
    world.handshakes.close()


class LongStep:
    """A step of a handshake, which goes on when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        step = TlsSocket.handshake

        def long(tls: TlsSocket) -> int:
            self.begun.set()
            self.go_on.wait(SOON)
            return step(tls)

        monkeypatch.setattr(TlsSocket, "handshake", long)


async def test_steps_of_a_handshake_do_not_hold_the_loop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    step = LongStep(monkeypatch)
    connecting = asyncio.create_task(world.connect())
    async with asyncio.timeout(SOON):
        while not step.begun.is_set():
            await asyncio.sleep(0.001)  # the loop turns
    step.go_on.set()
    _, writer = await connecting
    writer.write(b"x")
    await world.protocol.until(lambda: world.protocol.received == b"x")
    writer.transport.abort()
    await world.protocol.until(lambda: bool(world.protocol.events))


async def test_cancelled_handshake_ends_after_the_step_that_runs(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, step = World(certificates), LongStep(monkeypatch)
    ours, theirs = await _tcp_pair()
    with ours, theirs:
        task = asyncio.create_task(world.handshakes.shake(ours, world.context, Recorder))
        await asyncio.to_thread(step.begun.wait, SOON)
        for _ in range(3):
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=0.01)
            assert not done
        step.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    world.handshakes.close()


# The poller


async def test_socket_is_read_until_its_peer_ends() -> None:
    watching = Poller(asyncio.get_running_loop())
    ours, theirs = await _tcp_pair()
    watching.linger(ours)
    theirs.setblocking(True)
    assert await asyncio.to_thread(theirs.recv, 1) == b""
    await asyncio.to_thread(theirs.sendall, bytes(MiB))
    theirs.close()
    async with asyncio.timeout(SOON):
        while ours.fileno() != -1:
            await asyncio.sleep(0)
    watching.close()


async def test_socket_is_closed_at_once_when_nothing_is_watched_any_more() -> None:
    watching = Poller(asyncio.get_running_loop())
    watching.close()
    ours, theirs = await _tcp_pair()
    watching.linger(ours)
    assert ours.fileno() == -1
    theirs.close()


async def test_socket_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "LINGER", 0.01)
    watching = Poller(asyncio.get_running_loop())
    ours, theirs = await _tcp_pair()
    watching.linger(ours)
    async with asyncio.timeout(SOON):
        while ours.fileno() != -1:
            await asyncio.sleep(0)
    theirs.close()
    watching.close()


async def test_oldest_socket_goes_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "MOST_LINGERING", 1)
    watching = Poller(asyncio.get_running_loop())
    pairs = [await _tcp_pair() for _ in range(2)]
    for ours, _ in pairs:
        watching.linger(ours)
    assert [ours.fileno() == -1 for ours, _ in pairs] == [True, False]
    watching.close()
    assert pairs[1][0].fileno() == -1
    for _, theirs in pairs:
        theirs.close()


async def test_socket_that_is_reset_is_closed() -> None:
    watching = Poller(asyncio.get_running_loop())
    ours, theirs = await _tcp_pair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    theirs.close()
    watching.linger(ours)
    assert ours.fileno() == -1
    watching.close()


async def test_socket_that_cannot_be_watched_is_closed() -> None:
    watching = Poller(asyncio.get_running_loop())
    ours, theirs = await _tcp_pair()
    watching._epoll.register(ours.fileno())  # so that no second time is possible
    watching.linger(ours)
    assert ours.fileno() == -1
    watching.close()
    theirs.close()


async def test_one_callback_may_end_another_watch() -> None:
    watching = Poller(asyncio.get_running_loop())
    pairs = [await _tcp_pair() for _ in range(2)]
    called: list[int] = []

    def end_both(fd: int) -> None:
        called.append(fd)
        for ours, _ in pairs:
            watching.forget(ours.fileno())

    for ours, theirs in pairs:
        watching.watch(ours.fileno(), READABLE, functools.partial(end_both, ours.fileno()))
        theirs.send(b"x")
    async with asyncio.timeout(SOON):
        while not called:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(called) == 1
    watching.close()
    for pair in pairs:
        for sock in pair:
            sock.close()
