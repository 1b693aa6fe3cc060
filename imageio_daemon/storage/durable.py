# SPDX-License-Identifier: Apache-2.0
"""The record of what is durable of one image; ioutil_ext/api/durable.h has its guarantee.

C keeps the record of a file or device, operation by operation. A backend of another server's image tells the record of
each change and flush; NO_RECORD records nothing.
"""

import errno
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

from ioutil_ext import ffi, lib

from ..errors import StorageError
from .threads import in_thread

#: Ranges that are fetched at a time.
BATCH = 1024


class DurableState(NamedTuple):
    """What a record has: bytes and ranges that are durable; whether it is closed; errno of its journal, 0: none."""

    bytes: int
    ranges: int
    closed: bool
    error: int


class DurableRecord:
    """A record. Thread-safe. shared: C's iou_durable; NULL: it records nothing. name: of the journal.

    Others may ask for the state of a record, or write it, while its image is closed and the record is released.
    """

    def __init__(self, shared: Any = ffi.NULL, name: str = "") -> None:
        self.shared = shared
        self.name = name
        self._lock = threading.Lock()  # held over calls of C that do not block

    @classmethod
    def new(cls, directory: int, name: str, header: str, ranges: Sequence[tuple[int, int]]) -> "DurableRecord":
        """Make a record with (start, end) ranges, and write its journal anew. Blocks.

        directory: a descriptor, open as long as the record. name: of the file. header: of image and ticket, ASCII.
        Raises StorageError, with EBUSY if a journal is there that can neither be replaced nor removed.
        """
        result = ffi.new("iou_durable **")
        told = ffi.new("iou_range[]", list(ranges))
        code = lib.iou_durable_new(directory, name.encode(), header.encode(), told, len(told), result)
        if code:
            raise StorageError(-code, "keep a record of what is durable", "journal")
        return cls(result[0], name)

    def release(self) -> None:
        """Drop the reference of this object, which is not used any more. Blocks: the last one ends the journal."""
        with self._lock:
            shared, self.shared = self.shared, ffi.NULL
        lib.iou_durable_release(shared)

    def void(self) -> None:
        """Close the record for good, and remove its journal durably. Blocks. Raises StorageError."""
        with self._kept() as shared:
            code = lib.iou_durable_void(shared)
        if code:
            raise StorageError(-code, "remove a record of what is durable", "journal")

    @property
    def is_due(self) -> bool:
        """Tell whether write() should be called: durable ranges wait for it."""
        with self._lock:
            return bool(lib.iou_durable_is_due(self.shared))

    def write(self) -> None:
        """Write what the journal does not have yet. Blocks."""
        with self._kept() as shared:
            lib.iou_durable_write(shared)

    @contextmanager
    def _kept(self) -> Iterator[Any]:
        """Run the block with C's record, which stays until its end. Its end may block."""
        with self._lock:
            shared = self.shared
            lib.iou_durable_retain(shared)
        try:
            yield shared
        finally:
            lib.iou_durable_release(shared)

    # Changes and flushes of images that Python has

    async def changing(self, offset: int, length: int) -> None:
        """Take a range out before its change begins. The caller excludes other changes of the range.

        Raises StorageError: the range is still recorded, and must not be changed.
        """
        if lib.iou_durable_waits(self.shared, offset, length):
            code = await in_thread(lambda: lib.iou_durable_change(self.shared, offset, length))
        else:
            code = lib.iou_durable_change(self.shared, offset, length)
        if code:
            raise StorageError(-code, f"take {offset}..{offset + length} out of what is durable", "journal")

    def changed(self, offset: int, length: int, *, durable: bool = False) -> None:
        """Note a write or zero that has ended well. durable: it is on stable storage (FUA)."""
        lib.iou_durable_changed(self.shared, offset, length, durable)

    @asynccontextmanager
    async def flushing(self, offset: int, length: int) -> AsyncIterator[None]:
        """Run the block, which flushes: what was changed before is durable when it ends well.

        offset, length: the range that becomes durable; a length of 0 is all. After StorageError nothing becomes durable
        any more. Any other exception says that the flush has not failed: maybe it has not begun.
        """
        covered = lib.iou_durable_flush(self.shared, offset, length)
        error = errno.ECANCELED
        try:
            yield
            error = 0
        except StorageError as e:
            error = e.errno
            raise
        finally:
            lib.iou_durable_flushed(self.shared, covered, error)
        if covered:
            await in_thread(self.write)

    # What it tells

    def ranges(self, offset: int = 0) -> Iterator[tuple[int, int]]:
        """Yield the (start, end) ranges that are durable and end behind an offset, in order."""
        found = ffi.new("iou_range[]", BATCH)
        while count := self._fetch(offset, found):
            for number in range(count):
                yield int(found[number].start), int(found[number].end)
            offset = int(found[count - 1].end)

    def _fetch(self, offset: int, found: Any) -> int:
        with self._lock:
            return int(lib.iou_durable_ranges(self.shared, offset, found, BATCH))

    def state(self) -> DurableState:
        """Return what the record has now."""
        info = ffi.new("iou_durable_info *")
        with self._lock:
            lib.iou_durable_state(self.shared, info)
        return DurableState(int(info.bytes), int(info.ranges), bool(info.closed), int(info.error))


#: Records nothing.
NO_RECORD = DurableRecord()
