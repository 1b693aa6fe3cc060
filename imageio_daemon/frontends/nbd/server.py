# SPDX-License-Identifier: Apache-2.0
"""The NBD service: connections, how many, and their end."""

import asyncio
import dataclasses
import logging
from collections.abc import Callable

from ...buffers import Buffers
from ...config import Config
from ...connectionlimit import ConnectionLimit, Place, Stage
from ...nbdproto.negotiation import Tls
from ...storage.lane import Lanes
from ...tlstransport import Pollers
from ...transferstore import TransferStore
from .handshake import AnySession, Handshake, MakeContext, Service

log = logging.getLogger(__name__)

#: Seconds that a stopping server gives clients in the negotiation, so that they are told why. All wait for it.
GRACE = 0.25


def nbd_servers(
    config: Config,
    store: TransferStore,
    buffers: Buffers,
    limit: ConnectionLimit,
    context: MakeContext | None,
    lanes: Lanes | None,
) -> "tuple[NbdServer, NbdServer]":
    """Return the services of the TCP and of the unix socket, of one loop. The loops share the rest."""
    remote = Service(
        store=store,
        buffers=buffers,
        tls=Tls(config.nbd.tls),
        context=context,
        handshake_timeout=config.nbd.handshake_timeout,
        listed=False,
        lanes=lanes,
    )
    local = dataclasses.replace(remote, tls=Tls.OFF, context=None, listed=config.nbd.list)
    return NbdServer(remote, limit), NbdServer(local, limit)


class NbdServer:
    """Serve one listening socket's connections; `connection` makes them."""

    def __init__(self, service: Service, limit: ConnectionLimit) -> None:
        self._service = service
        self.limit = limit
        self._connections: dict[Handshake | AnySession, Place] = {}
        self._empty = asyncio.Event()
        self._stopping = False
        #: For connections with TLS.
        self.pollers: Pollers | None = None

    async def start(self) -> None:
        """Get ready."""
        if self._service.context is not None:
            self.pollers = Pollers(asyncio.get_running_loop())

    @property
    def connections(self) -> int:
        """Return how many connections are served now. May be asked in any thread."""
        return len(self._connections)

    def connection(self) -> Handshake:
        """Return the protocol of a new connection, for create_server."""
        return Handshake(self._service, self)

    async def stop(self, timeout: float) -> None:
        """Take no more requests, and wait at most timeout seconds for those that run."""
        self._stopping = True
        for connection in list(self._connections):
            if isinstance(connection, Handshake):
                connection.stop()
            else:
                connection.shut_down()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        await self._wait(min(deadline, loop.time() + GRACE))
        for connection in list(self._connections):
            if isinstance(connection, Handshake):
                connection.abort("shutdown")
        await self._wait(deadline)
        for connection in list(self._connections):
            connection.abort("shutdown")
        if self.pollers is not None:
            self.pollers.close()

    async def _wait(self, until: float) -> None:
        try:
            async with asyncio.timeout_at(until):
                if self._connections:
                    await self._empty.wait()
        except TimeoutError:
            log.debug("%d connections still open", len(self._connections))

    # For connections

    def admit(self, connection: Handshake, address: str) -> Place | None:
        """Return the place of a connection; None: the server stops."""
        if self._stopping:
            log.info("connection refused: the server stops")
            return None
        place = self.limit.enter(Stage.SILENT, address, _dropper(connection))
        self._connections[connection] = place
        self._empty.clear()
        return place

    def replace(self, connection: Handshake, session: AnySession) -> None:
        """Count the session instead."""
        place = self._connections.pop(connection)
        place.drop = _dropper(session)
        self._connections[session] = place
        if self._stopping:
            session.shut_down()

    def forget(self, connection: Handshake | AnySession) -> None:
        """Count it no more."""
        place = self._connections.pop(connection, None)
        if place is not None:
            place.leave()
            if not self._connections:
                self._empty.set()


def _dropper(connection: Handshake | AnySession) -> Callable[[], object]:
    """Return what ends a connection of this loop, from any thread: another one needs its place."""
    loop = asyncio.get_running_loop()
    return lambda: loop.call_soon_threadsafe(connection.abort, "limit")
