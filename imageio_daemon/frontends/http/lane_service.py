# SPDX-License-Identifier: Apache-2.0
"""The lanes of one HTTP server: which connections get one, and how it is started."""

import os

from ...lanes.http import HttpLane, HttpTerms
from ...lanes.lane import Lanes
from ...lanes.places import Places
from ...operations.bounds import readable_size
from ...storage.backend import Backend
from ...transfers.store import TransferStore
from ...transfers.ticket import Access
from ...transfers.transfer import Transfer
from .exchange import Exchange
from .terms import terms_of
from .transport import ClientTransport


class LaneService:
    """Start lanes for the connections of one server."""

    def __init__(self, store: TransferStore, lanes: Lanes) -> None:
        self._store = store
        self._lanes = lanes

    @property
    def places(self) -> Places:
        """Return the places of all connections that lanes of HTTP serve."""
        return self._lanes.places

    def find(self, exchange: Exchange, name: str, access: Access) -> Transfer:
        """Return the transfer of a request, of which the connection is one from now on.

        Raises Forbidden, TooManyConnections.
        """
        transfer = self._store.authorize(name, access)
        exchange.use(transfer)
        return transfer

    def start(
        self,
        exchange: Exchange,
        transport: ClientTransport,
        transfer: Transfer,
        received: bytes,
        *,
        reads: bool,
    ) -> HttpLane | None:
        """Start a lane on a connection, for the image of a transfer, which is open. None: no lane can serve it.

        received: bytes that the lane takes first. reads: the request is a GET. Raises Error, OSError.
        """
        backend = transfer.opened
        if backend is None or not self._lanes.takes(backend, received):
            return None
        # The lane would give it back: what is known of an image that is smaller than the ticket may be old.
        if reads and not transfer.covered and readable_size(transfer, backend) < transfer.ticket.size:
            return None
        lane = self._lanes.make(transfer.permission.lease, HttpLane, exchange.service, client=exchange.peer)
        transfer.add_lane(lane, backend)  # first: a transfer that is cancelled now ends what the lane begins
        try:
            _start_lane(lane, transport, backend, received, terms_of(transfer.ticket, backend))
        except BaseException:
            transfer.remove_lane(lane)
            raise
        return lane


def _start_lane(
    lane: HttpLane, transport: ClientTransport, backend: Backend, received: bytes, terms: HttpTerms
) -> None:
    """Start the lane on a copy of the socket's descriptor."""
    fd = os.dup(transport.fileno)
    try:
        lane.start(backend, fd, received, terms, transport.tls_socket)
    except BaseException:
        os.close(fd)
        raise
