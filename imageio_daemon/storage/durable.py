# SPDX-License-Identifier: Apache-2.0
"""The record of what is durable of one image; ioutil_ext/api/durable.h has its guarantee.

C keeps the record, operation by operation. NO_RECORD records nothing.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ioutil_ext import ffi, lib

from ..errors import StorageError

#: Ranges that are fetched at a time.
BATCH = 1024


class DurableState(NamedTuple):
    """What a record has: bytes and ranges that are durable; whether it is closed; errno of its journal, 0: none."""

    bytes: int
    ranges: int
    closed: bool
    error: int


class DurableRecord:
    """A record. Thread-safe. shared: C's iou_durable; NULL: it records nothing. name: of its journal.

    Others may ask for the state of a record, or write it, while its image is closed and after that.
    """

    def __init__(self, shared: Any = ffi.NULL, name: str = "") -> None:
        #: Stays as long as this object, so that no thread uses what another one has freed.
        self.shared = ffi.gc(shared, lib.iou_durable_release) if shared else shared
        self.name = name

    @classmethod
    def new(cls, directory: int, name: str, header: str, ranges: Sequence[tuple[int, int]]) -> "DurableRecord":
        """Make a record with (start, end) ranges, and write its journal anew. Blocks.

        directory: a descriptor, open until end(). name: of the file. header: of image and ticket, ASCII. Raises
        StorageError: the journal is the one that was there, if any, or a new one.
        """
        result = ffi.new("iou_durable **")
        told = ffi.new("iou_range[]", list(ranges))
        code = lib.iou_durable_new(directory, name.encode(), header.encode(), told, len(told), result)
        if code:
            raise StorageError(-code, "keep a record of what is durable", "journal")
        return cls(result[0], name)

    def end(self) -> None:
        """Write what the journal does not have, and close it: another record may have it from now on. Blocks.

        Nothing becomes durable any more, and a change of durable bytes fails.
        """
        lib.iou_durable_end(self.shared)

    def void(self) -> None:
        """Close the record for good, and remove its journal durably. Blocks. Raises StorageError."""
        code = lib.iou_durable_void(self.shared)
        if code:
            raise StorageError(-code, "remove a record of what is durable", "journal")

    @property
    def is_due(self) -> bool:
        """Tell whether write() should be called: durable ranges wait for it."""
        return bool(lib.iou_durable_is_due(self.shared))

    def write(self) -> None:
        """Write what the journal does not have yet. Blocks."""
        lib.iou_durable_write(self.shared)

    # What it tells

    def ranges(self, offset: int = 0) -> Iterator[tuple[int, int]]:
        """Yield the parts behind an offset of the (start, end) ranges that are durable, in order.

        They do not overlap, also if the record changes meanwhile.
        """
        found = ffi.new("iou_range[]", BATCH)
        while count := lib.iou_durable_ranges(self.shared, offset, found, BATCH):
            for number in range(count):
                yield max(int(found[number].start), offset), int(found[number].end)
            offset = int(found[count - 1].end)

    def state(self) -> DurableState:
        """Return what the record has now."""
        info = ffi.new("iou_durable_info *")
        lib.iou_durable_state(self.shared, info)
        return DurableState(int(info.bytes), int(info.ranges), bool(info.closed), int(info.error))


#: Records nothing.
NO_RECORD = DurableRecord()
