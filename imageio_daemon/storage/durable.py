# SPDX-License-Identifier: Apache-2.0
"""The record of which ranges of an image are durable. ioutil_ext/api/durable.h has its guarantee.

C updates the record with each operation. NO_RECORD records nothing.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ioutil_ext import ffi, lib

from ..errors import StorageError

#: Ranges that one call of C returns at most.
BATCH = 1024


class DurableState(NamedTuple):
    """The durable bytes and ranges in a record, whether it is closed, and the errno of its journal, or 0."""

    bytes: int
    ranges: int
    closed: bool
    error: int


class DurableRecord:
    """A record. Thread-safe. `shared` is C's iou_durable; with NULL nothing is recorded.

    Any thread may ask for the state of a record, or write it, while its image is closed and after that.
    """

    def __init__(self, shared: Any = ffi.NULL) -> None:
        #: C frees this with this object, so that no thread uses what another one has freed.
        self.shared = ffi.gc(shared, lib.iou_durable_release) if shared else shared

    @classmethod
    def new(cls, directory: int, name: str, header: str, ranges: Sequence[tuple[int, int]]) -> "DurableRecord":
        """Make a record with (start, end) ranges, and write a new journal in place of an old one. Blocks.

        `directory` is a descriptor that stays open until end(), and `name` the name of the journal in it. `header`, in
        ASCII, is about image and ticket. Raises StorageError. Then the journal is the old one, if there was one, or a
        new one.
        """
        result = ffi.new("iou_durable **")
        told = ffi.new("iou_range[]", list(ranges))
        code = lib.iou_durable_new(directory, name.encode(), header.encode(), told, len(told), result)
        if code:
            raise StorageError(-code, "keep a record of what is durable", "journal")
        return cls(result[0])

    def end(self) -> None:
        """Write what the journal does not have yet, and close it, so that another record may use it. Blocks.

        From now on the record gets no more ranges, and a change of durable bytes fails.
        """
        lib.iou_durable_end(self.shared)

    def void(self) -> None:
        """Close the record for good, and remove its journal durably. Blocks. Raises StorageError."""
        code = lib.iou_durable_void(self.shared)
        if code:
            raise StorageError(-code, "remove a record of what is durable", "journal")

    @property
    def is_due(self) -> bool:
        """Return whether write() should be called, because durable ranges wait for it."""
        return bool(lib.iou_durable_is_due(self.shared))

    def write(self) -> None:
        """Write what the journal does not have yet. Blocks."""
        lib.iou_durable_write(self.shared)

    # The ranges of the record

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the durable (start, end) ranges in order.

        They do not overlap, even if the record changes at the same time.
        """
        offset, found = 0, ffi.new("iou_range[]", BATCH)
        while count := lib.iou_durable_ranges(self.shared, offset, found, BATCH):
            for number in range(count):
                yield max(int(found[number].start), offset), int(found[number].end)
            offset = int(found[count - 1].end)

    def state(self) -> DurableState:
        """Return the present state of the record."""
        info = ffi.new("iou_durable_info *")
        lib.iou_durable_state(self.shared, info)
        return DurableState(int(info.bytes), int(info.ranges), bool(info.closed), int(info.error))


#: A record that records nothing.
NO_RECORD = DurableRecord()
