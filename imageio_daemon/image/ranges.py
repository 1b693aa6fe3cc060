# SPDX-License-Identifier: Apache-2.0
"""A set of bytes, kept as a sorted list of disjoint ranges."""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class RangeSet:
    """Collect half-open ranges of bytes and compute the size of their union. Not thread-safe.

    A transfer adds ranges that mostly touch each other, so the list stays short. But a peer may write every second
    block of a large disk. If there are more than `limit` ranges, the closest neighbours are joined, and the size
    becomes an upper bound.
    """

    #: Most ranges by default. The two lists and the numbers in them take about 1.5 MiB.
    LIMIT = 16384

    def __init__(self, limit: int = LIMIT) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._limit = limit
        self._size = 0

    def add(self, start: int, end: int) -> None:
        """Add the bytes from `start` to before `end`. An empty range adds nothing."""
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
            self._size -= sum(self._ends[i] - self._starts[i] for i in range(first, last))
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
        self._size += end - start
        if len(self._starts) > self._limit:
            self._join_closest()

    def discard(self, start: int, end: int) -> None:
        """Remove the bytes from `start` to before `end`."""
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, end)
        if start >= end or first >= last:
            return
        self._size -= self._overlap(start, end)
        kept = [(self._starts[first], start), (end, self._ends[last - 1])]
        kept = [(before, after) for before, after in kept if before < after]
        self._starts[first:last] = [before for before, _ in kept]
        self._ends[first:last] = [after for _, after in kept]
        if len(self._starts) > self._limit:
            self._join_closest()

    def overlaps(self, start: int, end: int) -> bool:
        """Return whether a byte from `start` to before `end` is in the union."""
        first = bisect_right(self._ends, start)
        return start < end and first < len(self._starts) and self._starts[first] < end

    def size(self) -> int:
        """Return the number of bytes in the union, or an upper bound if neighbours were joined."""
        return self._size

    def size_with(self, extra: list[tuple[int, int]]) -> int:
        """Return the size, in bytes, of the union with more (start, end) ranges. The set does not change."""
        size = self._size
        added = RangeSet(limit=max(len(extra), 1))
        for start, end in extra:
            added.add(start, end)
        for start, end in added.pieces():
            size += end - start - self._overlap(start, end)
        return size

    def pieces(self) -> list[tuple[int, int]]:
        """Return the disjoint (start, end) ranges in order."""
        return list(zip(self._starts, self._ends, strict=True))

    def parts(self, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
        """Cut a range into parts that are in the union or not, and yield (start, end, is_inside) in order."""
        for i in range(bisect_right(self._ends, start), bisect_left(self._starts, end)):
            if start < self._starts[i]:
                yield start, self._starts[i], False
            start = max(start, self._starts[i])
            yield start, min(end, self._ends[i]), True
            start = self._ends[i]
        if start < end:
            yield start, end, False

    def _overlap(self, start: int, end: int) -> int:
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, end)
        return sum(min(end, self._ends[i]) - max(start, self._starts[i]) for i in range(first, last))

    def _join_closest(self) -> None:
        """Join neighbours until a quarter of the limit is free. So each added range takes a few µs, not a few ms."""
        keep = self._limit - self._limit // 4
        gaps = ((self._starts[i + 1] - self._ends[i], i) for i in range(len(self._starts) - 1))
        closest = heapq.nsmallest(len(self._starts) - keep, gaps)
        joined = {i for _, i in closest}
        self._size += sum(gap for gap, _ in closest)
        self._starts = [start for i, start in enumerate(self._starts) if i - 1 not in joined]
        self._ends = [end for i, end in enumerate(self._ends) if i not in joined]
