# SPDX-License-Identifier: Apache-2.0
"""All transfers of the daemon, by ticket id."""

import asyncio
import logging
import time
from collections.abc import Iterable
from functools import partial

from ..errors import DENIED, Forbidden, InUse, StorageError, TooManyTickets, Unavailable
from ..runtime import logs
from ..runtime.audit_log import DAEMON, AuditLog, Caller
from ..runtime.file_writer import Done
from ..runtime.state import StateDirectory
from ..runtime.sums import Sums
from ..storage.operation import Totals
from .active import AtWork, Drain
from .durable_records import DurableRecords
from .end import CanceledTransfers
from .kept_ticket import KeptTicket
from .kept_tickets import KeptTickets, until_forgotten
from .rate_limits import RateLimits
from .ticket import Access, Changes, Ticket
from .traffic import Clock
from .transfer import Transfer
from .transfer_image import Identify, OpenBackend

log = logging.getLogger(__name__)

#: Seconds that the close of an image may take in a removal that does not wait for requests. Usually it takes some ms.
CLOSE_TIMEOUT = 5.0
#: Tickets that clear() removes before other tasks have their turn on the event loop. Each takes 0.1 ms.
BATCH = 50


async def _unknown(_: Ticket) -> None:
    """Return None: the identity of the image is unknown."""


