# SPDX-License-Identifier: Apache-2.0
"""All transfers of the daemon, by ticket id. Shared by the event loops; transfers/transfer.py has the rules."""

import asyncio
import logging
import threading
import time

from ..errors import DENIED, Forbidden, InUse, TooManyTickets
from ..service import logs
from ..service.state import StateDirectory
from .end import TransferEnd
from .ending import EndingTransfers
from .image import Identify, OpenBackend
from .permission import Clock
from .ticket import Access, Ticket
from .transfer import Transfer

log = logging.getLogger(__name__)

#: Seconds that the close of an image may take in a removal that does not wait for requests. Normal: some ms.
CLOSE_TIMEOUT = 5.0
#: The limit of tickets and ending transfers together is this factor times the limit of tickets. Without it, tickets
#: that are replaced again and again while storage hangs would take all memory.
ENDING_FACTOR = 2


async def _unknown(_: Ticket) -> None:
    """Return None: the identity of the image is unknown."""


class TransferStore:
    """All transfers by ticket id. Thread-safe.

    open_backend: opens the image of a ticket. identify: returns the identity of a ticket's image. most_tickets: in the
    store at a time. most_connections: on one ticket at a time. state: what is kept there outlives the process; None:
    nothing is kept. clock: in seconds.
    """

    def __init__(
        self,
        open_backend: OpenBackend,
        identify: Identify = _unknown,
        *,
        most_tickets: int,
        most_connections: int,
        state: StateDirectory | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._state = state
        self._open_backend = open_backend
        self._identify = identify
        self._most_tickets = most_tickets
        self._most_connections = most_connections
        self._clock = clock
        self._lock = threading.Lock()
        self._transfers: dict[str, Transfer] = {}
        self._ending = EndingTransfers()

    def add(self, ticket: Ticket) -> Transfer:
        """Add a ticket, and replace one of the same id, whose requests are cancelled. Raises TooManyTickets."""
        with self._lock:
            replaced = self._transfers.get(ticket.ticket_id)
            self._require_room(replaced)
            if replaced is not None:
                self._ends(replaced)
            transfer = self._transfers[ticket.ticket_id] = Transfer(
                ticket,
                self._open_backend,
                self._identify,
                self._ending,
                most_connections=self._most_connections,
                clock=self._clock,
            )
        transfer.end.when_left(self._leave)
        transfer.end.when_ended(self._forget)
        if replaced is not None:
            self._cancel(replaced)
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
        """Return the transfer of a ticket in any state; None: there is no such ticket."""
        return self._transfers.get(ticket_id)

    def all(self) -> list[Transfer]:
        """Return all transfers."""
        with self._lock:
            return list(self._transfers.values())

    def authorize(self, ticket_id: str, access: Access | None) -> Transfer:
        """Return the transfer if the ticket allows the access now; None: any access. Raises Forbidden."""
        transfer = self._transfers.get(ticket_id)
        if transfer is None:
            raise Forbidden(DENIED)
        transfer.permission.require(access)
        return transfer

    async def remove(self, ticket_id: str, timeout: float) -> None:
        """Cancel and remove a ticket. A ticket that does not exist is no error.

        Afterwards no operation of a ticket with this id runs, and no operation of another cancelled ticket on its
        image. timeout: seconds to wait for that; 0: do not wait for requests. Raises InUse if they have not ended by
        then; the ticket stays in the store, cancelled.
        """
        with self._lock:
            transfer = self._transfers.get(ticket_id)
            if transfer is not None:
                self._ends(transfer)
        if transfer is not None:
            self._cancel(transfer)
        if timeout == 0 and any(other.in_use for other in self._ending.of_ticket(ticket_id)):
            raise InUse("The ticket is still used")
        await self._until_ended(ticket_id, timeout or CLOSE_TIMEOUT)
        with self._lock:
            if transfer is not None and self._transfers.get(ticket_id) is transfer:
                del self._transfers[ticket_id]

    def clear(self) -> None:
        """Cancel and remove all tickets, without waiting."""
        with self._lock:
            transfers = list(self._transfers.values())
            self._transfers.clear()
            for transfer in transfers:
                self._ends(transfer)
        for transfer in transfers:
            self._cancel(transfer)

    def release_expired(self) -> None:
        """Release the images of expired tickets on which no request runs; see Transfer.release_expired()."""
        for transfer in self.all():
            transfer.release_expired()

    def sample(self) -> None:
        """Take a sample of each transfer, for the rates of their status."""
        for transfer in self.all():
            transfer.sample()

    async def close(self) -> None:
        """Cancel all transfers and wait until they have ended, for the shutdown."""
        self.clear()
        for end in self._ending.all():
            await end.until_ended()

    def _require_room(self, replaced: Transfer | None) -> None:
        """Raise TooManyTickets if there is no room for another ticket. Called with the lock."""
        if replaced is None and len(self._transfers) >= self._most_tickets:
            raise TooManyTickets(f"The limit of {self._most_tickets} tickets is reached")
        most = ENDING_FACTOR * self._most_tickets
        if len(self._transfers) + len(self._ending) >= most:
            raise TooManyTickets(f"The limit of {most} tickets is reached, with those that are gone and have not ended")

    def _ends(self, transfer: Transfer) -> None:
        """Add a transfer that is being cancelled to the registry. Called with the lock."""
        if not transfer.end.has_ended:
            self._ending.add(transfer.end)

    def _cancel(self, transfer: Transfer) -> None:
        """Cancel a transfer. The registry has it already, so no other transfer opens its image before its end."""
        transfer.cancel()
        with self._lock:
            self._ends(transfer)

    async def _until_ended(self, ticket_id: str, timeout: float) -> None:
        """Wait until all cancelled transfers of a ticket id have ended. Raises InUse after timeout seconds."""
        try:
            async with asyncio.timeout(timeout):
                while left := self._ending.of_ticket(ticket_id):
                    await left[0].until_ended()
        except TimeoutError:
            raise InUse("The ticket is still used: what runs on its image has not ended") from None

    def _leave(self, end: TransferEnd) -> None:
        with self._lock:
            self._ending.leave(end)

    def _forget(self, end: TransferEnd) -> None:
        with self._lock:
            self._ending.remove(end)
