# SPDX-License-Identifier: Apache-2.0
"""What of an upload is on stable storage: what a flush has confirmed."""

import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

from ...image.ranges import RangeSet
from ..server.image import MAX_EXTENTS

#: Seconds between two flushes. An upload that is continued sends again at most what was sent in this time.
CHECKPOINT = 10.0


class Sent(NamedTuple):
    """Bytes from start to end that the server has answered. restarts: Restarts.count before they were sent."""

    start: int
    end: int
    restarts: int


def new_ranges(ranges: Iterable[tuple[int, int]] = ()) -> RangeSet:
    """Return a set of (start, end) ranges that are never joined: then it would have bytes that were not sent."""
    made = RangeSet(limit=MAX_EXTENTS)
    for start, end in ranges:
        made.add(start, end)
    return made


class Confirmed:
    """What was sent, and what a flush of the same process has confirmed since; see Restarts. Thread-safe."""

    def __init__(self, done: Iterable[tuple[int, int]] = (), interval: float = CHECKPOINT) -> None:
        self._lock = threading.Lock()
        self._safe = new_ranges(done)
        self._sent: list[Sent] = []
        self._lost = new_ranges()
        self._interval = interval
        self._next = time.monotonic() + interval

    def add(self, sent: Sent) -> bool:
        """Add what was sent; return True, to one thread at a time, when a flush is due."""
        with self._lock:
            self._sent.append(sent)
            if time.monotonic() < self._next:
                return False
            self._next = time.monotonic() + self._interval
            return True

    def take_sent(self) -> list[Sent]:
        """Return what was sent since the last call. Called before the flush that confirms it."""
        with self._lock:
            sent, self._sent = self._sent, []
            return sent

    def give_back(self, sent: list[Sent]) -> None:
        """Add again what was taken for a flush that was not answered."""
        with self._lock:
            self._sent = sent + self._sent

    @property
    def is_waiting(self) -> bool:
        """Tell whether something was sent that no flush has confirmed."""
        with self._lock:
            return bool(self._sent)

    def flushed(self, sent: list[Sent], restarts: int) -> None:
        """Note a flush of what was sent before it. What was sent before a restart may be lost.

        restarts: Restarts.count after the flush.
        """
        with self._lock:
            for start, end, before in sent:
                (self._safe if before == restarts else self._lost).add(start, end)

    def take_lost(self) -> RangeSet:
        """Return what may have to be sent again, once."""
        with self._lock:
            lost, self._lost = self._lost, new_ranges()
            return lost

    def confirm(self, start: int, end: int) -> None:
        """Add bytes of which the server tells that they are on stable storage."""
        with self._lock:
            self._safe.add(start, end)

    def size(self) -> int:
        """Return the number of bytes that are on stable storage."""
        with self._lock:
            return self._safe.size()

    def pieces(self) -> list[tuple[int, int]]:
        """Return the (start, end) ranges that are on stable storage."""
        with self._lock:
            return self._safe.pieces()