class TransferStore:
    """All transfers by ticket id.

    `open_backend` opens the image of a ticket, and `identify` returns its identity. The store has at most
    `most_tickets` tickets, and each ticket at most `most_connections` connections. With `keep_tickets`, the tickets of
    install() are kept in the state directory for the next process. Without a state directory, none are. `events` is the
    audit log, to which the store reports changes of tickets. The clock counts seconds.
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
        limits: RateLimits | None = None,
        events: AuditLog | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._records = records or DurableRecords(None)
        #: The rate limits.
        self.limits = limits or RateLimits()
        self._events = events or AuditLog(None)
        self._open_backend = open_backend
        self._identify = identify
        self.most_tickets = most_tickets
        self._most_connections = most_connections
        self._clock = clock
        self._transfers: dict[str, Transfer] = {}
        self._canceled = CanceledTransfers()
        #: The files of the tickets of install().
        self.kept_tickets = KeptTickets(state, clock, self._transfers, wanted=keep_tickets)
        #: The transfers that go on, while the store drains.
        self.drain: Drain | None = None
        #: The transfers that may be active.
        self.at_work = AtWork(self._transfers)
        #: The totals of storage for all transfers, by the kind of their images.
        self.totals: Sums[str, Transfer, Totals] = Sums(Totals(), Transfer.totals)

    def add(self, ticket: Ticket) -> Transfer:
        """Add a ticket that is not kept. It replaces one with the same id, whose requests are cancelled.

        Raises TooManyTickets.
        """
        transfer, replaced = self._add(ticket, kept=False)
        if replaced:
            self.kept_tickets.forget([ticket.ticket_id])
        return transfer

    async def install(self, ticket: Ticket, by: Caller = DAEMON) -> Transfer:
        """Add a ticket as add() does, and keep it. Afterwards it outlives the process, or the log says why not.

        `by` is the caller for the audit log. Raises TooManyTickets, and Unavailable while the store drains.
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
        """Add the tickets that the previous process has kept. Blocks. Call this in a thread, before any other use."""
        dropped = 0
        for record in self.kept_tickets.load():
            try:
                self._add(record.ticket, kept=True, record=record)
            except TooManyTickets:
                self.kept_tickets.forget([record.ticket.ticket_id])
                dropped += 1
        if dropped:
            log.warning("kept tickets are dropped: there are too many", extra=logs.fields(count=dropped))

    async def change(self, transfer: Transfer, changes: Changes, by: Caller = DAEMON) -> None:
        """Change the expiry of a ticket (see Permission.extend()) or its rate limit, and keep it.

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
        """Write the file of a ticket, with its expiry and kept_state, and return whether it is durable.

        Call this after a change of expiry or kept_state. The file of a ticket that is not valid any more is removed.
        This does nothing without a state directory, for tickets of add(), and for transfers that have left the store.
        Raises StorageError if an older file may be left, Unavailable if the disk does not answer in time, and
        InvalidRequest if kept_state is too large.
        """
        return await self.kept_tickets.keep(transfer)

    def _add(
        self, ticket: Ticket, *, kept: bool, record: KeptTicket | None = None, by: Caller = DAEMON
    ) -> tuple[Transfer, bool]:
        """Add a ticket. Return its transfer, and whether it has replaced another one."""
        replaced = self._transfers.get(ticket.ticket_id)
        self._require_room(replaced)
        if replaced is not None:
            self._canceled.add(replaced.end)
        transfer = self._transfers[ticket.ticket_id] = Transfer(
            ticket,
            self._open_backend,
            self._identify,
            self._canceled,
            records=self._records,
            limits=self.limits,
            most_connections=self._most_connections,
            clock=self._clock,
        )
        transfer.kept = kept
        if record is not None:
            transfer.restore(record.remaining, record.state)
        self.totals.begin(ticket.storage, transfer)
        transfer.end.on_left += [partial(self._canceled.leave, transfer.end), partial(self.totals.end, transfer)]
        transfer.end.on_ended.append(partial(self._canceled.remove, transfer.end))
        if replaced is not None:
            self._cancel(replaced)
        if record is None:
            self._events.tell("ticket replaced" if replaced is not None else "ticket added", by, **ticket.fields())
        else:
            log.info("ticket restored", extra=logs.fields(**ticket.fields()))
        return transfer, replaced is not None

    @property
    def keeps_records(self) -> bool:
        """Return whether tickets that may write have records of durable ranges."""
        return self._records.wanted

    def get(self, ticket_id: str) -> Transfer | None:
        """Return the transfer of a ticket in any state, or None if there is no such ticket."""
        return self._transfers.get(ticket_id)

    def all(self) -> list[Transfer]:
        """Return all transfers."""
        return list(self._transfers.values())

    def authorize(self, ticket_id: str, access: Access | None) -> Transfer:
        """Return the transfer of a ticket that allows this access now. For access None, it only has to be valid.

        Raises Forbidden, TooManyTransfers if too many others are active, and Unavailable while the store drains, unless
        the transfer was active when that began.
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
        """Take no more tickets, and let only those transfers go on that are active now. Repeating has no effect."""
        if self.drain is None:
            self.drain = Drain(self.all())
            self._events.tell("draining", by, transfers=self.drain.left())

    async def remove(self, ticket_id: str, timeout: float, by: Caller = DAEMON) -> None:
        """Cancel and remove a ticket. It need not exist.

        When this returns, no operation of the ticket or of another cancelled ticket on its image runs, and no later
        process will load the ticket. It waits for this at most `timeout` seconds; with 0 it does not wait for requests.
        Raises InUse if operations have not ended by then, and StorageError or Unavailable if the file of the ticket
        cannot be removed. In both cases the ticket stays in the store, cancelled.
        """
        transfer = self._transfers.get(ticket_id)
        if transfer is not None:
            self._canceled.add(transfer.end)
            if not transfer.permission.canceled:  # otherwise an earlier removal has reported it
                self._events.tell("ticket canceled", by, transfer=transfer.ticket.log_name)
            self._cancel(transfer)
        forgotten = self.kept_tickets.forget([ticket_id])
        if timeout == 0 and any(other.in_use for other in self._canceled.of_ticket(ticket_id)):
            raise InUse("The ticket is still used")
        await self._canceled.until_ended(ticket_id, timeout or CLOSE_TIMEOUT)
        await until_forgotten(forgotten)
        if transfer is not None and self._transfers.get(ticket_id) is transfer:
            del self._transfers[ticket_id]
            self._events.tell("ticket removed", by, transfer=transfer.ticket.log_name)

    async def clear(self, by: Caller = DAEMON) -> None:
        """Cancel and remove all tickets, without waiting for requests. Raises as remove() does.

        Tickets whose turn has not come stay valid until then, and if the task is cancelled, after that.
        """
        forgotten: list[Done] = []
        ids = list(dict.fromkeys([*self._transfers, *self.kept_tickets.ids()]))  # also those of failed removals
        for start in range(0, len(ids), BATCH):
            if start:
                await asyncio.sleep(0)
            batch = ids[start : start + BATCH]
            for transfer in self._take(batch):
                self._events.tell("ticket removed", by, transfer=transfer.ticket.log_name)
            forgotten += self.kept_tickets.forget(batch)
        await until_forgotten(forgotten)

    def _take(self, ids: Iterable[str], *, goes_on: bool = False) -> list[Transfer]:
        """Take the transfers of tickets out of the store, and cancel them; see Transfer.cancel()."""
        transfers = [self._transfers.pop(ticket_id) for ticket_id in ids if ticket_id in self._transfers]
        for transfer in transfers:
            self._canceled.add(transfer.end)
        for transfer in transfers:
            self._cancel(transfer, goes_on=goes_on)
        return transfers

    def interrupt(self) -> None:
        """Cancel all transfers, because the process ends. Requests end at their next step. The next process goes on."""
        self.kept_tickets.renew(at_end=True)
        self._take(list(self._transfers), goes_on=True)

    async def close(self) -> None:
        """Do as interrupt(), then wait until all transfers have ended, with their images flushed and closed."""
        self.interrupt()
        for end in self._canceled.all():
            await end.until_ended()

    def _require_room(self, replaced: Transfer | None) -> None:
        """Raise TooManyTickets if there is no room for another ticket."""
        if replaced is None and len(self._transfers) >= self.most_tickets:
            raise TooManyTickets(f"The limit of {self.most_tickets} tickets is reached")
        self._canceled.require_room(len(self._transfers), self.most_tickets)

    def _cancel(self, transfer: Transfer, *, goes_on: bool = False) -> None:
        """Cancel a transfer. Add it to self._canceled before, so that no other one opens its image before its end."""
        transfer.cancel(goes_on=goes_on)
        self._canceled.add(transfer.end)
