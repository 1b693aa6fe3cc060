# SPDX-License-Identifier: Apache-2.0
"""The lanes of one HTTP server: when a connection may have a lane, how it starts, and its terms.

The terms are what the ticket allows, and templates of the answers to successful requests.
"""

import dataclasses
from functools import lru_cache

from ....errors import Canceled
from ....lanes.http import DATE, FIRST, LAST, LENGTH, ORIGIN, HttpLane, HttpTerms, Instruction
from ....lanes.shared import Lanes
from ....operations.operations import readable_size
from ....storage.backend import Backend
from ....transfers.store import TransferStore
from ....transfers.ticket import Access, Ticket
from ....transfers.transfer import Transfer
from ..conditions import entity_tag
from ..responses import cors_headers, head_template, range_headers, whole_headers
from .exchange import Exchange
from .framing import RequestHead
from .transport import ClientTransport

#: Number of tickets whose terms are cached. Making terms takes 12 us of the 150 us of a connection with one request.
KNOWN_TERMS = 64
#: The prefix of an image's path.
IMAGES = "/images/"
#: The fields of an answer to a request with Origin, except preflight requests (the Fetch standard, CORS protocol).
_ORIGIN_ANSWERED = "".join(f"{name}: {value}\r\n" for name, value in cors_headers({"origin": ""}, "").items()).encode()


class LaneService:
    """Start lanes for the connections of one server."""

    def __init__(self, store: TransferStore, lanes: Lanes) -> None:
        self._store = store
        self._lanes = lanes
        #: The places for the connections of HTTP lanes.
        self.places = lanes.places

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
            size = terms.size if instruction.packed is None else instruction.packed.length
            terms = dataclasses.replace(terms, instruction=instruction, size=size)
        transfer.start_lane(lane, backend, transport.fileno, received, terms, transport.tls_socket, changes=writable)
        return lane


def ticket_id(head: RequestHead) -> str:
    """Return the ticket id in the target of a plain request."""
    return head.target.partition("?")[0].removeprefix(IMAGES)


def terms_of(ticket: Ticket, backend: Backend, *, writable: bool) -> HttpTerms:
    """Return the terms of a ticket and its image as it is now. `writable` is that of its Permission."""
    if ticket.may(Access.WRITE):
        return _make_terms(ticket, None, 0, writable)
    return _make_terms(ticket, backend.info.identity, backend.generation, writable)


@lru_cache(KNOWN_TERMS)
def _make_terms(ticket: Ticket, identity: object, generation: int, writable: bool) -> HttpTerms:
    tag = entity_tag(identity, ticket.size, generation)
    tagged = {} if tag is None else {"ETag": tag}
    part = range_headers(ticket, FIRST, LAST, ticket.size)
    return HttpTerms(
        size=ticket.size,
        timeout=ticket.inactivity_timeout,
        read_only=not writable,
        sparse=ticket.sparse,
        count_reads=ticket.counts(Access.READ),
        count_writes=ticket.counts(Access.WRITE),
        target=f"{IMAGES}{ticket.ticket_id}".encode(),
        done=head_template(200, {}, "0", DATE, more=ORIGIN),
        partial=head_template(206, part | tagged, LENGTH, DATE, more=ORIGIN),
        whole=head_template(200, whole_headers(ticket) | tagged, LENGTH, DATE, more=ORIGIN),
        generation=generation,
        origin=_ORIGIN_ANSWERED,
    )
