# SPDX-License-Identifier: Apache-2.0
"""The NBD service: what listens, and what its connections are given."""

import asyncio
import dataclasses

from ...config.config import Config
from ...lanes.lane import Lanes
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
    """Return the services of the TCP and of the unix socket, of one loop. The loops share the rest."""
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
    """Serve one listening socket's connections; `connection` makes them."""

    def __init__(self, options: Options, limit: ConnectionLimit) -> None:
        self.limit = limit
        self._options = options
        self._admission = Admission(limit)
        self._services: Services | None = None
        self._pollers: Pollers | None = None

    async def start(self) -> None:
        """Get ready for connections of the running loop."""
        self._pollers = Pollers(asyncio.get_running_loop())
        self._services = Services(self._options, self._admission, self._pollers)

    @property
    def connections(self) -> int:
        """Return how many connections are served now. May be asked in any thread."""
        return self._admission.count

    def connection(self) -> ServerHandshake:
        """Return the protocol of a new connection, for create_server."""
        if self._services is None:
            raise RuntimeError("the server was not started")
        return ServerHandshake(self._services)

    async def stop(self, timeout: float) -> None:
        """Take no more requests, and wait at most timeout seconds for those that run."""
        await self._admission.stop(timeout)
        if self._pollers is not None:
            self._pollers.close()
            self._pollers = None
