# SPDX-License-Identifier: Apache-2.0
"""The kept tickets of a store: their files are read at the start, written after each change and renewal, and removed.

After a crash, a ticket has the expiry that was last written. The file is written again when use has renewed the ticket
by more than a part of its timeout. So after a crash the ticket may expire that much earlier, and never later.
"""

import asyncio
import errno
import heapq
import logging
import os
from collections.abc import Iterable, Iterator, Mapping

from ..errors import Error, InvalidRequest, StorageError, Unavailable
from ..runtime import logs
from ..runtime.file_writer import Done, FileWriter
from ..runtime.state import StateDirectory, read_file
from .kept_ticket import MAX_TICKET_FILE, Clocks, KeptTicket, file_name
from .traffic import Clock
from .transfer import Transfer

log = logging.getLogger(__name__)

#: A file is written again when use has renewed the ticket by more than this part of its timeout.
RENEWED_PART = 1 / 4
#: Most files that are written again at a time, so that new tickets do not wait for long.
MOST_RENEWED = 64
#: Most seconds that an answer waits for the disk.
KEEP_TIMEOUT = 10.0
#: Least seconds of a renewal for which a file is written, also at the end of the daemon.
RENEWED_AT_END = 1.0


class KeptTickets:
    """Keep the files of a store's tickets in step with the store. Without a state directory, keep nothing.

    The constructor blocks. If the tickets are not `wanted`, it removes those that were kept before, so that these do
    not come back when they are wanted again. If the directory cannot be used, it logs that. `transfers` are those of
    the store. The clock is that of the leases, in seconds. The file of a ticket changes in the same order as the
    ticket.
    """

    def __init__(
        self, state: StateDirectory | None, clock: Clock, transfers: Mapping[str, Transfer], *, wanted: bool
    ) -> None:
        self._clock = clock
        self._transfers = transfers
        self._files: FileWriter | None = None
        self._directory = -1
        self._why_none = ""
        #: The expiry in each file, by ticket id, or -1 if it is unknown. Only a thread of the writer changes this.
        self._on_disk: dict[str, float] = {}
        self._renewing: list[Done] = []
        if state is None:
            return
        try:
            self._directory = state.directory("tickets")
            files = FileWriter(self._directory, "tickets")
            if wanted:
                self._files = files
            else:
                self._clear(files)
        except OSError as e:
            log.warning("tickets are not kept in the state directory: %s", e.strerror or e)
            self._why_none = (e.strerror or str(e)) if wanted else ""

    def why_not_kept(self) -> str:
        """Return why tickets do not outlive the process as they should, or "" if they do."""
        if self._files is None:
            return self._why_none
        if not (why := self._files.why):
            return ""
        transfers = list(self._transfers.values())
        return why if any(t.kept and self._outdated(t) and self._told(t) < 0 for t in transfers) else ""

    def load(self) -> Iterator[KeptTicket]:
        """Yield the tickets that have not expired, each at once after reading, because its life goes on. Blocks.

        Removes other files, and logs damaged ones in one line.
        """
        files = self._files
        if files is None:
            return
        damaged: list[str] = []
        for name in sorted(os.listdir(self._directory)):
            try:
                record = self._read(name)
            except (OSError, Error) as e:
                damaged.append(str(e))
                files.remove(name)
                continue
            if record.remaining > 0:
                self._on_disk[record.ticket.ticket_id] = self._clock() + record.remaining
                yield record
            else:
                files.remove(name)
        if damaged:
            log.warning("damaged kept tickets are dropped", extra=logs.fields(count=len(damaged), first=damaged[0]))

    async def keep(self, transfer: Transfer) -> bool:
        """Keep a ticket as it is now; see TransferStore.keep()."""
        if self._files is None or not self._is_kept(transfer):
            return False
        return await _until_done(self._bring_in_step(self._files, transfer))

    def renew(self, *, at_end: bool = False) -> None:
        """Write the files of tickets that use has renewed, and remove those of expired ones, without waiting.

        With `at_end`, write all these files. Otherwise write some, and let later calls write the others.
        """
        files = self._files
        if files is None or (not at_end and not all(done.done() for done in self._renewing)):
            return
        found = (t for t in list(self._transfers.values()) if t.kept and self._outdated(t, at_end=at_end))
        # First those that would expire first after a crash. So each has its turn, however many there are.
        outdated = list(found) if at_end else heapq.nsmallest(MOST_RENEWED, found, key=self._told)
        self._renewing = [self._bring_in_step(files, t, renews=True) for t in outdated if self._is_kept(t)]

    def forget(self, ids: Iterable[str]) -> list[Done]:
        """Remove the files of these ids. If the store has a ticket with such an id now, write its file instead."""
        files = self._files
        if files is None:
            return []
        found = [(ticket_id, self._transfers.get(ticket_id)) for ticket_id in ids]
        return [
            self._bring_in_step(files, t) if t is not None and t.kept else self._remove(files, name)
            for name, t in found
        ]

    def ids(self) -> list[str]:
        """Return the ids of tickets that may have a file."""
        return list(self._on_disk)

    def close(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until all tickets are kept. Keep nothing after that. Blocks.

        Return False if not all are kept. Then the state directory is still in use.
        """
        return self._files is None or _close(self._files, timeout)

    # Files

    def _clear(self, files: FileWriter) -> None:
        """Remove all files. Blocks."""
        for name in os.listdir(self._directory):
            files.remove(name)
        _close(files, KEEP_TIMEOUT)

    def _read(self, name: str) -> KeptTicket:
        data = read_file(self._directory, name, MAX_TICKET_FILE)
        record = KeptTicket.decode(data, Clocks.read())
        if file_name(record.ticket.ticket_id) != name:
            raise InvalidRequest("it is the file of another ticket")
        return record

    def _bring_in_step(self, files: FileWriter, transfer: Transfer, *, renews: bool = False) -> Done:
        """Write the file of a valid ticket, or remove that of another. With `renews`, only use has changed the ticket.

        Then an old file stays if it cannot be replaced. Raises InvalidRequest if the state of the ticket is too large.
        """
        ticket_id, expires = transfer.ticket.ticket_id, transfer.until
        if expires <= self._clock():
            return self._remove(files, ticket_id)
        renews = renews and self._told(transfer) >= 0
        record = KeptTicket(transfer.ticket, expires - self._clock(), transfer.kept_state)
        done = files.write(file_name(ticket_id), record.encode(Clocks.read()), keep_old=renews)
        done.add_done_callback(lambda done: self._note(ticket_id, done, expires, renews=renews))
        return done

    def _remove(self, files: FileWriter, ticket_id: str) -> Done:
        done = files.remove(file_name(ticket_id))
        done.add_done_callback(lambda done: self._note(ticket_id, done, None))
        return done

    def _note(self, ticket_id: str, done: Done, expires: float | None, *, renews: bool = False) -> None:
        """Note the state of a file on the disk. A thread of the writer calls this."""
        if done.exception() is not None:
            if not renews:
                self._on_disk[ticket_id] = -1.0
        elif expires is None or not done.result():
            self._on_disk.pop(ticket_id, None)
        else:
            self._on_disk[ticket_id] = expires

    def _told(self, transfer: Transfer) -> float:
        """Return the expiry in the file of a ticket, or -1 if it is unknown or there is no file."""
        return self._on_disk.get(transfer.ticket.ticket_id, -1.0)

    def _outdated(self, transfer: Transfer, *, at_end: bool = False) -> bool:
        """Return whether the file has to be written or removed, because the ticket was renewed or has expired.

        With `at_end` the daemon ends, so even a short renewal has to be written.
        """
        told, until = self._on_disk.get(transfer.ticket.ticket_id), transfer.until
        if until <= self._clock():
            return told is not None
        if told is None:
            return True
        return until - told > (
            RENEWED_AT_END if at_end else max(RENEWED_AT_END, transfer.ticket.timeout * RENEWED_PART)
        )

    def _is_kept(self, transfer: Transfer) -> bool:
        """Return whether a transfer is in the store, and should outlive the process."""
        return transfer.kept and self._transfers.get(transfer.ticket.ticket_id) is transfer


async def until_forgotten(wishes: Iterable[Done]) -> None:
    """Wait until the files of forget() are durably removed. Raises StorageError, Unavailable."""
    for done in wishes:
        await _until_done(done)


async def _until_done(done: Done) -> bool:
    """Return the result of a write or removal by FileWriter, which goes on if the task is cancelled.

    Raises StorageError for OSError, and Unavailable if the disk does not answer within KEEP_TIMEOUT.
    """
    waiting = asyncio.wrap_future(done)
    waiting.add_done_callback(_look_at)
    try:
        async with asyncio.timeout(KEEP_TIMEOUT):
            return await asyncio.shield(waiting)
    except TimeoutError:
        raise Unavailable("The state directory does not answer") from None
    except OSError as e:
        raise StorageError(e.errno or errno.EIO, "change kept tickets", "the state directory") from None


def _look_at(future: "asyncio.Future[bool]") -> None:
    """Retrieve the exception. Otherwise asyncio logs it if the waiting task was cancelled."""
    if not future.cancelled():
        future.exception()


def _close(files: FileWriter, timeout: float) -> bool:
    ended = files.close(timeout)
    if not ended:
        log.error("tickets were not kept: the state directory does not answer")
    return ended
