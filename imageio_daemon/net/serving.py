# SPDX-License-Identifier: Apache-2.0
"""The servers of the event loop, their listening sockets, and connections on their way to them (docs/adr/0051)."""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, Protocol

from . import tls_contexts
from .connection_limit import LOCAL, ConnectionLimit
from .tls_handshake import Handshakes, TlsArrival

log = logging.getLogger(__name__)


class Server(Protocol):
    """A server of connections of one kind."""

    @property
    def limit(self) -> ConnectionLimit:
        """Return the limit on its connections."""

    def connection(self) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection, which is a BufferedProtocol if connections have TLS."""

    async def start(self) -> None:
        """Prepare to serve. Call this once, before the first connection."""

    async def finish(self, timeout: float) -> None:
        """Accept no more requests, and wait at most `timeout` seconds for running ones."""

    async def stop(self, timeout: float) -> None:
        """Do as finish(), then cut the connections that are left."""


class Serving:
    """All servers, and the connections on their way to them. Make and use this on the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(_report)
        #: Made now, because at the first connection there may be no descriptor left.
        self.handshakes = Handshakes(self._loop)
        self._servers: list[Server] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._arrivals: set[TlsArrival] = set()
        self._none_arrives = asyncio.Event()

    async def start(self, servers: Iterable[Server]) -> None:
        """Start servers."""
        for server in servers:
            await server.start()
            self._servers.append(server)

    def connect(self, sock: socket.socket, address: str, server: Server, secure: tls_contexts.ServerTls | None) -> None:
        """Pass an accepted connection from the client's address to a server. Without TLS, `secure` is None."""
        if secure is not None:
            arrival = TlsArrival(self.handshakes, sock, lambda: secure.context, server.connection, self._arrival_ended)
            self._arrivals.add(arrival)
            arrival.begin(server.limit, address)
            return
        task = self._loop.create_task(self._connect(sock, server))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def finish(self, timeout: float) -> None:
        """Close connections in their handshake, and let the servers finish. Do not call connect() any more."""
        await self._end_arrivals()
        await asyncio.gather(*(server.finish(timeout) for server in self._servers))

    async def stop(self, timeout: float) -> None:
        """Do as finish(), then cut the connections that are left."""
        await self._end_arrivals()
        await asyncio.gather(*(server.stop(timeout) for server in self._servers))
        self.handshakes.close()

    def _arrival_ended(self, arrival: TlsArrival) -> None:
        self._arrivals.discard(arrival)
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

    async def _end_arrivals(self) -> None:
        self._none_arrives.clear()
        for arrival in list(self._arrivals):
            arrival.drop()
        if self._arrivals:
            await self._none_arrives.wait()
        # Connections without TLS reach their server in a moment, which closes them.
        if self._connecting:
            await asyncio.wait(self._connecting)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle an exception of a callback as the loop does by default, except one that uvloop 0.23 raises wrongly.

    When a TLS connection is aborted in its handshake, uvloop closes its transport and then writes to it.
    """
    if "SSL protocol" in context.get("message", "") and "handler is closed" in str(context.get("exception")):
        log.debug("a TLS connection was given up in its handshake")
    else:
        loop.default_exception_handler(context)


#: Errors of accept(2) that are temporary, and the seconds until the next try: after a connection was closed to make
#: room, and if none was. New clients wait in the kernel's queue.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
RELIEVED_PAUSE = 0.02
ACCEPT_PAUSE = 1.0
#: Seconds between two lines in the log about such an error.
WARNING_INTERVAL = 60.0
#: Most connections that are accepted in one step of the loop, so that others are served in between. 64 take 4 ms.
MOST_ACCEPTED = 64


class Acceptor:
    """Accept connections for a server.

    `secure` has the TLS context, if there is TLS. A connection gets the context that is current when its handshake
    begins. `relieve` is called when there are no descriptors left. It closes a connection without a ticket, and tells
    whether it did. (uvloop's own server would reset new connections.) At most `burst` connections are accepted at once.
    """

    def __init__(
        self,
        sock: socket.socket,
        serving: Serving,
        server: Server,
        secure: tls_contexts.ServerTls | None,
        relieve: Callable[[], bool] = bool,
        burst: int = MOST_ACCEPTED,
    ) -> None:
        self._socket = sock
        self._serving = serving
        self._server = server
        self._secure = secure
        self._relieve = relieve
        self._burst = min(burst, MOST_ACCEPTED)
        self._loop = asyncio.get_running_loop()
        self._paused: asyncio.TimerHandle | None = None
        self._warned = -WARNING_INTERVAL
        self._listen()

    def is_serving(self) -> bool:
        """Return whether connections are accepted: not after close(), and not while there are no descriptors."""
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
        for _ in range(self._burst):
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as e:
                if e.errno not in _EXHAUSTED:
                    raise
                self._pause(e)
                return
            sock.setblocking(False)
            client = address[0] if isinstance(address, tuple) else LOCAL
            self._serving.connect(sock, client, self._server, self._secure)

    def _pause(self, error: OSError) -> None:
        """Accept no connections for a while, because there are no descriptors."""
        self._loop.remove_reader(self._socket)
        self._paused = self._loop.call_later(RELIEVED_PAUSE if self._relieve() else ACCEPT_PAUSE, self._listen)
        now = self._loop.time()
        if now - self._warned >= WARNING_INTERVAL:
            self._warned = now
            log.error("cannot accept connections: %s", error.strerror)
