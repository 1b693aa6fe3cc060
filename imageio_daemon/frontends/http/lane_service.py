# SPDX-License-Identifier: Apache-2.0
"""The lanes of one HTTP server: the conditions for a lane, and its start."""

import os

from ...lanes.http import HttpLane, HttpTerms
from ...lanes.places import Places
from ...lanes.shared import Lanes
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
        """Return the places for the connections of HTTP lanes."""
        return self._lanes.places

    def find(self, exchange: Exchange, name: str, access: Access) -> Transfer:
        """Return the transfer of a request, and count the connection as one of the transfer's.

        name: the ticket id. Raises Forbidden, TooManyConnections.
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
        """Start a lane on a connection, for the open image of a transfer. None: no lane can serve it.

        received: the client's bytes, which the lane takes first. reads: the request is a GET. Raises Error, OSError.
        """
        backend = transfer.opened
        if backend is None or not self._lanes.takes(backend, received):
            return None
        # A lane gives back each GET of an image smaller than the ticket, because the size it knows may be outdated.
        if reads and not transfer.covered and readable_size(transfer, backend) < transfer.ticket.size:
            return None
        lease, bucket, name = transfer.permission.lease, transfer.bucket, transfer.ticket.log_name
        lane = self._lanes.make(lease, bucket, HttpLane, exchange.service, client=exchange.peer, transfer=name)
        writable = transfer.permission.writable
        transfer.add_lane(
            lane, backend, changes=writable
        )  # before the start, so that a cancel of the transfer reaches the lane
        try:
            _start_lane(lane, transport, backend, received, terms_of(transfer.ticket, backend, writable=writable))
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
