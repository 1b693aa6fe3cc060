# SPDX-License-Identifier: Apache-2.0
"""A file or device in memory below the engine, which records each change and barrier; and what a loss of power leaves.

A barrier makes durable what has ended before it began. Of what came later, any sectors of 512 bytes may be there, and
others not. A device is full of garbage at first; a file grows by zeros.
"""

import os
import random
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.syscalls import FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE

from ..ioutil.syscall_table import real_pread, replaced

SECTOR = 512


class Change(NamedTuple):
    """data: what was written; None: the size has changed to `offset`."""

    offset: int
    data: bytes | None


class Barrier(NamedTuple):
    """start: the number of changes before it began. thread: who has waited for it."""

    start: int
    thread: int


#: Whether a barrier, which is an event with this number, is there.
Counts = Callable[[int, Barrier], bool]


class Recorder:
    """The storage of one path; all others are real. device: a block device's name, and it has the length of content."""

    def __init__(self, path: Path, content: bytes, device: Path | None = None) -> None:
        self.path = str(path)
        self.device = device
        self.first = bytes(content)
        self.content = bytearray(content)
        self.events: list[Change | Barrier] = []
        self.fault: Callable[[str], None] = lambda name: None
        self.reads: Callable[[int, int], None] = lambda offset, length: None
        self.punches: Callable[[int, int], None] = lambda offset, length: None
        self._lock = threading.Lock()
        self._files: set[int] = set()

    @property
    def now(self) -> int:
        return len(self.events)

    @contextmanager
    def installed(self) -> Iterator[None]:
        names = ["open", "close", "pread", "pwrite", "fallocate", "blkzeroout", "ftruncate", "size", "fdatasync"]
        others = dict.fromkeys(("lock", "locked", "write_back", "drop_clean"), lambda *_: 0)
        with replaced(**{name: getattr(self, name) for name in names}, **others):
            yield

    def open(self, path: str, flags: int) -> int:
        if path != self.path:
            return os.open(path, flags)
        self.fault("open")
        fd = os.open(self.device, os.O_PATH) if self.device else os.open(path, flags)
        self._files.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self._files.discard(fd)
        os.close(fd)

    def size(self, fd: int) -> int:
        return len(self.content) if fd in self._files else os.fstat(fd).st_size

    def pread(self, fd: int, buffer: memoryview, offset: int) -> int:
        if fd not in self._files:
            return real_pread(fd, buffer, offset)
        self.fault("pread")
        self.reads(offset, len(buffer))
        data = self.content[offset : offset + len(buffer)]
        buffer[: len(data)] = data
        return len(data)

    def pwrite(self, fd: int, buffer: memoryview, offset: int) -> int:
        self.fault("pwrite")
        assert fd in self._files
        assert offset + len(buffer) <= len(self.content), "a write past the end"
        self._change(offset, bytes(buffer))
        return len(buffer)

    def fallocate(self, fd: int, mode: int, offset: int, length: int) -> None:
        self.fault("fallocate")
        assert fd in self._files
        if mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE):
            self.punches(offset, length)
            self._change(offset, bytes(min(length, len(self.content) - offset)))
        elif not mode & FALLOC_FL_KEEP_SIZE and offset + length > len(self.content):
            self._resize(offset + length)

    def blkzeroout(self, fd: int, offset: int, length: int) -> None:
        self._change(offset, bytes(length))

    def ftruncate(self, fd: int, size: int) -> None:
        self.fault("ftruncate")
        self._resize(size)

    def fdatasync(self, fd: int) -> None:
        start = self.now
        self.fault("fdatasync")
        with self._lock:
            self.events.append(Barrier(start, threading.get_ident()))

    def _change(self, offset: int, data: bytes) -> None:
        with self._lock:
            self.content[offset : offset + len(data)] = data
            self.events.append(Change(offset, data))

    def _resize(self, size: int) -> None:
        assert not self.device
        with self._lock:
            apply(self.content, Change(size, None))
            self.events.append(Change(size, None))


def apply(content: bytearray, change: Change) -> None:
    """Do a whole change."""
    if change.data is not None:
        content[change.offset : change.offset + len(change.data)] = change.data
    elif change.offset < len(content):
        del content[change.offset :]
    else:
        content.extend(bytes(change.offset - len(content)))


def _apply_some(content: bytearray, change: Change, rng: random.Random) -> None:
    """Do what of a change happens to be there: some sectors. A change of the size is there, or not."""
    if change.data is None:
        if rng.randrange(2):
            apply(content, change)
        return
    luck = rng.choice((0, 25, 50, 75, 100))
    for at in range(0, len(change.data), SECTOR):
        start = change.offset + at
        if start < len(content) and rng.randrange(100) < luck:
            data = change.data[at : at + SECTOR][: len(content) - start]
            content[start : start + len(data)] = data


class Replay:
    """What is on storage at later and later points; barriers that `counts` does not take have never been there."""

    def __init__(self, recorder: Recorder, counts: Counts = lambda number, barrier: True) -> None:
        self._events = recorder.events
        self._counts = counts
        self._durable = bytearray(recorder.first)
        self._pending: list[Change] = []
        self._numbers: list[int] = []
        self._at = 0

    def crashed(self, point: int, rng: random.Random) -> bytearray:
        """Return what a loss of power at an event leaves. Points only go on."""
        for number in range(self._at, point):
            event = self._events[number]
            if isinstance(event, Change):
                self._pending.append(event)
                self._numbers.append(number)
            elif self._counts(number, event):
                kept = 0
                while kept < len(self._numbers) and self._numbers[kept] < event.start:
                    apply(self._durable, self._pending[kept])
                    kept += 1
                del self._pending[:kept], self._numbers[:kept]
        self._at = max(self._at, point)
        content = bytearray(self._durable)
        for change in self._pending:
            _apply_some(content, change, rng)
        return content


def is_block(path: Path) -> bool:
    try:
        return stat.S_ISBLK(path.stat().st_mode)
    except OSError:
        return False
