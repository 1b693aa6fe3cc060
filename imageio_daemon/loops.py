# SPDX-License-Identifier: Apache-2.0
"""Several event loops in one process: one in each of its threads, and connections go to the one that has the fewest.

One loop at a time runs Python code, but they receive, send and encrypt at the same time: that is done without the GIL.
What the loops share, and how, stands in transfers.py.
"""

import asyncio
import errno
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

import uvloop

from . import tls
from .connectionlimit import LOCAL, ConnectionLimit
from .sockets import BACKLOG
from .tlsarrival import TlsArrival
from .tlstransport import Pollers

log = logging.getLogger(__name__)

_T = TypeVar("_T")

#: Loops that are run if nobody says how many; more than a few take the GIL from each other.
MOST_BY_DEFAULT = 4
#: Errors of accept() that end by themselves, and how long it is left alone then, in seconds.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
ACCEPT_PAUSE = 1.0
#: Connections that are accepted in one turn of the loop, so that others are served while many come: 64 take 4 ms.
MOST_ACCEPTED = 64


def default_count() -> int:
    """Return how many loops suit this machine: one for two processors that we may use."""
    return max(1, min(len(os.sched_getaffinity(0)) // 2, MOST_BY_DEFAULT))


class Server(Protocol):
    """Who serves connections on one loop."""

    @property
    def connections(self) -> int:
        """Return how many there are now."""
        ...

    @property
    def limit(self) -> ConnectionLimit:
        """Return what counts them."""
        ...

    def connection(self) -> asyncio.BaseProtocol:
        """Return the protocol of a new one; a BufferedProtocol if it is one of TLS."""
        ...

    async def start(self) -> None:
        """Get ready."""
        ...

    async def stop(self, timeout: float) -> None:
        """Take no more requests, and wait at most timeout seconds for those that run."""
        ...


class ServingLoop:
    """A loop and the servers on it. Methods may be called in the first loop's thread only, if they don't say more."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.set_exception_handler(_report)
        self._loop = loop
        self._pollers: Pollers | None = None
        self._servers: list[Server] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._arrivals: set[TlsArrival] = set()
        self._none_arrives = asyncio.Event()
        # Each is changed by one thread only, so that neither needs a lock.
        self._handed_over = 0  # by the one that accepts
        self._made = 0  # by this loop's

    async def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on this loop, and return what it does."""
        if self._loop is asyncio.get_running_loop():
            return await coroutine
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    @property
    def connections(self) -> int:
        """Return how many connections the loop has; one that is just being made may count twice for a moment."""
        return self._being_made + sum(server.connections for server in self._servers)

    @property
    def _being_made(self) -> int:
        return self._handed_over - self._made

    async def start(self, servers: Iterable[Server]) -> None:
        """Start servers here."""
        await self.run(self._start())
        for server in servers:
            await self.run(server.start())
            self._servers.append(server)

    def hand_over(self, sock: socket.socket, address: str, server: Server, secure: tls.ServerTls | None) -> None:
        """Let one of the servers serve a connection that was accepted of this address."""
        self._handed_over += 1
        if self._loop is asyncio.get_running_loop():
            self._take(sock, address, server, secure)
        else:
            self._loop.call_soon_threadsafe(self._take, sock, address, server, secure)

    async def stop(self, timeout: float) -> None:
        """Stop the servers. No connection is handed over any more."""
        await self.run(self._stop(timeout))

    def _take(self, sock: socket.socket, address: str, server: Server, secure: tls.ServerTls | None) -> None:
        if secure is not None:
            arrival = TlsArrival(
                self._get_pollers(), sock, lambda: secure.context, server.connection, self._arrival_ended
            )
            self._arrivals.add(arrival)
            arrival.begin(server.limit, address)
            return
        task = self._loop.create_task(self._connect(sock, server))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def _arrival_ended(self, arrival: TlsArrival) -> None:
        self._arrivals.discard(arrival)
        self._made += 1
        if not self._arrivals:
            self._none_arrives.set()

    async def _connect(self, sock: socket.socket, server: Server) -> None:
        try:
            with ExitStack() as stack:
                stack.enter_context(sock)
                await self._loop.connect_accepted_socket(server.connection, sock)
                stack.pop_all()
        except OSError as e:
            log.debug("connection was not made: %s", e)
        finally:
            self._made += 1

    async def _start(self) -> None:
        self._get_pollers()  # not at the first connection, which may find no descriptor left

    def _get_pollers(self) -> Pollers:
        if self._pollers is None:
            self._pollers = Pollers(self._loop)
        return self._pollers

    async def _stop(self, timeout: float) -> None:
        self._none_arrives.clear()
        for arrival in list(self._arrivals):
            arrival.drop()
        if self._arrivals:
            await self._none_arrives.wait()
        # The others take a moment, and their connections end with their server.
        if self._connecting:
            await asyncio.wait(self._connecting)
        await asyncio.gather(*(server.stop(timeout) for server in self._servers))
        if self._pollers is not None:
            self._pollers.close()
            self._pollers = None


@asynccontextmanager
async def serving_loops(count: int) -> AsyncIterator[list[ServingLoop]]:
    """Yield the loop that runs and count - 1 more, each in a thread of its own until the end of the block."""
    threads: list[_LoopThread] = []
    try:
        for number in range(2, count + 1):
            threads.append(_LoopThread(f"loop-{number}"))
        yield [ServingLoop(asyncio.get_running_loop()), *(ServingLoop(thread.loop) for thread in threads)]
    finally:
        for thread in threads:
            await thread.stop()


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report what went wrong in a callback. A TLS connection that we gave up while it was made is no accident.

    uvloop closes its transport at once, and after that still sends the end of the handshake (uvloop 0.23).
    """
    if "SSL protocol" in context.get("message", "") and "handler is closed" in str(context.get("exception")):
        log.debug("a TLS connection was given up in its handshake")
    else:
        loop.default_exception_handler(context)


class _LoopThread:
    """A thread that runs a loop until it is told to stop; tasks that are left then are cancelled."""

    def __init__(self, name: str) -> None:
        self.loop = uvloop.new_event_loop()
        self._stop = asyncio.Event()  # of that loop
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    async def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._stop.wait())


class Endpoint(NamedTuple):
    """Who serves the connections of a listening socket that go to a loop."""

    loop: ServingLoop
    server: Server


class Listener(Protocol):
    """What accepts the connections of a listening socket."""

    def close(self) -> None:
        """Accept no more."""
        ...


async def listen(sock: socket.socket, endpoints: Sequence[Endpoint], secure: tls.ServerTls | None) -> Listener:
    """Accept connections on this loop, the first one's.

    Where nothing has to be chosen, neither a loop nor a TLS context, the loop does it by itself: that takes 0.05 ms of
    processor time for each connection, an Acceptor 0.075.
    """
    if len(endpoints) > 1 or secure is not None:
        return Acceptor(sock, endpoints, secure)
    server = endpoints[0].server
    # It listens again, with 100 if it is not told.
    return await asyncio.get_running_loop().create_server(server.connection, sock=sock, backlog=BACKLOG)


class Acceptor:
    """Accept the connections of a listening socket, each for the endpoint whose loop has the fewest.

    Among those that have as many, the first. secure: its context is the one of the moment of each connection.
    """

    def __init__(self, sock: socket.socket, endpoints: Sequence[Endpoint], secure: tls.ServerTls | None) -> None:
        self._socket = sock
        self._endpoints = endpoints
        self._secure = secure
        self._loop = asyncio.get_running_loop()
        self._paused: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        """Accept no more."""
        if self._paused is not None:
            self._paused.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _listen(self) -> None:
        self._paused = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(MOST_ACCEPTED):
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as e:
                if e.errno not in _EXHAUSTED:
                    raise
                log.error("cannot accept connections: %s", e.strerror)
                self._loop.remove_reader(self._socket)
                self._paused = self._loop.call_later(ACCEPT_PAUSE, self._listen)
                return
            sock.setblocking(False)
            loop, server = min(self._endpoints, key=lambda endpoint: endpoint.loop.connections)
            loop.hand_over(sock, address[0] if isinstance(address, tuple) else LOCAL, server, self._secure)
