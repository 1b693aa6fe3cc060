# SPDX-License-Identifier: Apache-2.0
"""The lanes of one HTTP server: when a connection may have a place and a lane, how that starts, and its terms.

The terms are what the ticket allows, and templates of the answers to successful requests.
"""

import asyncio
import dataclasses
from collections.abc import Callable
from functools import lru_cache

from ....errors import Canceled, Unavailable
from ....lanes.http import DATE, FIRST, LAST, LENGTH, ORIGIN, HttpLane, HttpTerms, Instruction
from ....lanes.shared import Lanes, Places, WaitingConnection
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


def busy() -> Unavailable:
    """Return the error of a request that has waited too long for a place."""
    return Unavailable("Too many requests are served now")


class LanePlace:
    """Take a place, or wait for one, for one transfer at a time."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._transfer: Transfer | None = None  # whose place it is, if one is taken
        self._waiting: tuple[WaitingConnection, asyncio.TimerHandle] | None = None

    def enter(self, transfer: Transfer) -> bool:
        """Take a place for the transfer, unless it has one. Return whether it has one now; if not, call wait()."""
        if self._transfer is not transfer:
            self.leave()
            self._transfer = transfer if self._places.enter(transfer) else None
        return self._transfer is not None

    def leave(self) -> None:
        """Give the place back, if one is taken."""
        if self._transfer is not None:
            self._places.leave(self._transfer)
        self._transfer = None

    def wait(
        self, transfer: Transfer, seconds: float, granted: Callable[[], None], expired: Callable[[], None]
    ) -> None:
        """Wait for a place, at most `seconds`. Then call `granted` or `expired`, unless abandon() was called before."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(seconds, self._expire, expired)
        waiting = self._places.wait(transfer, lambda: loop.call_soon(self._grant, transfer, granted))
        self._waiting = waiting, timer

    async def get(self, transfer: Transfer, seconds: float) -> None:
        """Take a place for the transfer, unless it has one. Wait at most `seconds` for it. Raises Unavailable."""
        if self.enter(transfer):
            return
        served: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def granted() -> None:
            if served.done():
                self.leave()
            else:
                served.set_result(True)

        def expired() -> None:
            if not served.done():  # it is if the task was cancelled in this step of the loop
                served.set_result(False)

        self.wait(transfer, seconds, granted, expired)
        try:
            in_time = await served
        except BaseException:
            self.abandon()
            self.leave()  # it has the place if it was cancelled just after the grant
            raise
        if not in_time:
            raise busy()

    def abandon(self) -> bool:
        """Stop waiting. Return False if the connection did not wait, or if `granted` is about to be called."""
        if self._waiting is None or not self._places.abandon(self._waiting[0]):
            return False
        self._waiting[1].cancel()
        self._waiting = None
        return True

    def _grant(self, transfer: Transfer, granted: Callable[[], None]) -> None:
        waited, self._waiting, self._transfer = self._waiting, None, transfer
        if waited is not None:
            waited[1].cancel()
        granted()

    def _expire(self, expired: Callable[[], None]) -> None:
        if self.abandon():
            expired()


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
        """Return whether the image, if it is open, has all bytes that the ticket allows.

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
