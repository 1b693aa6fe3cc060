# SPDX-License-Identifier: Apache-2.0
"""The lanes of one HTTP server: when a connection may have a lane, and how it starts."""

import dataclasses

from ....errors import Canceled
from ....lanes.http import HttpLane, Instruction
from ....lanes.places import Places
from ....lanes.shared import Lanes
from ....operations.bounds import readable_size
from ....transfers.store import TransferStore
from ....transfers.ticket import Access
from ....transfers.transfer import Transfer
from .exchange import Exchange
from .ticket_terms import terms_of
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
        """Return the transfer of the ticket with the id `name`, and count the connection as one of the transfer's.

        Raises Forbidden, TooManyConnections.
        """
        transfer = self._store.authorize(name, access)
        exchange.use(transfer)
        return transfer

    def covers(self, transfer: Transfer) -> bool:
        """Tell whether the image, if it is open, has all bytes that the ticket allows.

        If not, a handler serves each plain GET, because the size that a lane knows may be outdated.
        """
        backend = transfer.opened
        return transfer.covered or backend is None or readable_size(transfer, backend) >= transfer.ticket.size

    def start(
        self,
        exchange: Exchange,
        transport: ClientTransport,
        transfer: Transfer,
        received: bytes,
        instruction: Instruction | None = None,
    ) -> HttpLane:
        """Start a lane on a connection, for the open image of a transfer.

        The lane begins with the `received` bytes of the client. With an instruction it carries out that one only;
        without, it serves plain requests. Raises Error, OSError.
        """
        backend = transfer.opened
        if backend is None:
            raise Canceled
        lease, bucket, name = transfer.permission.lease, transfer.bucket, transfer.ticket.log_name
        lane = HttpLane(self._lanes, lease, bucket, exchange.service, client=exchange.peer, transfer=name)
        writable = transfer.permission.writable if instruction is None else instruction.writes
        terms = terms_of(transfer.ticket, backend, writable=writable)
        if instruction is not None:
            terms = dataclasses.replace(terms, instruction=instruction)
        transfer.start_lane(lane, backend, transport.fileno, received, terms, transport.tls_socket, changes=writable)
        return lane
