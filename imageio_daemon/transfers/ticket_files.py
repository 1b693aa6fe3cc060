# SPDX-License-Identifier: Apache-2.0
"""The files of tickets in the state directory: they are read at the start, and written while the daemon runs.

After a crash, a ticket has the expiry that was last written. The file is written again when use has renewed the ticket
by more than a part of its timeout. So after a crash the ticket may expire that much earlier, and never later.
"""

import asyncio
import errno
import logging
import os
from collections.abc import Iterable, Iterator

from ..errors import Error, InvalidRequest, StorageError, Unavailable
from ..runtime import logs
from ..runtime.file_writer import Done, FileWriter
from ..runtime.state import StateDirectory, read_file
from .kept_ticket import MAX_TICKET_FILE, Clocks, KeptTicket, file_name
from .permission import Clock
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


class TicketFiles:
    """The files of tickets, in the directory with this descriptor.

    Call write() and remove() for a ticket in the order of its changes. The clock is that of the leases, in seconds.
    """

    def __init__(self, directory: int, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._writer = FileWriter(directory, "tickets")
        #: The expiry in each file, by ticket id, or -1 if it is unknown. Only a thread of the writer changes this.
        self._on_disk: dict[str, float] = {}
        self._renewing: list[Done] = []

    def load(self) -> Iterator[KeptTicket]:
        """Yield the tickets that have not expired, each at once after reading, because its life goes on. Blocks.

        Removes other files, and logs damaged ones in one line.
        """
        damaged: list[str] = []
        for name in sorted(os.listdir(self._directory)):
            try:
                record = self._read(name)
            except (OSError, Error) as e:
                damaged.append(str(e))
                self._writer.remove(name)
                continue
            if record.remaining > 0:
                self._on_disk[record.ticket.ticket_id] = self._clock() + record.remaining
                yield record
            else:
                self._writer.remove(name)
        if damaged:
            log.warning("damaged kept tickets are dropped", extra=logs.fields(count=len(damaged), first=damaged[0]))

    def write(self, transfer: Transfer, *, renews: bool = False) -> Done:
        """Write a ticket as it is now; see FileWriter.write(). Raises InvalidRequest if its state is too large.

        Pass renews=True if only the expiry has changed, to a later one. Then an old file stays if it cannot be
        replaced.
        """
        ticket_id, expires = transfer.ticket.ticket_id, transfer.until
        record = KeptTicket(transfer.ticket, expires - self._clock(), transfer.kept_state)
        done = self._writer.write(file_name(ticket_id), record.encode(Clocks.read()), keep_old=renews)
        done.add_done_callback(lambda done: self._note(ticket_id, done, expires, renews=renews))
        return done

    def remove(self, ticket_id: str) -> Done:
        """Remove a ticket; see FileWriter.remove()."""
        done = self._writer.remove(file_name(ticket_id))
        done.add_done_callback(lambda done: self._note(ticket_id, done, None))
        return done

    def ids(self) -> list[str]:
        """Return the ids of tickets that may have a file."""
        return list(self._on_disk)

    def told(self, transfer: Transfer) -> float:
        """Return the expiry in the file of a ticket, or -1 if it is unknown or there is no file."""
        return self._on_disk.get(transfer.ticket.ticket_id, -1.0)

    def outdated(self, transfer: Transfer, *, at_end: bool = False) -> bool:
        """Tell whether the file has to be written or removed, because the ticket was renewed or has expired.

        With `at_end`, the daemon ends, so that even a short renewal is worth it.
        """
        told, until = self._on_disk.get(transfer.ticket.ticket_id), transfer.until
        if until <= self._clock():
            return told is not None
        if told is None:
            return True
        renewed = until - told
        return renewed > (RENEWED_AT_END if at_end else max(RENEWED_AT_END, transfer.ticket.timeout * RENEWED_PART))

    @property
    def why_failing(self) -> str:
        """Return why the last file could not be written, or "" if it was."""
        return self._writer.why

    @property
    def renewing(self) -> bool:
        """Tell whether the last files of renew() are still being written."""
        return not all(done.done() for done in self._renewing)

    def renew(self, transfers: Iterable[Transfer]) -> None:
        """Write or remove the files of these tickets, without waiting."""
        self._renewing = [self.bring_in_step(transfer, renews=True) for transfer in transfers]

    def bring_in_step(self, transfer: Transfer, *, renews: bool = False) -> Done:
        """Write the file of a valid ticket, or remove that of another. `renews` tells that only use has changed it."""
        ticket_id = transfer.ticket.ticket_id
        if transfer.until <= self._clock():
            return self.remove(ticket_id)
        return self.write(transfer, renews=renews and self._on_disk.get(ticket_id, -1.0) >= 0)

    def clear(self) -> None:
        """Remove all files, and keep nothing from now on. Blocks."""
        for name in os.listdir(self._directory):
            self._writer.remove(name)
        self.close(KEEP_TIMEOUT)

    def close(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until all is written. Return False if not; the directory is then in use."""
        ended = self._writer.close(timeout)
        if not ended:
            log.error("tickets were not kept: the state directory does not answer")
        return ended

    def _read(self, name: str) -> KeptTicket:
        data = read_file(self._directory, name, MAX_TICKET_FILE)
        record = KeptTicket.decode(data, Clocks.read())
        if file_name(record.ticket.ticket_id) != name:
            raise InvalidRequest("it is the file of another ticket")
        return record

    def _note(self, ticket_id: str, done: Done, expires: float | None, *, renews: bool = False) -> None:
        """Note what is on the disk. A thread of the writer calls this."""
        if done.exception() is not None:
            if not renews:
                self._on_disk[ticket_id] = -1.0
        elif expires is None or not done.result():
            self._on_disk.pop(ticket_id, None)
        else:
            self._on_disk[ticket_id] = expires


def open_ticket_files(state: StateDirectory | None, clock: Clock, *, wanted: bool) -> TicketFiles | None:
    """Return the files of kept tickets, or None without a state directory or if they are not wanted. Blocks.

    If they are not wanted, removes tickets that were kept before, so that these do not come back when they are wanted
    again. Raises OSError if the directory cannot be used.
    """
    if state is None:
        return None
    kept = TicketFiles(state.directory("tickets"), clock)
    if wanted:
        return kept
    kept.clear()
    return None


async def until_done(done: Done, timeout: float) -> bool:
    """Return the result of a write or removal by FileWriter, which goes on if the task is cancelled.

    Raises StorageError for OSError, and Unavailable if the disk does not answer within `timeout` seconds.
    """
    waiting = asyncio.wrap_future(done)
    waiting.add_done_callback(_look_at)
    try:
        async with asyncio.timeout(timeout):
            return await asyncio.shield(waiting)
    except TimeoutError:
        raise Unavailable("The state directory does not answer") from None
    except OSError as e:
        raise StorageError(e.errno or errno.EIO, "change kept tickets", "the state directory") from None


def _look_at(future: "asyncio.Future[bool]") -> None:
    """Retrieve the exception. Otherwise asyncio logs it if the waiting task was cancelled."""
    if not future.cancelled():
        future.exception()
