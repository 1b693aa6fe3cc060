# SPDX-License-Identifier: Apache-2.0
"""Several event loops in one process, each in a thread.

One thread at a time runs Python code, but system calls and encryption release the GIL and run in parallel. State that
loops share is thread-safe and holds no asyncio primitive; most of it is in transfers/.
"""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import ExitStack, asynccontextmanager
from typing import Any, Protocol, TypeVar

import uvloop

from . import tls_contexts
from .connection_limit import ConnectionLimit
from .tls_arrival import TlsArrival
from .tls_handshake import Pollers

log = logging.getLogger(__name__)

_T = TypeVar("_T")

#: The largest default number of loops. More of them only wait for the GIL.
MOST_BY_DEFAULT = 4


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
