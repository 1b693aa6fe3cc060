# SPDX-License-Identifier: Apache-2.0
"""What a connection has sent when it says so, on both event loops: only then is the memory used for something else."""

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from imageio_daemon.connectionlimit import ConnectionLimit
from imageio_daemon.frontends.http import fastlane
from imageio_daemon.frontends.http.app import HttpServer
from imageio_daemon.frontends.http.connection import Connection
from imageio_daemon.frontends.http.routes import Routes
from imageio_daemon.units import KiB, MiB
from tests.support.polling import eventually_async

#: Longest wait for anything that must happen, in seconds.
SOON = 10.0


def _pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * KiB)
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


def _taken_at_once() -> int:
    """Return how many bytes the kernel takes of a new connection before it is full."""
    ours, theirs = _pair()
    with ours, theirs:
        return theirs.send(bytes(4 * MiB))


@pytest.mark.parametrize("left", [None, 0, 1, 2])
@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "default"])
def test_memory_may_change_when_the_connection_is_drained(
    new_loop: Callable[[], asyncio.AbstractEventLoop], left: int | None
) -> None:
    """left: bytes that the kernel does not take at once; None: there is one byte in all."""
    length = 1 if left is None else _taken_at_once() + left
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(_received_of(length)) == b"x" * length


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "default"])
def test_an_answer_that_is_cancelled_keeps_its_memory_until_the_connection_is_lost(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(_connections_after_cancelling()) == 0


async def _connections_after_cancelling() -> int:
    """Cancel an answer that waits for its client, twice; return how many connections there are when it has ended."""
    loop = asyncio.get_running_loop()
    http = HttpServer(Routes({}), inactivity_timeout=60, limit=ConnectionLimit(1))
    ours, theirs = _pair()
    with ours:
        _, connection = await loop.connect_accepted_socket(lambda: Connection(http), theirs)
        assert http.connections == 1

        async def send() -> int:
            try:
                await fastlane._Answer(connection).write(memoryview(bytes(4 * MiB)))
            except asyncio.CancelledError:
                return http.connections
            raise AssertionError("everything was sent")

        sending = asyncio.create_task(send())
        await eventually_async(lambda: connection._wire.writing_paused)
        sending.cancel()
        loop.call_soon(sending.cancel)
        return await sending


async def _received_of(length: int) -> bytes:
    """Send so many x, which become y in memory as soon as they are sent."""
    loop = asyncio.get_running_loop()
    http = HttpServer(Routes({}), inactivity_timeout=60, limit=ConnectionLimit(1))
    ours, theirs = _pair()
    with ours:
        _, connection = await loop.connect_accepted_socket(lambda: Connection(http), theirs)
        memory = bytearray(b"x" * length)

        async def send() -> None:
            connection.write(memoryview(memory))
            await connection.drained()
            memory[:] = b"y" * length

        sending = asyncio.create_task(send())
        received = b""
        async with asyncio.timeout(SOON):
            while len(received) < length:
                received += await loop.sock_recv(ours, MiB)
            await sending
        connection.abort("test")
        return received
