# SPDX-License-Identifier: Apache-2.0
"""The fast lane: the transmission phase of a connection that is handed to C.

The transport, which must have nothing left to send, is closed; the lane goes on with a copy of its socket.
"""

import asyncio
import logging
import os
from collections.abc import Callable

from ...errors import Error, Forbidden
from ...nbdproto.transmission import ALLOCATION_ID, Transmission
from ...storage.base import Backend
from ...storage.lane import Lane, Lanes, error_of
from ...storage.lanenbd import NbdTerms
from ...tickets import Access, Ticket
from .errors import ERRORS, TRANSFER_ENDED
from .exports import Attachment

log = logging.getLogger(__name__)


class LaneSession(asyncio.Protocol):
    """Own a connection that C serves, until the client leaves, the transfer ends or the server stops."""

    def __init__(
        self,
        attachment: Attachment,
        backend: Backend,
        lanes: Lanes,
        transmission: Transmission,
        transport: asyncio.Transport,
        *,
        timeout: float,
        on_lost: "Callable[[LaneSession], None]",
    ) -> None:
        """Raises OSError when the process has no descriptor left."""
        self._attachment = attachment
        self._transfer = attachment.transfer
        self._backend = backend
        self._lane = lanes.make(self._transfer.lease, Lane)
        self._transmission = transmission
        self._timeout = timeout
        self._transport = transport
        self._on_lost = on_lost
        self._refusing = False
        self._fd = os.dup(transport.get_extra_info("socket").fileno())  # -1: C has it

    def start(self, rest: bytes, reply: bytes) -> None:
        """Begin; rest: bytes that were received with the last option, reply: what it is answered."""
        self._transport.set_protocol(self)
        self._transport.close()  # reads no more, and has nothing to send
        if self._hand_over(rest, reply):
            self._attachment.on_cancel(self.shut_down)
            if self._refusing:  # since before the lane was there
                self._lane.refuse()
        else:
            self._lost()

    def _hand_over(self, rest: bytes, reply: bytes) -> bool:
        """Begin the lane. False: it cannot, which the log has."""
        fields = self._attachment.fields()
        try:
            self._start_lane(rest, reply)
        except Forbidden:  # somebody cancelled the transfer just now
            log.info("connection ends: %s", TRANSFER_ENDED, extra=fields)
        except Error as e:
            log.error("connection ends: it cannot be served: %s", e, extra=fields)
        except Exception:
            log.exception("connection ends: it cannot be served", extra=fields)
        else:
            return True
        self._lane.abort()
        return False

    def _start_lane(self, rest: bytes, reply: bytes) -> None:
        # First: a transfer that is cancelled now ends what the lane begins.
        self._transfer.add_lane(self._lane, self._backend)
        terms = _terms(self._transmission, self._transfer.ticket, self._timeout, reply)
        self._lane.start(self._backend, self._fd, rest, terms)
        self._fd = -1
        self._lane.watch(self._event, self._end)

    def shut_down(self) -> None:
        """Finish what runs, refuse what comes meanwhile, and close."""
        self._refusing = True
        self._lane.refuse()

    def abort(self, reason: str) -> None:
        """Close now."""
        log.info("connection aborted: %s", reason, extra=self._attachment.fields())
        self._lane.abort()

    def _event(self) -> None:
        self._transfer.collect()

    def _end(self) -> None:
        stats = self._lane.stats
        fields = self._attachment.fields(requests=stats.requests, sent=stats.sent, error=error_of(stats))
        log.info("connection ended", extra=fields)
        self._lost()

    def _lost(self) -> None:
        """Give everything back."""
        if self._fd != -1:
            os.close(self._fd)
        try:
            self._transfer.remove_lane(self._lane)
        finally:
            self._attachment.detach()
            self._on_lost(self)


def _terms(transmission: Transmission, ticket: Ticket, timeout: float, reply: bytes) -> NbdTerms:
    export = transmission.export
    return NbdTerms(
        size=export.size,
        timeout=timeout,
        context_id=ALLOCATION_ID,
        errors=ERRORS,
        structured=transmission.structured,
        extended=transmission.extended,
        allocation=transmission.allocation,
        read_only=export.read_only,
        sparse=ticket.sparse,
        count_reads=ticket.counts(Access.READ),
        count_writes=ticket.counts(Access.WRITE),
        reply=reply,
    )
