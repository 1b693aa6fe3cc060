# SPDX-License-Identifier: Apache-2.0
"""All transfers of the daemon, by ticket id. Shared by the event loops; the rules stand in transfers.py."""

import logging
import threading
import time

from . import logs
from .errors import DENIED, Forbidden, InUse, TooManyTickets
from .tickets import Access, Ticket
from .transferimage import OpenBackend, Predecessors
from .transfers import Clock, Transfer

log = logging.getLogger(__name__)

#: Seconds that closing an image may take when a removal does not wait for requests. On storage that works: some ms.
CLOSE_TIMEOUT = 5.0


class TransferStore:
    """All transfers by ticket id. Thread-safe."""

    def __init__(
        self, open_backend: OpenBackend, *, most_tickets: int, most_connections: int, clock: Clock = time.monotonic
    ) -> None:
        self._open_backend = open_backend
        self._most_tickets = most_tickets
        self._most_connections = most_connections
        self._clock = clock
        self._lock = threading.Lock()
        self._transfers: dict[str, Transfer] = {}
        #: Cancelled, and not ended yet.
        self._ending: set[Transfer] = set()

    def add(self, ticket: Ticket) -> Transfer:
        """Add a ticket. One of the same id is replaced: its running requests are cancelled. Raises TooManyTickets."""
        with self._lock:
            replaced = self._transfers.get(ticket.ticket_id)
            if replaced is None and len(self._transfers) >= self._most_tickets:
                raise TooManyTickets(f"The limit of {self._most_tickets} tickets is reached")
            if replaced is not None:
                self._ending.add(replaced)
            same_url = [other for other in self._ending if other.ticket.url == ticket.url]
            transfer = self._transfers[ticket.ticket_id] = Transfer(
                ticket,
                self._open_backend,
                Predecessors(same_url, self._ending),
                most_connections=self._most_connections,
                clock=self._clock,
            )
        transfer.when_ended(self._forget)
        if replaced is not None:
            replaced.cancel()
        log.info(
            "ticket added",
            extra=logs.fields(
                transfer=ticket.log_name,
                url=ticket.shown_url,
                size=ticket.size,
                ops=",".join(a.value for a in ticket.ops),
            ),
        )
        return transfer

    def get(self, ticket_id: str) -> Transfer | None:
        """Return the transfer of a ticket, whatever its state."""
        return self._transfers.get(ticket_id)

    def all(self) -> list[Transfer]:
        """Return all transfers."""
        with self._lock:
            return list(self._transfers.values())

    def authorize(self, ticket_id: str, access: Access | None) -> Transfer:
        """Return the transfer if the ticket allows the access now. Raises Forbidden."""
        transfer = self._transfers.get(ticket_id)
        if transfer is None:
            raise Forbidden(DENIED)
        transfer.require(access)
        return transfer

    async def remove(self, ticket_id: str, timeout: float) -> None:
        """Cancel and remove a ticket; one that does not exist is no error.

        Waits at most timeout seconds for its requests, then raises InUse, and the ticket stays, cancelled. 0: does not
        wait.
        """
        with self._lock:
            transfer = self._transfers.get(ticket_id)
            if transfer is None:
                return
            if not transfer.has_ended:
                self._ending.add(transfer)
        transfer.cancel()
        if timeout == 0 and transfer.in_use:
            raise InUse("The ticket is still used")
        await transfer.ended(timeout or CLOSE_TIMEOUT)
        with self._lock:
            if self._transfers.get(ticket_id) is transfer:
                del self._transfers[ticket_id]

    def clear(self) -> None:
        """Cancel and remove all tickets, without waiting."""
        with self._lock:
            transfers = list(self._transfers.values())
            self._transfers.clear()
            self._ending.update(transfers)
        for transfer in transfers:
            transfer.cancel()

    def release_expired(self) -> None:
        """Let go of what expired tickets hold and nobody uses; see Transfer."""
        for transfer in self.all():
            transfer.release_expired()

    async def close(self) -> None:
        """Cancel all and wait until everything has ended, for the shutdown."""
        self.clear()
        for transfer in list(self._ending):
            await transfer.ended(None)

    def _forget(self, transfer: Transfer) -> None:
        with self._lock:
            self._ending.discard(transfer)
