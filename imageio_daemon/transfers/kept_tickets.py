# SPDX-License-Identifier: Apache-2.0
"""The kept tickets of a store. Files are written after each change and renewal, and removed in time."""

import heapq
import logging
from collections.abc import Iterable, Iterator, Mapping

from ..runtime.file_writer import Done
from ..runtime.state import StateDirectory
from .kept_ticket import KeptTicket
from .permission import Clock
from .ticket_files import KEEP_TIMEOUT, MOST_RENEWED, TicketFiles, open_ticket_files, until_done
from .transfer import Transfer

log = logging.getLogger(__name__)


class KeptTickets:
    """Keep the files of a store's tickets in step with the store.

    If tickets are not kept, `files` is None, and `why_none` is the reason if they should be. `transfers` are those of
    the store. The file of a ticket changes in the same order as the ticket.
    """

    def __init__(self, files: TicketFiles | None, transfers: Mapping[str, Transfer], why_none: str = "") -> None:
        self._files = files
        self._why_none = why_none
        self._transfers = transfers

    @classmethod
    def open(
        cls,
        state: StateDirectory | None,
        clock: Clock,
        transfers: Mapping[str, Transfer],
        *,
        wanted: bool,
    ) -> "KeptTickets":
        """Open the files of tickets in a state directory, if they are wanted; see open_ticket_files(). Blocks.

        If the directory cannot be used, log that, and keep nothing.
        """
        try:
            return cls(open_ticket_files(state, clock, wanted=wanted), transfers)
        except OSError as e:
            log.warning("tickets are not kept in the state directory: %s", e.strerror or e)
            return cls(None, transfers, (e.strerror or str(e)) if wanted else "")

    def why_not_kept(self) -> str:
        """Return why tickets do not outlive the process as they should, or "" if they do."""
        files = self._files
        if files is None:
            return self._why_none
        if not (why := files.why_failing):
            return ""
        transfers = list(self._transfers.values())
        return why if any(t.kept and files.outdated(t) and files.told(t) < 0 for t in transfers) else ""

    def load(self) -> Iterator[KeptTicket]:
        """Return the tickets that the previous process has kept; see TicketFiles.load(). Blocks."""
        return iter(()) if self._files is None else self._files.load()

    async def keep(self, transfer: Transfer) -> bool:
        """Keep a ticket as it is now; see TransferStore.keep()."""
        if self._files is None or not self._is_kept(transfer):
            return False
        done = self._files.bring_in_step(transfer)
        return await until_done(done, KEEP_TIMEOUT)

    def renew(self, *, at_end: bool = False) -> None:
        """Write the files of tickets that use has renewed, and remove those of expired ones, without waiting.

        With `at_end`, write all of them. Otherwise write some, and let a later call write the others.
        """
        files = self._files
        if files is None or (files.renewing and not at_end):
            return
        transfers = list(self._transfers.values())
        found = (t for t in transfers if t.kept and files.outdated(t, at_end=at_end))
        # First those that would expire first after a crash. So each has its turn, however many there are.
        outdated = list(found) if at_end else heapq.nsmallest(MOST_RENEWED, found, key=files.told)
        files.renew(t for t in outdated if self._is_kept(t))

    def forget(self, ids: Iterable[str]) -> list[Done]:
        """Remove the files of these ids. If the store has a ticket with such an id now, write its file instead."""
        files = self._files
        if files is None:
            return []
        found = [(ticket_id, self._transfers.get(ticket_id)) for ticket_id in ids]
        return [files.bring_in_step(t) if t is not None and t.kept else files.remove(name) for name, t in found]

    def ids(self) -> list[str]:
        """Return the ids of tickets that may have a file."""
        return [] if self._files is None else self._files.ids()

    def close(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until all tickets are kept. Keep nothing after that. Blocks.

        Return False if not all are kept. Then the state directory is still in use.
        """
        return self._files is None or self._files.close(timeout)

    def _is_kept(self, transfer: Transfer) -> bool:
        """Tell whether a transfer is in the store, and should outlive the process."""
        return transfer.kept and self._transfers.get(transfer.ticket.ticket_id) is transfer


async def until_forgotten(wishes: Iterable[Done]) -> None:
    """Wait until the files of forget() are durably removed. Raises StorageError, Unavailable."""
    for done in wishes:
        await until_done(done, KEEP_TIMEOUT)
