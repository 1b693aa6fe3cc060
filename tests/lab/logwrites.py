# SPDX-License-Identifier: Apache-2.0
"""The log of the kernel's dm-log-writes: what was on the disk at each mark if the power had gone then.

The kernel logs a write when the flush that came after its completion has ended, or at once if it was FUA.
"""

import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path

MAGIC = 0x6A736677736872
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8
#: What promises() yields where a flush or a write with FUA has ended, and where the power goes before that.
PROMISE = ""
LOSS = "loss"

_SUPER = struct.Struct("<QQQI")
_ENTRY = struct.Struct("<QQQQ")


def replay(log: Path, target: Path) -> Iterator[str]:
    """Write what was logged to target, and yield each mark when all before it has been written."""
    return (mark for mark in promises(log, target) if mark != PROMISE)


def promises(log: Path, target: Path, chance: random.Random | None = None) -> Iterator[str]:
    """Do the same, and yield PROMISE after each flush and each write with FUA.

    With chance yield LOSS, too, before a flush, when some of the writes that it is for are there, and others not.
    """
    reading = os.open(log, os.O_RDONLY)
    writing = os.open(target, os.O_RDWR)

    def write(start: int, length: int, place: int | None) -> None:
        os.pwrite(writing, bytes(length) if place is None else os.pread(reading, length, place), start)

    try:
        magic, _, entries, sector = _SUPER.unpack(os.pread(reading, _SUPER.size, 0))
        assert magic == MAGIC
        place = sector
        since: list[tuple[int, int, int | None]] = []
        for _ in range(entries):
            head = os.pread(reading, sector, place)
            start, sectors, flags, data_size = _ENTRY.unpack_from(head)
            place += sector
            if chance and since and flags & (FLUSH | FUA):
                for one in since:
                    if chance.random() < 0.5:
                        write(*one)
                os.fsync(writing)
                yield LOSS
            if flags & DISCARD:
                since.append((start * sector, sectors * sector, None))
            elif not flags & MARK:
                since.append((start * sector, sectors * sector, place))
                place += sectors * sector
            if flags & (MARK | FLUSH | FUA):
                for one in since:
                    write(*one)
                since.clear()
                os.fsync(writing)
            if flags & MARK:
                yield head[_ENTRY.size : _ENTRY.size + data_size].rstrip(b"\0").decode()
            if flags & (FLUSH | FUA):
                yield PROMISE
    finally:
        os.close(reading)
        os.close(writing)
