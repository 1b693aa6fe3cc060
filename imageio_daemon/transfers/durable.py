# SPDX-License-Identifier: Apache-2.0
"""The records of durable ranges of all open images that tickets may write (ADR 21).

A record belongs to one ticket and one image: its journal is found again by both. While another ticket may write the
same image, there is none.
"""

import errno
import hashlib
import logging
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import StorageError
from ..image import journal
from ..service import logs
from ..service.state import StateDirectory, read_file
from ..storage.backend import Backend, BackendInfo
from ..storage.durable import NO_RECORD, DurableRecord
from ..storage.threads import in_thread
from .ticket import Access, Ticket

log = logging.getLogger(__name__)

#: The directory of journals in the state directory.
DIRECTORY = "durable"
#: Seconds after which a journal that nobody has used is removed, at the start: an upload that is continued later starts
#: from the beginning.
MOST_AGE = 14 * 24 * 3600.0
#: Journals that are kept at the start: the newest ones. With 4 KiB each, 40 MiB.
MOST_JOURNALS = 10_000


@dataclass(eq=False)
class Writer:
    """An open image that a ticket may write. image: a key that is equal for two of the same image."""

    ticket: Ticket
    image: object
    record: DurableRecord = NO_RECORD
    #: Another ticket may write the image, too, or has done so.
    shared: bool = False
    #: That the journal cannot be kept was logged.
    told: bool = False


class DurableRecords:
    """Make, find and end records. Thread-safe.

    state: the state directory; None: there is none, or it cannot be used, and all records are empty. wanted: the
    operator wants records, and clients are told that there are some.
    """

    def __init__(self, state: StateDirectory | None, *, wanted: bool = False) -> None:
        self.wanted = wanted
        self._lock = threading.Lock()
        self._writers: dict[object, set[Writer]] = {}
        self._directory = None if state is None else _open_directory(state)

    async def open(self, ticket: Ticket, backend: Backend) -> Writer | None:
        """Let an image that was just opened keep a record; None: the ticket may not write it. close() ends it.

        Raises StorageError: a record that must go cannot be removed, so the image must not be written.
        """
        if not ticket.may(Access.WRITE):
            return None
        info = backend.info
        writer = Writer(ticket, (info.identity, None) if info.identity is not None else (None, ticket.url))
        try:
            for other in self._join(writer):
                await in_thread(other.record.void)
            await self._begin(writer, info)
            if writer.record is not NO_RECORD:
                backend.keep(writer.record)
        except BaseException:
            await self.close(writer)
            raise
        return writer

    async def close(self, writer: Writer) -> None:
        """End the record of an image that was closed. Its journal stays."""
        with self._lock:
            writers = self._writers[writer.image]
            writers.remove(writer)
            if not writers:
                del self._writers[writer.image]
        self._tell(writer)
        await in_thread(writer.record.release)

    async def watch(self) -> None:
        """Write what journals lack, and log those that cannot be kept. Called every few seconds."""
        with self._lock:
            writers = [writer for writers in self._writers.values() for writer in writers]
        due = [writer for writer in writers if writer.record.is_due]
        if due:
            await in_thread(lambda: _write(due))
        for writer in writers:
            self._tell(writer)

    def _join(self, writer: Writer) -> list[Writer]:
        """Add a writer, and return those whose records have to go, because they are not alone any more."""
        with self._lock:
            others = self._writers.setdefault(writer.image, set())
            found = [other for other in others if not other.shared]
            for other in found:
                other.shared = True
            writer.shared = bool(others)
            others.add(writer)
        return found

    async def _begin(self, writer: Writer, info: BackendInfo) -> None:
        directory, lasting = self._directory, info.lasting
        if directory is None or writer.shared or not info.can_flush:
            return
        if lasting is None:
            log.info("no record of what is durable: the image has no lasting identity", extra=_fields(writer.ticket))
            return
        record = await in_thread(lambda: _new_record(directory, writer.ticket, lasting, info.size))
        with self._lock:
            writer.record = record
            shared = writer.shared
        if shared:  # by a ticket that came meanwhile
            await in_thread(record.void)

    def _tell(self, writer: Writer) -> None:
        error = writer.record.state().error
        if error and not writer.told:
            writer.told = True
            log.warning("what is durable is not kept: %s", os.strerror(error), extra=_fields(writer.ticket))


def _write(writers: Iterable[Writer]) -> None:
    for writer in writers:
        writer.record.write()


def _fields(ticket: Ticket) -> dict[str, dict[str, object]]:
    return logs.fields(transfer=ticket.log_name)


def _new_record(directory: int, ticket: Ticket, lasting: str, size: int) -> DurableRecord:
    """Make a record with what the journal of the image tells, if it is of this ticket. Blocks.

    size: of the image, in bytes. One that is shorter than what was durable has been changed by somebody else.
    """
    name = _hash(lasting)
    header = f"{name} {_hash(f'{ticket.ticket_id} {ticket.format} {ticket.backing_chain}')}"
    ranges = _read(directory, name, header)
    if ranges and ranges[-1][1] > size:
        log.warning("what was durable is not known: the image has become shorter", extra=_fields(ticket))
        ranges = []
    try:
        return DurableRecord.new(directory, name, header, ranges)
    except StorageError as e:
        if e.errno == errno.EBUSY:
            raise
        log.warning("what is durable is not kept: %s", e, extra=_fields(ticket))
        return NO_RECORD


def _read(directory: int, name: str, header: str) -> list[tuple[int, int]]:
    try:
        return journal.read(read_file(directory, name, journal.MAX_JOURNAL), header)
    except FileNotFoundError:
        return []
    except (OSError, journal.Damaged) as e:
        log.warning("what was durable is not known: the journal %s: %s", name, e)
        return []


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _open_directory(state: StateDirectory) -> int | None:
    """Return the directory of journals, and remove old ones. None: it cannot be used. Blocks."""
    try:
        directory = state.directory(DIRECTORY)
        found = [(os.stat(name, dir_fd=directory).st_mtime, name) for name in os.listdir(directory)]
        found.sort(reverse=True)
        oldest = time.time() - MOST_AGE
        for number, (changed, name) in enumerate(found):
            if number >= MOST_JOURNALS or changed < oldest:
                os.unlink(name, dir_fd=directory)
    except OSError as e:
        log.warning("what is durable is not kept: %s", e)
        return None
    return directory
