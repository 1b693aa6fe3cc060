# SPDX-License-Identifier: Apache-2.0
"""Connections that are lent to C: while all that comes is plain requests for one image, they need no Python.

C serves what express.py would, and streams. Whatever else comes it gives back unread, with the connection, and the
handlers answer it; a request that fails is answered here, too, so that refusals and errors are written once.
"""

import errno
import logging
import os
from typing import NamedTuple, Protocol

from ... import logs
from ...errors import Error
from ...storage.base import Backend
from ...storage.lane import Lanes
from ...storage.lanehttp import DATE, FIRST, LAST, LENGTH, HttpEnd, HttpLane, HttpTerms
from ...tickets import Access, Ticket
from ...transfers import Transfer
from ...transferstore import TransferStore
from . import errors
from .express import plain_target
from .fastlane import IMAGES
from .framing import Head
from .images import range_headers
from .messages import Client, Response, head_template
from .routes import requests_are_logged
from .wire import Wire

log = logging.getLogger(__name__)

#: Plain requests of a connection that are served here before it is lent: one that sends no other costs no threads.
FIRST_WAIT = 1
#: The same after something came that C does not serve, or the connection could not be lent: to go there and back, or to
#: look for it each time, takes longer than what it saves.
NEXT_WAIT = 16


class Returned(NamedTuple):
    """What became of a connection that was lent.

    requests, received and sent: what C did. rest: the client's bytes that were not taken. error: what a request failed
    of, that is to be answered, and how many bytes of its body were not taken. cut: why the connection must be cut.
    """

    requests: int
    received: int
    sent: int
    rest: bytes
    error: Error | None
    unread: int
    cut: str | None


class LentLine(Client, Protocol):
    """A connection that may be lent."""

    def returned(self, end: Returned) -> None:
        """Go on with the connection."""
        ...


class Lending:
    """Lend the connections of one server."""

    def __init__(self, store: TransferStore, lanes: Lanes) -> None:
        self._store = store
        self._lanes = lanes

    def start(
        self, line: LentLine, wire: Wire, name: str, access: Access, received: bytes
    ) -> tuple[HttpLane, Transfer] | None:
        """Lend a connection for an image. None, or Error or OSError: it is not lent.

        Then nothing has happened, but that the connection may count as one of the transfer's.
        """
        transfer = self._store.authorize(name, access)
        line.use(transfer)
        backend = transfer.opened
        if backend is None or not self._lanes.takes(backend, received):
            return None
        lane = self._lanes.make(transfer.lease, HttpLane)
        transfer.add_lane(lane, backend)  # first: a transfer that is cancelled now ends what the lane begins
        try:
            _hand_over(wire, lane, backend, received, _terms(transfer.ticket, name))
        except BaseException:
            transfer.remove_lane(lane)
            raise
        return lane, transfer


class Lender:
    """Lend one connection, again and again. lending: None: nothing is lent."""

    def __init__(self, lending: Lending | None, line: LentLine) -> None:
        self._lending = lending
        self._line: LentLine | None = line
        self._peer = ""
        self._wait = FIRST_WAIT
        self._lane: HttpLane | None = None

    @property
    def lends(self) -> bool:
        """Tell whether C has the connection."""
        return self._lane is not None

    def lend(self, head: Head, received: bytes | bytearray, wire: Wire) -> bool:
        """Lend the connection, if that pays; received: what is there of the client's bytes, from this head on.

        False: nothing has happened.
        """
        lending, line = self._lending, self._line
        if lending is None or line is None or not wire.can_be_lent or (plain := plain_target(head)) is None:
            return False
        if self._wait > 0:
            self._wait -= 1
            return False
        if requests_are_logged() or wire.unsent:
            return False
        self._peer = line.peer
        access = Access.READ if head.method == "GET" else Access.WRITE
        try:
            started = lending.start(line, wire, plain[0], access, bytes(received))
        except (Error, OSError) as e:
            log.debug("connection is not lent: %s", e, extra=logs.fields(client=line.peer))
            started = None
        if started is None:
            self._wait = NEXT_WAIT
            return False
        self._watch(*started)
        return True

    def _watch(self, lane: HttpLane, transfer: Transfer) -> None:
        self._lane = lane
        lane.watch(transfer.collect, lambda: self._ended(lane, transfer))
        if transfer.canceled:  # by another thread, before the lane was there
            lane.cancel()

    def refuse(self) -> None:
        """Have the connection back when no request runs."""
        if self._lane is not None:
            self._lane.refuse()

    def abort(self) -> None:
        """Have the connection cut."""
        if self._lane is not None:
            self._lane.abort()

    def lost(self) -> None:
        """Let go of the connection: it is closed."""
        self._line = None
        self.abort()

    def _ended(self, lane: HttpLane, transfer: Transfer) -> None:
        line, self._lane = self._line, None
        end = lane.end()
        stats = lane.stats
        self._wait = NEXT_WAIT if end.other else FIRST_WAIT
        transfer.remove_lane(lane)
        cut = _reason_to_cut(end)
        if end.error is not None and (cut is not None or line is None):
            errors.answer(end.error, self._peer)  # nobody hears it, but it is logged
        if line is not None:
            error = None if cut is not None else end.error
            line.returned(Returned(stats.requests, stats.received, stats.sent, end.rest, error, end.unread, cut))


def _reason_to_cut(end: HttpEnd) -> str | None:
    if end.cut or end.broken == errno.ECANCELED:
        return "cut"
    if end.broken is None:
        return None
    return "inactivity" if end.broken == errno.ETIMEDOUT else "client"


def _hand_over(wire: Wire, lane: HttpLane, backend: Backend, received: bytes, terms: HttpTerms) -> None:
    """Start the lane on a copy of the socket."""
    fd = os.dup(wire.fileno)
    try:
        lane.start(backend, fd, received, terms, wire.tls_socket)
    except BaseException:
        os.close(fd)
        raise


def _terms(ticket: Ticket, name: str) -> HttpTerms:
    partial = Response(206, range_headers(ticket, FIRST, LAST, ticket.size))
    return HttpTerms(
        size=ticket.size,
        timeout=ticket.inactivity_timeout,
        read_only=not ticket.may(Access.WRITE),
        sparse=ticket.sparse,
        count_reads=ticket.counts(Access.READ),
        count_writes=ticket.counts(Access.WRITE),
        target=f"{IMAGES}{name}".encode(),
        done=head_template(Response(), "0", DATE),
        partial=head_template(partial, LENGTH, DATE),
    )
