# SPDX-License-Identifier: Apache-2.0
"""The records of durable ranges of all open images that tickets may write (ADR 21).

A record belongs to one ticket and one image, and both are needed to find its journal again. While several tickets may
write an image, it has no record.
"""

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from ..errors import StorageError
from ..image import journal
from ..image.blake2 import short_hash
from ..runtime import logs
from ..runtime.background import in_thread, start_thread, surely
from ..runtime.state import UNFINISHED, StateDirectory, read_file, remove_file
from ..storage.backend import Backend, BackendInfo
from ..storage.durable import NO_RECORD, DurableRecord
from .ticket import Access, Ticket

log = logging.getLogger(__name__)

#: The directory of journals in the state directory.
DIRECTORY = "durable"
#: Seconds after which an unused journal is removed. An upload that is continued later starts from the beginning.
MOST_AGE = 14 * 24 * 3600
#: Most journals that are kept, the newest ones. With 4 KiB each, they have 40 MiB.
MOST_JOURNALS = 10_000
#: Seconds between removals of old journals.
TIDY_INTERVAL = 3600.0

#: Removes a journal: directory, name, and the time of its last change in ns.
Remove = Callable[[int, str, int], None]


class _Image:
    """An image that tickets have opened for writing. Two of the same image have equal keys.

    The lock is held while a writer comes or leaves, with all that this does on the disk. So none writes before the
    records of the others are void, and none reads a journal before the journal's record has ended.
    """

    def __init__(self, key: object) -> None:
        self.key = key
        self.lock = threading.Lock()
        self.writers: list[RecordWriter] = []
        #: Number of writers that are there, come or leave.
        self.users = 0


@dataclass(eq=False)
class RecordWriter:
    """An open image that a ticket may write."""

    ticket: Ticket
    image: _Image
    record: DurableRecord = NO_RECORD
    #: Whether another ticket may write the image, too, or could before.
    shared: bool = False
    #: Whether the image should have a record that could not be made.
    lacks: bool = False
    #: Whether this writer has left.
    left: bool = False
    #: Whether it was logged that the journal cannot be kept.
    told: bool = False
    #: The journal that the record has or will have, or "".
    journal: str = ""


class DurableRecords:
    """Make, find and end records. Threads do what blocks on the disk.

    Without a state directory, all records are empty. Pass wanted=True if the operator wants records. Then clients learn
    that there are records.
    """

    def __init__(self, state: StateDirectory | None, *, wanted: bool = False) -> None:
        self.wanted = wanted
        self._lock = threading.Lock()
        self._images: dict[object, _Image] = {}
        #: Held while an unused journal is removed, and while a writer says which journal it is going to use.
        self._removal = threading.Lock()
        self._directory, self._why_none = (None, "") if state is None else _open_directory(state)
        self._tidied = time.monotonic()
        self._working: Future[None] | None = None

    def why_not_kept(self) -> str:
        """Return why records do not outlive the process as they should, or "" if they do."""
        writers = self._writers()
        if any(writer.lacks for writer in writers):
            return "the record of an image cannot be made"
        error = next((error for writer in writers if (error := writer.record.state().error)), 0)
        return self._why_none or (os.strerror(error) if error else "")

    async def open(self, ticket: Ticket, backend: Backend) -> RecordWriter | None:
        """Begin the record of an image that was just opened, until close(). Return None if the ticket may not write.

        Raises StorageError if an old record cannot be removed, and Unavailable if there is no thread for this. Then the
        image must not be written.
        """
        if not ticket.may(Access.WRITE):
            return None
        info = backend.info
        writer = RecordWriter(ticket, self._enter(info.identity or info.lasting or ticket.url))
        try:
            await in_thread(lambda: self._begin(writer, info))
            if writer.record is not NO_RECORD:
                backend.keep(writer.record)
        except BaseException:
            await self.close(writer)
            raise
        return writer

    async def close(self, writer: RecordWriter) -> None:
        """End the record of an image that was closed. Its journal stays."""
        self._tell(writer)
        await surely(lambda: in_thread(lambda: self._end(writer)))

    def watch(self) -> None:
        """Write what journals lack, log journals that cannot be kept, and remove old ones. Call this every few seconds.

        It does not wait for the disk. While the disk hangs, later calls only log.
        """
        writers = self._writers()
        for writer in writers:
            self._tell(writer)
        if not self.working:
            due = [writer for writer in writers if writer.record.is_due]
            tidies = self._directory is not None and time.monotonic() - self._tidied >= TIDY_INTERVAL
            if due or tidies:
                self._working = start_thread(lambda: self._work(due, tidies=tidies))

    @property
    def working(self) -> bool:
        """Return whether a thread still works for an earlier watch()."""
        return self._working is not None and not self._working.done()

    def _work(self, due: Sequence[RecordWriter], *, tidies: bool) -> None:
        for writer in due:
            writer.record.write()
        if tidies and self._directory is not None:
            self._tidied = time.monotonic()
            _tidy_or_tell(self._directory, self._remove_unused)

    def _writers(self) -> list[RecordWriter]:
        with self._lock:
            return [writer for image in self._images.values() for writer in image.writers]

    def _remove_unused(self, directory: int, name: str, changed: int) -> None:
        """Remove a journal, unless a writer uses it, or has used it since it was found. Blocks. Raises OSError."""
        with self._removal:
            used = any(writer.journal == name for writer in self._writers())
            if not used and os.stat(name, dir_fd=directory).st_mtime_ns == changed:
                os.unlink(name, dir_fd=directory)

    def _enter(self, key: object) -> _Image:
        with self._lock:
            image = self._images.setdefault(key, _Image(key))
            image.users += 1
            return image

    def _begin(self, writer: RecordWriter, info: BackendInfo) -> None:
        """Begin the record of the only writer, or void the records of all writers. Blocks. Raises StorageError."""
        image = writer.image
        with image.lock:
            if writer.left:
                return
            for other in image.writers:
                writer.shared = other.shared = True
                other.record.void()  # also after an earlier call has failed
            image.writers.append(writer)
            writer.record = self._make(writer, info)

    def _end(self, writer: RecordWriter) -> None:
        """End a record. _begin() may not have run yet. Blocks."""
        image = writer.image
        with image.lock:
            writer.left = True
            if writer in image.writers:
                image.writers.remove(writer)
            writer.record.end()
        with self._lock:
            image.users -= 1
            if not image.users:
                del self._images[image.key]

    def _make(self, writer: RecordWriter, info: BackendInfo) -> DurableRecord:
        """Make the record of a writer. If the image is written without a record, remove its journal. Blocks."""
        if self._directory is None:
            return NO_RECORD
        if info.lasting is None:
            log.info("no record of durable ranges: the image has no lasting identity", extra=_fields(writer.ticket))
            return NO_RECORD
        name = short_hash(info.lasting)
        with self._removal:
            writer.journal = name
        if writer.shared or not info.can_flush:
            _remove(self._directory, name)
            return NO_RECORD
        record = _new_record(self._directory, name, writer.ticket, info)
        writer.lacks = record is NO_RECORD
        return record

    def _tell(self, writer: RecordWriter) -> None:
        error = writer.record.state().error
        if error and not writer.told:
            writer.told = True
            reason = os.strerror(error)
            log.warning("the record of durable ranges is not kept: %s", reason, extra=_fields(writer.ticket))


