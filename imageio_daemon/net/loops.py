# SPDX-License-Identifier: Apache-2.0
"""Several event loops in one process, each in a thread. A connection goes to the loop that has the fewest.

One thread at a time runs Python code, but system calls and encryption release the GIL and run in parallel. State that
loops share is thread-safe and holds no asyncio primitive; most of it is in transfers/.
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

from . import tls_contexts
from .connection_limit import LOCAL, ConnectionLimit
from .listening import BACKLOG
from .tls_arrival import TlsArrival
from .tls_handshake import Pollers

log = logging.getLogger(__name__)

_T = TypeVar("_T")

#: The largest default number of loops. More of them only wait for the GIL.
MOST_BY_DEFAULT = 4
#: Errors of accept(2) that pass, and the seconds until it is tried again.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
ACCEPT_PAUSE = 1.0
#: Connections that are accepted in one iteration of the loop, so that others are served in between: 64 take 4 ms.
MOST_ACCEPTED = 64


def default_count() -> int:
    """Return the default number of loops: one for two processors of this process's affinity mask, 1 to 4."""
    return max(1, min(len(os.sched_getaffinity(0)) // 2, MOST_BY_DEFAULT))


class Server(Protocol):
    """The server of connections on one loop."""

    @property
    def connections(self) -> int:
        """Return the number of connections."""
        ...

    @property
    def limit(self) -> ConnectionLimit:
        """Return the limit on connections that it uses."""
        ...

    def connection(self) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection; a BufferedProtocol if connections have TLS."""
        ...

    async def start(self) -> None:
        """Prepare to serve; called once, before the first connection."""
        ...

    async def finish(self, timeout: float) -> None:
        """Accept no more requests, and wait at most timeout seconds for those that run."""
        ...

    async def stop(self, timeout: float) -> None:
        """Do as finish(), then cut all connections that are left."""
        ...


class ServingLoop:
    """A loop and the servers on it. Public methods are called only in the first loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.set_exception_handler(_report)
        self._loop = loop
        self._pollers: Pollers | None = None
        self._servers: list[Server] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._arrivals: set[TlsArrival] = set()
        self._none_arrives = asyncio.Event()
        # Each is changed by one thread only, so neither needs a lock.
        self._handed_over = 0  # by the accepting thread
        self._made = 0  # by this loop's thread

    async def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on this loop and return its result. Raises what it raises. Cancellation cancels it."""
        if self._loop is asyncio.get_running_loop():
            return await coroutine
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    @property
    def connections(self) -> int:
        """Return the number of connections; one whose handshake has just ended may count twice for a moment."""
        return self._being_made + sum(server.connections for server in self._servers)

    @property
    def _being_made(self) -> int:
        return self._handed_over - self._made

    async def start(self, servers: Iterable[Server]) -> None:
        """Start servers on this loop."""
        await self.run(self._start())
        for server in servers:
            await self.run(server.start())
            self._servers.append(server)

    def hand_over(
        self, sock: socket.socket, address: str, server: Server, secure: tls_contexts.ServerTls | None
    ) -> None:
        """Pass an accepted connection to one of the loop's servers. address: the client's. secure: None without TLS."""
        self._handed_over += 1
        if self._loop is asyncio.get_running_loop():
            self._take(sock, address, server, secure)
        else:
            self._loop.call_soon_threadsafe(self._take, sock, address, server, secure)

    async def finish(self, timeout: float) -> None:
        """Close connections in their handshake, and let the servers finish. hand_over() must not be called any more."""
        await self.run(self._finish(timeout))

    async def stop(self, timeout: float) -> None:
        """Do as finish(), then cut what is left."""
        await self.run(self._stop(timeout))

    def _take(self, sock: socket.socket, address: str, server: Server, secure: tls_contexts.ServerTls | None) -> None:
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
        self._get_pollers()  # at the start: at the first connection there may be no descriptor left

    def _get_pollers(self) -> Pollers:
        if self._pollers is None:
            self._pollers = Pollers(self._loop)
        return self._pollers

    async def _finish(self, timeout: float) -> None:
        await self._end_arrivals()
        await asyncio.gather(*(server.finish(timeout) for server in self._servers))

    async def _stop(self, timeout: float) -> None:
        await self._end_arrivals()
        await asyncio.gather(*(server.stop(timeout) for server in self._servers))
        if self._pollers is not None:
            self._pollers.close()
            self._pollers = None

    async def _end_arrivals(self) -> None:
        self._none_arrives.clear()
        for arrival in list(self._arrivals):
            arrival.drop()
        if self._arrivals:
            await self._none_arrives.wait()
        # Connections without TLS are made in a moment, and are closed by their server.
        if self._connecting:
            await asyncio.wait(self._connecting)


@asynccontextmanager
async def serving_loops(count: int) -> AsyncIterator[list[ServingLoop]]:
    """Yield the running loop and count - 1 more, each in a thread that ends with the block."""
    threads: list[_LoopThread] = []
    try:
        for number in range(2, count + 1):
            threads.append(_LoopThread(f"loop-{number}"))
        yield [ServingLoop(asyncio.get_running_loop()), *(ServingLoop(thread.loop) for thread in threads)]
    finally:
        for thread in threads:
            await thread.stop()


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle an exception of a callback as the loop does by default, except for one that uvloop 0.23 raises wrongly.

    When a TLS connection is aborted in its handshake, uvloop closes its transport and then writes to it.
    """
    if "SSL protocol" in context.get("message", "") and "handler is closed" in str(context.get("exception")):
        log.debug("a TLS connection was given up in its handshake")
    else:
        loop.default_exception_handler(context)


class _LoopThread:
    """A thread that runs a loop until stop(), which cancels the tasks that are left."""

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
    """A loop, and the server on it of one listening socket's connections."""

    loop: ServingLoop
    server: Server


class Listener(Protocol):
    """The acceptor of a listening socket's connections."""

    def is_serving(self) -> bool:
        """Tell whether connections are accepted."""
        ...

    def close(self) -> None:
        """Close the listening socket."""
        ...


async def listen(sock: socket.socket, endpoints: Sequence[Endpoint], secure: tls_contexts.ServerTls | None) -> Listener:
    """Accept connections of a listening socket on the running loop, which is the first one's.

    With one endpoint and no TLS, uvloop accepts by itself: that takes 0.05 ms of processor time for each connection,
    an Acceptor 0.075.
    """
    if len(endpoints) > 1 or secure is not None:
        return Acceptor(sock, endpoints, secure)
    server = endpoints[0].server
    # create_server() calls listen(2) again, with a backlog of 100 by default.
    return await asyncio.get_running_loop().create_server(server.connection, sock=sock, backlog=BACKLOG)


class Acceptor:
    """Accept connections, each for the endpoint whose loop has the fewest; of equal ones, for the first.

    secure: a connection gets the context that is current when its handshake begins; None without TLS.
    """

    def __init__(
        self, sock: socket.socket, endpoints: Sequence[Endpoint], secure: tls_contexts.ServerTls | None
    ) -> None:
        self._socket = sock
        self._endpoints = endpoints
        self._secure = secure
        self._loop = asyncio.get_running_loop()
        self._paused: asyncio.TimerHandle | None = None
        self._listen()

    def is_serving(self) -> bool:
        """Tell whether connections are accepted: not after close(), and not while there are no descriptors."""
        return self._paused is None and self._socket.fileno() != -1

    def close(self) -> None:
        """Close the listening socket."""
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
