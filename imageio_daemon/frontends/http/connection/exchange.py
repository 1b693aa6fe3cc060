# SPDX-License-Identifier: Apache-2.0
"""The interface of a connection to the code that serves a request: a handler of aiohttp, or the start of a lane."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from ....errors import PeerGone
from ....net.connection_limit import LOCAL, Place
from ....net.watchdog import Watchdog
from ....runtime import request_activity
from ....runtime.audit_log import Caller
from ....runtime.request_activity import Doing, RequestActivity, Worker
from ....runtime.sums import Count
from ....transfers.transfer import Transfer
from .incoming import Incoming
from .transport import ClientTransport


class Closable(Protocol):
    """An object that closes without waiting."""

    def close(self) -> None:
        """Release everything."""


Kept = TypeVar("Kept", bound=Closable)


class Exchange:
    """Connect the code that serves a request with its connection.

    It has the transfers that the connection uses, with an object for each, and counts requests and bytes. `service` is
    the name of the service, for counts. `is_local` is true if the client is on a unix socket.
    """

    def __init__(
        self, transport: ClientTransport, incoming: Incoming, watchdog: Watchdog, place: Place, service: str
    ) -> None:
        self.peer = transport.peer
        self.service = service
        self.is_local = transport.address == LOCAL
        #: The activity of a running request, or the lane that serves the connection, or None.
        self.worker: Worker | None = None
        #: A request that has begun before its handler, which goes on with it.
        self.begun: RequestActivity | None = None
        #: Requests of Python, and bytes that it has received.
        self.requests = 0
        self.received = 0
        self._refused = 0
        self._failed = 0
        self._by_lanes = Count()
        self._transport = transport
        self._incoming = incoming
        self._watchdog = watchdog
        self._place = place
        self._loop = asyncio.get_running_loop()
        self._opened = self._loop.time()
        self._transfers: list[Transfer] = []
        self._kept: dict[Transfer, Any] = {}  # Closable

    @property
    def caller(self) -> Caller:
        """Return who the client is, for events."""
        return self._transport.caller

    # A request

    def begin(self, on_body_error: Callable[[Exception], None]) -> RequestActivity:
        """Count the request that the running task serves from now on, and return its activity.

        `on_body_error` is called if the body will not arrive, to end the handler's wait for it.
        """
        begun, self.begun = self.begun, None
        self.worker = activity = request_activity.begin(begun)
        self.requests += 1
        self._incoming.on_error(on_body_error)
        return activity

    def answered(self, status: int) -> None:
        """Count an answer that Python has given, by its HTTP status."""
        self._refused += 400 <= status < 500
        self._failed += status >= 500

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

    # The transfers

    def use(self, transfer: Transfer) -> None:
        """Count the connection as one of the transfer's, and no longer as one of others.

        Behind a proxy, a connection serves many tickets, one after the other. It stays one of those for which it keeps
        something, so that it is told of their end. The inactivity timeout of the ticket is in force from now on. Raises
        TooManyConnections, Forbidden.
        """
        if transfer not in self._transfers:
            end = partial(self._loop.call_soon, self._end, transfer)
            transfer.connections.add(self, end, service=self.service, client=self.peer, doing=self._doing)
            self._transfers.append(transfer)
        for old in [old for old in self._transfers if old is not transfer and old not in self._kept]:
            old.connections.remove(self)
            self._transfers.remove(old)
        self._place.know(self._has_ticket)
        self._watchdog.timeout = transfer.ticket.inactivity_timeout

    def kept(self, transfer: Transfer, make: Callable[[], Kept]) -> Kept:
        """Return the object kept for a transfer of the connection, made at first use. It is closed when either ends."""
        if transfer not in self._kept:
            self._kept[transfer] = make()
        kept: Kept = self._kept[transfer]
        return kept

    def _end(self, transfer: Transfer) -> None:
        if (kept := self._kept.pop(transfer, None)) is not None:
            kept.close()

    def _doing(self) -> Doing | None:
        worker = self.worker
        return None if worker is None else worker.doing()

    def _has_ticket(self) -> bool:
        """Return whether any transfer of the connection is in force."""
        return any(transfer.in_force for transfer in self._transfers)

    def lost(self) -> None:
        """Remove the connection from its transfers. fields() may still be called."""
        for transfer in self._transfers:
            transfer.connections.remove(self)
            self._end(transfer)

    # Counts

    def add(self, by_lane: Count) -> None:
        """Add the requests and bytes of a lane."""
        self._by_lanes = self._by_lanes.plus(by_lane)

    def served(self) -> Count:
        """Return the requests and bytes that Python has served, without those of lanes."""
        return Count(self.requests, self.received, self._transport.sent, self._refused, self._failed)

    def fields(self) -> dict[str, object]:
        """Return the fields of the log line at the connection's end.

        `seconds` is the time since its start; `transfers` names those that it has used last.
        """
        served = self.served().plus(self._by_lanes)
        return {
            "requests": served.requests,
            "received": served.received,
            "sent": served.sent,
            "seconds": round(self._loop.time() - self._opened, 3),
            "transfers": ",".join(transfer.ticket.log_name for transfer in self._transfers),
        }
