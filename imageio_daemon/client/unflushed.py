# SPDX-License-Identifier: Apache-2.0
"""What was written to a target and not flushed yet, because a restart of the server may lose it."""

import threading
from collections.abc import Iterable

from ..image.ranges import RangeSet
from .server.lists import MAX_EXTENTS

#: Written ranges, by the Restarts.count at which they were sent.
Written = dict[int, RangeSet]


def new_ranges(ranges: Iterable[tuple[int, int]] = ()) -> RangeSet:
    """Return a set of (start, end) ranges that never joins ranges over a gap: the gap was not transferred."""
    made = RangeSet(limit=MAX_EXTENTS)
    for start, end in ranges:
        made.add(start, end)
    return made


class Unflushed:
    """Writes that the server has answered and no flush has confirmed yet, and lost writes. Thread-safe.

    A lost range stays lost until it is written again, or taken by take_lost().
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written: Written = {}
        self._lost = new_ranges()

    def wrote(self, start: int, end: int, restarts: int) -> None:
        """Note that the bytes from start to end were written, with the Restarts.count before they were sent."""
        with self._lock:
            for ranges in (self._lost, *self._written.values()):
                ranges.discard(start, end)
            self._written.setdefault(restarts, new_ranges()).add(start, end)

    def take(self) -> Written:
        """Return what was written since the last call. Call this before the flush that confirms it."""
        with self._lock:
            written, self._written = self._written, {}
            return written

    def give_back(self, taken: Written) -> None:
        """Add again what take() has returned, after a flush without an answer."""
        with self._lock:
            for restarts, ranges in taken.items():
                mine = self._written.setdefault(restarts, new_ranges())
                for piece in ranges.pieces():
                    mine.add(*piece)

    def flushed(self, taken: Written, restarts: int) -> None:
        """Note a flush of what take() has returned. What was sent before a restart may be lost.

        `restarts` is the Restarts.count after the flush.
        """
        with self._lock:
            for before, ranges in taken.items():
                for piece in ranges.pieces() if before != restarts else ():
                    self._lost.add(*piece)
            if self._lost.size():
                for ranges in self._written.values():  # written while the flush ran
                    for piece in ranges.pieces():
                        self._lost.discard(*piece)

    @property
    def is_waiting(self) -> bool:
        """Return whether there are writes that no flush has confirmed."""
        with self._lock:
            return any(ranges.size() for ranges in self._written.values())

    def take_lost(self) -> RangeSet:
        """Return, only once, the ranges that may have to be written again."""
        with self._lock:
            lost, self._lost = self._lost, new_ranges()
            return lost

    def lost(self) -> list[tuple[int, int]]:
        """Return the ranges to write again, as (offset, length)."""
        with self._lock:
            return [(start, end - start) for start, end in self._lost.pieces()]
