# SPDX-License-Identifier: Apache-2.0
"""Records of durable ranges for tests, as C keeps them."""

import os
from pathlib import Path
from typing import Any, Self

from imageio_daemon.image import journal
from ioutil_ext import ffi, lib

HEADER = "image ticket"


class Record:
    """A record with its journal in a directory. `ranges` are the (start, end) that are durable at first, in bytes."""

    def __init__(self, directory: Path, ranges: list[tuple[int, int]]) -> None:
        self.path = directory / "journal"
        self._directory = os.open(directory, os.O_RDONLY)
        result = ffi.new("iou_durable **")
        told = ffi.new("iou_range[]", ranges)
        assert lib.iou_durable_new(self._directory, b"journal", HEADER.encode(), told, len(ranges), result) == 0
        self.shared = result[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def change(self, start: int, end: int) -> int:
        """Remove a range before a change of it. Return 0 or a negative errno."""
        return int(lib.iou_durable_change(self.shared, start, end - start))

    def try_change(self, start: int, end: int) -> int:
        """Do the same if that needs no storage. Otherwise return -EAGAIN."""
        return int(lib.iou_durable_try_change(self.shared, start, end - start))

    def changed(self, start: int, end: int, *, durable: bool) -> None:
        """End a change. Pass `durable` for one with FUA."""
        lib.iou_durable_changed(self.shared, start, end - start, durable)

    def ranges(self) -> list[tuple[int, int]]:
        """Return the durable ranges."""
        found = ffi.new("iou_range[]", lib.IOU_DURABLE_RANGES)
        count = lib.iou_durable_ranges(self.shared, 0, found, lib.IOU_DURABLE_RANGES)
        return [(found[i].start, found[i].end) for i in range(count)]

    def info(self) -> Any:
        """Return C's iou_durable_info."""
        info = ffi.new("iou_durable_info *")
        lib.iou_durable_state(self.shared, info)
        return info

    def on_disk(self) -> list[tuple[int, int]]:
        """Return the ranges in the journal."""
        return journal.read(self.path.read_bytes(), HEADER)

    def close(self) -> None:
        """End the record and drop it."""
        lib.iou_durable_end(self.shared)
        lib.iou_durable_release(self.shared)
        os.close(self._directory)
