# SPDX-License-Identifier: Apache-2.0
"""All transfers of the daemon, by ticket id. Shared by the event loops; transfers/__init__.py has the rules."""

import logging
import threading
import time

from ..errors import DENIED, Forbidden, InUse, StorageError, TooManyTickets, Unavailable
from ..service import logs
from ..service.events import DAEMON, Caller, Events
from ..service.state import StateDirectory
from ..service.sums import Sums
from ..storage.totals import Totals
from .at_work import AtWork
from .drain import Drain
from .durable import DurableRecords
from .ending import EndingTransfers
from .image import Identify, OpenBackend
from .keeping import Keeping, until_forgotten
from .kept import open_kept
from .kept_record import Record
from .limits import Limits
from .notices import Notices
from .permission import Clock
from .ticket import Access, Changes, Ticket
from .transfer import Transfer

log = logging.getLogger(__name__)

#: Seconds that the close of an image may take in a removal that does not wait for requests. Normal: some ms.
CLOSE_TIMEOUT = 5.0


async def _unknown(_: Ticket) -> None:
    """Return None: the identity of the image is unknown."""


class TransferStore:
    """All transfers by ticket id. Thread-safe.

    open_backend: opens the image of a ticket. identify: returns the identity of a ticket's image. most_tickets: in the
    store at a time. most_connections: on one ticket at a time. state: keeps the tickets of install() for the
    next process, if keep_tickets; None: nothing is kept. records: of what is durable; None: there are none. limits: of
    rates; None: there are none but those of tickets. events: are told what is done to tickets. notices: look at
    transfers; None: nobody does. clock: in seconds.
    """

    def __init__(
        self,
        open_backend: OpenBackend,
        identify: Identify = _unknown,
        *,
        most_tickets: int,
        most_connections: int,
        state: StateDirectory | None = None,
        keep_tickets: bool = True,
        records: DurableRecords | None = None,
        limits: Limits | None = None,
        events: Events | None = None,
        notices: Notices | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._records = records or DurableRecords(None)
        #: Of rates.
        self.limits = limits or Limits()
        self._events = events or Events(None)
        self._notices = notices
        self._open_backend = open_backend
        self._identify = identify
        self.most_tickets = most_tickets
        self._most_connections = most_connections
        self._clock = clock
        self._lock = threading.Lock()
        self._transfers: dict[str, Transfer] = {}
        self._ending = EndingTransfers()
        #: The files of the tickets of install().
        self.keeping = Keeping(open_kept(state, clock, wanted=keep_tickets), self._lock, self._transfers)
        #: Set while the store drains: which transfers go on.
        self.drain: Drain | None = None
        #: Which transfers may work.
        self.at_work = AtWork()
        #: What storage has done for all transfers, by the kind of their images.
        self.totals: Sums[str, Transfer, Totals] = Sums(Totals(), Transfer.totals)

    def add(self, ticket: Ticket) -> Transfer:
        """Add a ticket that is not kept, and replace one of the same id, whose requests are cancelled.

        Raises TooManyTickets.
        """
        transfer, replaced = self._add(ticket, kept=False)
        if replaced:
            self.keeping.forget([ticket.ticket_id])
        return transfer

    async def install(self, ticket: Ticket, by: Caller = DAEMON) -> Transfer:
        """Add a ticket as add() does, and keep it. Afterwards it outlives the process, or the log tells why not.

        by: who asks for it.

        Raises TooManyTickets, and Unavailable while the store drains.
        """
        if self.drain is not None:
            raise Unavailable("The server takes no more tickets")
        transfer, _ = self._add(ticket, kept=True, by=by)
        try:
            await self.keep(transfer)
        except (StorageError, Unavailable) as e:  # it is served all the same
            log.error("transfer %s: its ticket is not kept so far: %s", ticket.log_name, e)
        return transfer

    def restore(self) -> None:
        """Add the tickets that were kept by the process before. Blocks."""
        dropped = 0
        for record in self.keeping.load():
            try:
                self._add(record.ticket, kept=True, record=record)
            except TooManyTickets:
                self.keeping.forget([record.ticket.ticket_id])
                dropped += 1
        if dropped:
            log.warning("kept tickets are dropped: there are too many", extra=logs.fields(count=dropped))

    async def change(self, transfer: Transfer, changes: Changes, by: Caller = DAEMON) -> None:
        """Let a ticket expire timeout seconds from now, see Permission.extend(), limit it to a rate, and keep that.

        Raises StorageError, Unavailable as keep() does.
        """
        name = transfer.ticket.log_name
        if changes.rate is not None:
            transfer.limit(changes.rate)
            self._events.tell("ticket limited", by, transfer=name, rate=changes.rate)
        if changes.timeout is not None:
            transfer.permission.extend(changes.timeout)
            self._events.tell("ticket extended", by, transfer=name, timeout=changes.timeout)
        await self.keep(transfer)

    async def keep(self, transfer: Transfer) -> bool:
        """Keep a ticket with its expiry and its kept_state as they are now, and tell whether it is kept durably.

        Called after a change of these. A ticket that is not valid any more is forgotten. Without a state directory, for
        tickets of add() and for transfers that have left the store, there is no effect. Raises StorageError if an older
        state may be kept, Unavailable if the disk does not answer in time, InvalidRequest if kept_state is too large.
        """
        return await self.keeping.keep(transfer)

    def _add(
        self, ticket: Ticket, *, kept: bool, record: Record | None = None, by: Caller = DAEMON
    ) -> tuple[Transfer, bool]:
        """Add a ticket, and tell whether it has replaced one."""
        with self._lock:
            replaced = self._transfers.get(ticket.ticket_id)
            self._require_room(replaced)
            if replaced is not None:
                self._ending.add(replaced.end)
            transfer = self._transfers[ticket.ticket_id] = Transfer(
                ticket,
                self._open_backend,
                self._identify,
                self._ending,
                records=self._records,
                limits=self.limits,
                most_connections=self._most_connections,
                clock=self._clock,
            )
            transfer.kept = kept
            if record is not None:
                transfer.restore(record.remaining, record.state)
        self.totals.begin(ticket.storage, transfer)
        transfer.end.when_left(self._ending.leave)
        transfer.end.when_left(lambda _: self.totals.end(transfer))
        transfer.end.when_ended(self._ending.remove)
        if self._notices is not None:
            self._notices.follow(transfer)
        if replaced is not None:
            self._cancel(replaced)
        if record is None:
            self._events.tell("ticket replaced" if replaced is not None else "ticket added", by, **ticket.fields())
        else:
            log.info("ticket restored", extra=logs.fields(**ticket.fields()))
        return transfer, replaced is not None

    @property
    def keeps_records(self) -> bool:
        """Tell whether tickets that may write have records of what is durable."""
        return self._records.wanted

    def get(self, ticket_id: str) -> Transfer | None:
        """Return the transfer of a ticket in any state; None: there is no such ticket."""
        return self._transfers.get(ticket_id)

    def all(self) -> list[Transfer]:
        """Return all transfers."""
        with self._lock:
            return list(self._transfers.values())

    def authorize(self, ticket_id: str, access: Access | None) -> Transfer:
        """Return the transfer if the ticket allows the access now; None: any access. Raises Forbidden.

        Raises TooManyTransfers if it may not work now, and Unavailable while the store drains, unless it was in use
        when that began.
        """
        transfer = self._transfers.get(ticket_id)
        if transfer is None:
            raise Forbidden(DENIED)
        transfer.permission.require(access)
        drain = self.drain
        if drain is not None:
            drain.require(transfer)
        self.at_work.require(transfer)
        return transfer

    def begin_drain(self, by: Caller = DAEMON) -> None:
        """Take no more tickets, and let only those transfers go on that are in use. Repeating has no effect."""
        if self.drain is None:
            self.drain = Drain(self.all())
            self._events.tell("draining", by, transfers=self.drain.left())

    async def remove(self, ticket_id: str, timeout: float, by: Caller = DAEMON) -> None:
        """Cancel and remove a ticket. A ticket that does not exist is no error.

        Afterwards no operation of a ticket with this id runs, and no operation of another cancelled ticket on its
        image, and no later process has the ticket. timeout: seconds to wait for that; 0: do not wait for requests.
        Raises InUse if they have not ended by then, StorageError or Unavailable if it cannot be forgotten; the ticket
        stays in the store, cancelled.
        """
        with self._lock:
            transfer = self._transfers.get(ticket_id)
            if transfer is not None:
                self._ending.add(transfer.end)
        if transfer is not None:
            self._tell_canceled(transfer, by)
            self._cancel(transfer)
        forgotten = self.keeping.forget([ticket_id])
        if timeout == 0 and any(other.in_use for other in self._ending.of_ticket(ticket_id)):
            raise InUse("The ticket is still used")
        await self._ending.until_ended(ticket_id, timeout or CLOSE_TIMEOUT)
        await until_forgotten(forgotten)
        with self._lock:
            present = transfer is not None and self._transfers.get(ticket_id) is transfer
            if present:
                del self._transfers[ticket_id]
        if present and transfer is not None:
            self._events.tell("ticket removed", by, transfer=transfer.ticket.log_name)

    def _tell_canceled(self, transfer: Transfer, by: Caller) -> None:
        """Tell of a cancel, before it happens. A removal that is tried again is no other cancel."""
        if not transfer.permission.canceled:
            self._events.tell("ticket canceled", by, transfer=transfer.ticket.log_name)

    async def clear(self, by: Caller = DAEMON) -> None:
        """Cancel and remove all tickets, without waiting for requests. Raises as remove() does."""
        taken = self._take_all()
        for transfer in taken:
            self._events.tell("ticket removed", by, transfer=transfer.ticket.log_name)
        ids = {transfer.ticket.ticket_id for transfer in taken}
        ids.update(self.keeping.ids())  # of earlier removals that have failed, too
        await until_forgotten(self.keeping.forget(ids))

    def _take_all(self, *, goes_on: bool = False) -> list[Transfer]:
        """Take all transfers out of the store, and cancel them; see Transfer.cancel()."""
        with self._lock:
            transfers = list(self._transfers.values())
            self._transfers.clear()
            for transfer in transfers:
                self._ending.add(transfer.end)
        for transfer in transfers:
            self._cancel(transfer, goes_on=goes_on)
        return transfers

    def interrupt(self) -> None:
        """Cancel all transfers, for the shutdown. Their requests end at their next step. The next process has them."""
        self.keeping.renew(at_end=True)
        self._take_all(goes_on=True)

    async def close(self) -> None:
        """Do as interrupt(), and wait until all transfers have ended, with their images flushed and closed."""
        self.interrupt()
        for end in self._ending.all():
            await end.until_ended()

    def _require_room(self, replaced: Transfer | None) -> None:
        """Raise TooManyTickets if there is no room for another ticket. Called with the lock."""
        if replaced is None and len(self._transfers) >= self.most_tickets:
            raise TooManyTickets(f"The limit of {self.most_tickets} tickets is reached")
        self._ending.require_room(len(self._transfers), self.most_tickets)

    def _cancel(self, transfer: Transfer, *, goes_on: bool = False) -> None:
        """Cancel a transfer. The registry has it already, so no other transfer opens its image before its end."""
        transfer.cancel(goes_on=goes_on)
        self._ending.add(transfer.end)
