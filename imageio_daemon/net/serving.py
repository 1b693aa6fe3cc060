# SPDX-License-Identifier: Apache-2.0
"""The servers of the event loop, and connections on their way to them (docs/adr/0051)."""

import asyncio
import logging
import socket
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Protocol

from . import tls_contexts
from .connection_limit import ConnectionLimit
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
