# SPDX-License-Identifier: Apache-2.0
"""The handover of a connection, with its TLS, to a lane after the negotiation."""

import logging
import socket
from collections.abc import Callable

from ...errors import Error, Forbidden
from ...lanes.lane import error_of
from ...lanes.nbd import ENDED, NbdLane, NbdTerms
from ...lanes.shared import Lanes
from ...nbdproto.agreement import Transmission
from ...net.poller import Poller
from ...net.tls_socket import TlsSocket
from ...storage.backend import Backend
from ...transfers.ticket import Access, Ticket
from .errors import ERRORS
from .exports import Attachment

log = logging.getLogger(__name__)


class LaneSession:
    """Own a connection in its transmission phase, until the client leaves, the transfer ends or the server stops.

    `connection` is the socket and its TLS. `poller` watches the socket after the last reply. `service` is the name for
    counts, `client` the address for the log. A client without progress is disconnected after `timeout` seconds.
    `on_lost` is called once, when the session has released everything.
    """

    def __init__(
        self,
        attachment: Attachment,
        backend: Backend,
        lanes: Lanes,
        transmission: Transmission,
        connection: tuple[socket.socket, TlsSocket | None],
        poller: Poller,
        *,
        service: str,
        client: str,
        timeout: float,
        on_lost: "Callable[[LaneSession], None]",
    ) -> None:
        self._attachment = attachment
        self._transfer = attachment.transfer
        self._backend = backend
        name = self._transfer.ticket.log_name
        lease, bucket = self._transfer.permission.lease, self._transfer.bucket
        self._lane = NbdLane(lanes, lease, bucket, service, client=client, transfer=name)
        self._transmission = transmission
        self._socket, self._tls = connection
        self._poller = poller
        self._timeout = timeout
        self._on_lost = on_lost
        self._leaving = False

    def start(self, rest: bytes, reply: bytes) -> None:
        """Start the lane. It sends the reply to the last option, and reads `rest`, the bytes received after that."""
        if self._hand_over(rest, reply):
            self._attachment.on_cancel(self._lane.refuse)
            if self._leaving:  # shut_down() was called before the lane had started
                self._lane.leave()
        else:
            self._lost()

    def _hand_over(self, rest: bytes, reply: bytes) -> bool:
        """Start the lane, and return whether it has started. Logs a failure."""
        fields = self._attachment.fields()
        try:
            self._start_lane(rest, reply)
        except Forbidden:  # the transfer has just been cancelled
            log.info("connection ends: %s", ENDED, extra=fields)
        except (Error, OSError) as e:
            log.error("connection ends: it cannot be served: %s", e, extra=fields)
        except Exception:
            log.exception("connection ends: it cannot be served", extra=fields)
        else:
            return True
        self._lane.abort()
        return False

    def _start_lane(self, rest: bytes, reply: bytes) -> None:
        terms = _terms(self._transmission, self._transfer.ticket, self._timeout, reply)
        changes = not self._transmission.export.read_only
        self._transfer.start_lane(
            self._lane, self._backend, self._socket.fileno(), rest, terms, self._tls, changes=changes
        )
        self._attachment.worker = self._lane
        self._lane.watch(self._event, self._end)

    def shut_down(self) -> None:
        """Finish the requests that have begun, and close.

        Requests that have not begun get no answer. With ESHUTDOWN, programs would report an error; without an answer, a
        program that connects again (qemu's reconnect-delay) sends them to the next process.
        """
        self._leaving = True
        self._lane.leave()

    def abort(self, reason: str) -> None:
        """Close the connection now. `reason` is for the log."""
        log.info("connection aborted: %s", reason, extra=self._attachment.fields())
        self._lane.abort()

    def _event(self) -> None:
        self._transfer.traffic.collect()

    def _end(self) -> None:
        stats = self._lane.stats
        fields = self._attachment.fields(requests=stats.requests, sent=stats.sent, error=error_of(stats))
        log.info("connection ended", extra=fields)
        self._lost()

    def _lost(self) -> None:
        """Release the lane, the socket and the attachment to the transfer."""
        try:
            self._transfer.remove_lane(self._lane)
        finally:
            self._close()
            self._attachment.detach()
            self._on_lost(self)

    def _close(self) -> None:
        """Send close_notify of TLS, and close the socket with Poller.linger(). After abort(), nothing is sent."""
        if self._tls is not None:
            self._tls.end()
        self._poller.linger(self._socket)


def _terms(transmission: Transmission, ticket: Ticket, timeout: float, reply: bytes) -> NbdTerms:
    export = transmission.export
    return NbdTerms(
        size=export.size,
        timeout=timeout,
        contexts=transmission.contexts,
        errors=ERRORS,
        structured=transmission.structured,
        extended=transmission.extended,
        can_flush=export.can_flush,
        read_only=export.read_only,
        sparse=ticket.sparse,
        count_reads=ticket.counts(Access.READ),
        count_writes=ticket.counts(Access.WRITE),
        reply=reply,
    )