def _fields(ticket: Ticket) -> dict[str, dict[str, object]]:
    return logs.fields(transfer=ticket.log_name)


def _new_record(directory: int, name: str, ticket: Ticket, info: BackendInfo) -> DurableRecord:
    """Make a record with the ranges in the image's journal, if that is of this ticket. Blocks. Raises StorageError.

    The ranges are not used if somebody else has changed the image. It then is shorter than the ranges, or has another
    size although it cannot grow.
    """
    size = "any" if info.can_grow else info.size
    header = f"{name} {short_hash(f'{ticket.ticket_id} {ticket.format} {ticket.backing_chain} {size}')}"
    ranges = _read(directory, name, header)
    if ranges and ranges[-1][1] > info.size:
        log.warning("the record of durable ranges is dropped: the image has become shorter", extra=_fields(ticket))
        ranges = []
    try:
        return DurableRecord.new(directory, name, header, ranges)
    except StorageError as e:
        _remove(directory, name)
        log.warning("the record of durable ranges is not kept: %s", e, extra=_fields(ticket))
        return NO_RECORD


def _read(directory: int, name: str, header: str) -> list[tuple[int, int]]:
    try:
        return journal.read(read_file(directory, name, journal.MAX_JOURNAL), header)
    except FileNotFoundError:
        return []
    except (OSError, journal.Damaged) as e:
        log.warning("the record of durable ranges is dropped: the journal %s: %s", name, e)
        return []


def _remove(directory: int, name: str) -> None:
    """Remove a journal, durably. Blocks. Raises StorageError."""
    try:
        remove_file(directory, name)
    except OSError as e:
        raise StorageError(e.errno or errno.EIO, "remove a record of what is durable", "journal", name) from None


def _open_directory(state: StateDirectory) -> tuple[int | None, str]:
    """Return the directory of journals, and remove old ones. Return None and the reason if that fails. Blocks."""
    try:
        directory = state.directory(DIRECTORY)
        _tidy(directory, lambda directory, name, _: os.unlink(name, dir_fd=directory))
    except OSError as e:
        log.warning("the record of durable ranges is not kept: %s", e)
        return None, e.strerror or str(e)
    return directory, ""


def _tidy(directory: int, remove: Remove) -> None:
    """Remove journals that are old or too many, if they are not in use. Blocks. Raises OSError."""
    found = [(os.stat(name, dir_fd=directory).st_mtime_ns, name) for name in os.listdir(directory)]
    found.sort(reverse=True)
    oldest = time.time_ns() - MOST_AGE * 10**9
    for number, (changed, name) in enumerate(found):
        if (number >= MOST_JOURNALS or changed < oldest) and not name.startswith(UNFINISHED):
            remove(directory, name, changed)


def _tidy_or_tell(directory: int, remove: Remove) -> None:
    try:
        _tidy(directory, remove)
    except FileNotFoundError:
        return  # a record has just become void; the next call removes the other journals
    except OSError as e:
        log.warning("old records of durable ranges cannot be removed: %s", e)
