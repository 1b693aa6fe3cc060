# SPDX-License-Identifier: Apache-2.0
"""The interface of a connection to the code that serves a request: a handler of aiohttp, or the start of a lane."""

from collections.abc import Callable

from ....errors import PeerGone
from ....net.connection_limit import LOCAL, Place
from ....net.watchdog import Watchdog
from ....runtime.audit_log import Caller
from ....runtime.request_activity import RequestActivity, Worker
from ....transfers.transfer import Transfer
from .incoming import Incoming
from .transport import ClientTransport
from .usage import ConnectionUsage, Kept


class Exchange:
    """Connect the code that serves a request with its connection.

    `service` is the name of the service, for counts. `is_local` tells whether the client is on a unix socket.
    """

    def __init__(
        self,
        transport: ClientTransport,
        usage: ConnectionUsage,
        incoming: Incoming,
        watchdog: Watchdog,
        place: Place,
        service: str,
    ) -> None:
        self.peer = transport.peer
        self.service = service
        self.is_local = transport.address == LOCAL
        self._begun: RequestActivity | None = None
        self._transport = transport
        self._usage = usage
        self._incoming = incoming
        self._watchdog = watchdog
        self._place = place

    @property
    def caller(self) -> Caller:
        """Return who the client is, for events."""
        return self._transport.caller

    def begin(self, on_body_error: Callable[[Exception], None]) -> None:
        """Count a request. `on_body_error` is called if the body will not arrive, to end the handler's wait for it."""
        self._usage.requests += 1
        self._incoming.on_error(on_body_error)

    def go_on(self, request: RequestActivity) -> None:
        """Let the next handler go on with this request, which has begun before."""
        self._begun = request

    def take_begun(self) -> RequestActivity | None:
        """Return, only once, the request of go_on(), or None if the request begins with its handler."""
        begun, self._begun = self._begun, None
        return begun

    def answered(self, status: int) -> None:
        """Count the answer to the request."""
        self._usage.answered(status)

    def served_by(self, worker: Worker | None) -> None:
        """Note what serves the connection now, if anything, for the status of its transfer."""
        self._usage.worker = worker

    def use(self, transfer: Transfer) -> None:
        """Count the connection as one of the transfer's, and apply the inactivity timeout of the ticket.

        Raises TooManyConnections, Forbidden.
        """
        self._usage.use(transfer, self.service, self.peer)
        usage = self._usage
        self._place.know(lambda: usage.has_ticket)
        self._watchdog.timeout = transfer.ticket.inactivity_timeout

    def kept(self, transfer: Transfer, make: Callable[[], Kept]) -> Kept:
        """Return the object that the connection keeps for a transfer; see ConnectionUsage.kept()."""
        return self._usage.kept(transfer, make)

    def require_alive(self) -> None:
        """Raise PeerGone if the client cannot receive an answer. Call this before a change begins.

        While nothing reads the socket, only this check finds out that the client has closed it.
        """
        if self._transport.is_closing or self._transport.hung_up:
            raise PeerGone("the connection was lost inside a request")

    def want_body(self) -> None:
        """Begin to read the body. Until this call nothing reads it, so that a lane may take it instead."""
        self._incoming.want()
        if not self._incoming.ahead:
            self._transport.release("ahead")

    def waiting_for_body(self, *, waiting: bool) -> None:
        """Set whether a handler waits for the client's next bytes. Only then does the client's timeout run."""
        self._watchdog.wait_for_body(waiting=waiting)

    def send_continue(self) -> None:
        """Tell the client to send its body (RFC 9110 10.1.1)."""
        self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
