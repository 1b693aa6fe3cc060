# SPDX-License-Identifier: Apache-2.0
"""The log of the kernel's dm-log-writes: what was on the disk at each mark if the power had gone then.

The kernel logs a write when the flush that came after its completion has ended, or at once if it was FUA.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

MAGIC = 0x6A736677736872
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8
#: What promises() yields where a flush or a write with FUA has ended.
PROMISE = ""

_SUPER = struct.Struct("<QQQI")
_ENTRY = struct.Struct("<QQQQ")


def replay(log: Path, target: Path) -> Iterator[str]:
    """Write what was logged to target, and yield each mark when all before it has been written."""
    return (mark for mark in promises(log, target) if mark != PROMISE)


def promises(log: Path, target: Path) -> Iterator[str]:
    """Do the same, and yield PROMISE after each flush and each write with FUA."""
    reading = os.open(log, os.O_RDONLY)
    writing = os.open(target, os.O_RDWR)
    try:
        magic, _, entries, sector = _SUPER.unpack(os.pread(reading, _SUPER.size, 0))
        assert magic == MAGIC
        place = sector
        for _ in range(entries):
            head = os.pread(reading, sector, place)
            start, sectors, flags, data_size = _ENTRY.unpack_from(head)
            place += sector
            if flags & MARK:
                os.fsync(writing)
                yield head[_ENTRY.size : _ENTRY.size + data_size].rstrip(b"\0").decode()
            elif flags & DISCARD:
                os.pwrite(writing, bytes(sectors * sector), start * sector)
            else:
                os.pwrite(writing, os.pread(reading, sectors * sector, place), start * sector)
                place += sectors * sector
            if flags & (FLUSH | FUA):
                os.fsync(writing)
                yield PROMISE
    finally:
        os.close(reading)
        os.close(writing)
