# SPDX-License-Identifier: Apache-2.0
"""The NBD service: one server for TCP, and one for the unix socket."""

import asyncio
import dataclasses

from ...config.config import Config
from ...lanes.shared import Lanes
from ...nbdproto.server.negotiation import Tls
from ...net.connection_limit import ConnectionLimit
from ...net.tls_handshake import Pollers
from ...transfers.store import TransferStore
from .admission import Admission
from .handshake import ServerHandshake
from .services import MakeContext, Options, Services


def nbd_servers(
    config: Config,
    store: TransferStore,
    limit: ConnectionLimit,
    context: MakeContext | None,
    lanes: Lanes,
) -> "tuple[NbdServer, NbdServer]":
    """Return the servers for the TCP socket and for the unix socket of one loop. All loops share the arguments.

    context: returns the TLS context to use now; None: there is no TLS.
    """
    remote = Options(
        store=store,
        lanes=lanes,
        tls=Tls(config.nbd.tls),
        context=context,
        handshake_timeout=config.nbd.handshake_timeout,
        listed=False,
    )
    local = dataclasses.replace(remote, name="nbd-local", tls=Tls.OFF, context=None, listed=config.nbd.list)
    return NbdServer(remote, limit), NbdServer(local, limit)


class NbdServer:
    """Serve the connections of one listening socket. connection() makes their protocols."""

    def __init__(self, options: Options, limit: ConnectionLimit) -> None:
        self.limit = limit
        self._options = options
        self._admission = Admission(limit)
        self._services: Services | None = None
        self._pollers: Pollers | None = None

    async def start(self) -> None:
        """Prepare for connections on the running loop."""
        self._pollers = Pollers(asyncio.get_running_loop())
        self._services = Services(self._options, self._admission, self._pollers)

    @property
    def connections(self) -> int:
        """Return how many connections are open. May be called in any thread."""
        return self._admission.count

    def connection(self) -> ServerHandshake:
        """Return the protocol of a new connection. Raises RuntimeError before start()."""
        if self._services is None:
            raise RuntimeError("the server was not started")
        return ServerHandshake(self._services)

    async def finish(self, timeout: float) -> None:
        """Read no more requests, wait at most timeout seconds for those that run, and close all connections.

        A request that has not ended then gets no answer: it is for the next process, if its client connects again.
        """
        await self._admission.stop(timeout)

    async def stop(self, timeout: float) -> None:
        """Do as finish(), and free what connections have shared."""
        await self.finish(timeout)
        if self._pollers is not None:
            self._pollers.close()
            self._pollers = None
