# SPDX-License-Identifier: Apache-2.0
"""The NBD services: a server for TCP, one for the unix socket, and those of connections that were HTTP."""

import dataclasses
import logging

from ...config.config import Config
from ...lanes.shared import Lanes
from ...nbdproto.server_negotiation import Tls
from ...net.admission import Admission
from ...net.connection_limit import ConnectionLimit
from ...net.tls_handshake import Handshakes
from ...transfers.store import TransferStore
from ...transfers.transfer import Transfer
from .adopted import AdoptedHandshake
from .exports import MakeContext, NbdOptions
from .handshake import ServerHandshake

log = logging.getLogger(__name__)

#: The services of HTTP whose connections may become NBD.
UPGRADED = ("remote", "local")


def nbd_servers(
    config: Config,
    store: TransferStore,
    limit: ConnectionLimit,
    context: MakeContext | None,
    lanes: Lanes,
    handshakes: Handshakes,
) -> "tuple[NbdServer, NbdServer]":
    """Return the servers for the TCP socket and for the unix socket.

    `context` returns the TLS context to use now. It is None without TLS.
    """
    common = NbdOptions(store, lanes, config.nbd.handshake_timeout)
    remote = dataclasses.replace(common, tls=Tls(config.nbd.tls), context=context)
    local = dataclasses.replace(common, name="nbd-local", listed=config.nbd.list)
    return NbdServer(remote, limit, handshakes), NbdServer(local, limit, handshakes)


def upgraded_servers(
    config: Config,
    store: TransferStore,
    limit: ConnectionLimit,
    lanes: Lanes,
    handshakes: Handshakes,
) -> "dict[str, NbdServer]":
    """Return the servers of connections that were HTTP, by the name of the HTTP service.

    The connections keep the TLS that they have, and their places in `limit`, the limit of HTTP.
    """
    common = NbdOptions(store, lanes, config.nbd.handshake_timeout)
    return {name: NbdServer(dataclasses.replace(common, name=name), limit, handshakes) for name in UPGRADED}


class NbdServer:
    """Serve the connections of one listening socket. connection() makes their protocols."""

    def __init__(self, options: NbdOptions, limit: ConnectionLimit, handshakes: Handshakes) -> None:
        self.limit = limit
        self.admission = Admission(limit)
        self._shared = options, self.admission, handshakes

    async def start(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def connection(self) -> ServerHandshake:
        """Return the protocol of a new connection."""
        return ServerHandshake(*self._shared)

    def prepare(self, transfer: Transfer, client: str) -> AdoptedHandshake:
        """Return the protocol of a connection that becomes the export of one ticket. `client` is its address.

        The caller then calls adopt() or abandon(). Raises TooManyConnections or Forbidden, and Unavailable if the
        server stops.
        """
        self.admission.require_running()
        return AdoptedHandshake(*self._shared, transfer, client)

    async def finish(self, timeout: float) -> None:
        """Read no more requests, wait at most `timeout` seconds for running ones, and close all connections.

        A request that has not ended then gets no answer. A client that connects again sends it to the next process.
        """
        if not await self.admission.finish(timeout):
            log.debug("%d connections still open", self.admission.count)
        self.admission.cut_off()

    async def stop(self, timeout: float) -> None:
        """Do as finish()."""
        await self.finish(timeout)
