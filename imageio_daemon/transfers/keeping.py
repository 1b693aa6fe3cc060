# SPDX-License-Identifier: Apache-2.0
"""The tickets of a store that outlive the process: kept after each change, renewed by and by, forgotten in time.

Shared by the event loops; transfers/__init__.py has the rules.
"""

import heapq
import threading
from collections.abc import Iterable, Iterator, Mapping

from ..service.keeper import Done
from .kept import KEEP_TIMEOUT, MOST_RENEWED, KeptTickets, until_done
from .kept_record import Record
from .transfer import Transfer


class Keeping:
    """Keep the files of a store's tickets in step with them. kept: None: nothing is kept.

    lock, transfers: the store's. The files of a ticket change under the lock, in the order in which the store changes.
    """

    def __init__(self, kept: KeptTickets | None, lock: threading.Lock, transfers: Mapping[str, Transfer]) -> None:
        self._kept = kept
        self._lock = lock
        self._transfers = transfers

    def load(self) -> Iterator[Record]:
        """Return the tickets that the process before has kept; see KeptTickets.load(). Blocks."""
        return iter(()) if self._kept is None else self._kept.load()

    async def keep(self, transfer: Transfer) -> bool:
        """Keep a ticket as it is now; see TransferStore.keep()."""
        with self._lock:
            if self._kept is None or not self._is_kept(transfer):
                return False
            done = self._kept.bring_in_step(transfer)
        return await until_done(done, KEEP_TIMEOUT)

    def renew(self, *, at_end: bool = False) -> None:
        """Keep the tickets that use has renewed, and forget those that have expired, without waiting.

        at_end: all of them. Otherwise some, and a later call keeps the others.
        """
        kept = self._kept
        if kept is None or (kept.renewing and not at_end):
            return
        with self._lock:
            transfers = list(self._transfers.values())
        found = (t for t in transfers if t.kept and kept.outdated(t, at_end=at_end))
        # Those that a crash would end first: each has its turn, however many there are.
        outdated = list(found) if at_end else heapq.nsmallest(MOST_RENEWED, found, key=kept.told)
        with self._lock:  # a removal meanwhile comes before or after
            kept.renew(t for t in outdated if self._is_kept(t))

    def forget(self, ids: Iterable[str]) -> list[Done]:
        """Remove the files of tickets, or let those of tickets that have the same ids now replace them."""
        kept = self._kept
        if kept is None:
            return []
        with self._lock:
            found = [(ticket_id, self._transfers.get(ticket_id)) for ticket_id in ids]
            return [kept.bring_in_step(t) if t is not None and t.kept else kept.remove(name) for name, t in found]

    def ids(self) -> list[str]:
        """Return the ids of the tickets of which there may be a file."""
        return [] if self._kept is None else self._kept.ids()

    def close(self, timeout: float) -> bool:
        """Wait at most timeout seconds until all tickets are kept. Nothing is kept after that. Blocks.

        False: not all are kept, and the state directory is still in use.
        """
        return self._kept is None or self._kept.close(timeout)

    def _is_kept(self, transfer: Transfer) -> bool:
        """Tell whether a transfer is in the store and shall outlive the process. Called with the lock."""
        return transfer.kept and self._transfers.get(transfer.ticket.ticket_id) is transfer


async def until_forgotten(wishes: Iterable[Done]) -> None:
    """Wait until the files of forget() are durably gone. Raises StorageError, Unavailable."""
    for done in wishes:
        await until_done(done, KEEP_TIMEOUT)
