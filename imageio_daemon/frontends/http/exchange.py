# SPDX-License-Identifier: Apache-2.0
"""What the one who serves a request, a handler of aiohttp or a lane, tells its connection and asks of it."""

from collections.abc import Callable

from ...errors import PeerGone
from ...net.connection_limit import Place
from ...net.watchdog import Watchdog
from ...transfers.transfer import Transfer
from .incoming import Incoming
from .transport import ClientTransport
from .usage import Usage


class Exchange:
    """The requests of one connection and their answers. service: the name of the service that the client came by."""

    def __init__(
        self,
        transport: ClientTransport,
        usage: Usage,
        incoming: Incoming,
        watchdog: Watchdog,
        place: Place,
        service: str,
    ) -> None:
        self.peer = transport.peer
        self.service = service
        self._transport = transport
        self._usage = usage
        self._incoming = incoming
        self._watchdog = watchdog
        self._place = place

    def begin(self, on_body_error: Callable[[Exception], None]) -> None:
        """Note that a request is being handled; the callback ends its wait for a body that will not come."""
        self._usage.requests += 1
        self._incoming.on_error(on_body_error)

    def use(self, transfer: Transfer) -> None:
        """Count the connection as one of the transfer's, and apply its timeout.

        Raises TooManyConnections, Forbidden.
        """
        self._usage.use(transfer)
        usage = self._usage
        self._place.know(lambda: usage.has_ticket)
        self._watchdog.timeout = transfer.ticket.inactivity_timeout

    def require_alive(self) -> None:
        """Raise PeerGone if the client can receive no answer: what it asked for is not begun any more.

        While the socket is not read, its end is noticed here only.
        """
        if self._transport.is_closing or self._transport.hung_up:
            raise PeerGone("the connection was lost inside a request")

    def waiting_for_body(self, *, waiting: bool) -> None:
        """Note whether a handler waits for the client's next bytes: only then does the client's timeout run."""
        self._watchdog.wait_for_body(waiting=waiting)

    def send_continue(self) -> None:
        """Tell the client to send its body (RFC 9110 10.1.1)."""
        self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
