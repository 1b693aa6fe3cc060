# SPDX-License-Identifier: Apache-2.0
"""The division of an image into units of work: whole blocks of the checksum, each in exactly one unit."""

import collections
import itertools
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from ...image.blockhash import DEFAULT_BLOCK, BlockPlan, DataBlock, Segment, ZeroBlocks
from ...image.extents import Extent
from ...image.ranges import RangeSet
from ..stopping import Stop

#: Most segments of units that wait in a queue, in 32 MiB of memory. 100,000 extents of data are planned before half of
#: them are transferred.
AHEAD = 2**18
#: A thread takes 1/SHARE of what waits, so that all threads end at the same time. 64 MiB over a line that loses 1 % of
#: its packets took 46 s when each of 4 connections took 32 MiB at a time, because 2 of them had nothing to do.
SHARE = 8
#: Seconds between two signs of life on connections for which there is no unit yet. Servers and proxies close idle ones
#: after half a minute or a minute.
IDLE = 20.0


class Unit(NamedTuple):
    """Consecutive blocks from `start` to `end`, in bytes. `segments` alternate between data and zeros, without gaps."""

    start: int
    end: int
    segments: list[Segment]


def units(extents: Iterable[Extent], *, block_size: int = DEFAULT_BLOCK, least: int = DEFAULT_BLOCK) -> Iterator[Unit]:
    """Yield units of at least `least` bytes of data, and any number of zeros. The last unit may be shorter.

    Blocks are counted from the beginning of the first extent.
    """
    left = iter(extents)
    first = next(left, None)
    if first is None:
        return
    start, data = first.start, 0
    end = start
    segments: list[Segment] = []
    for block in _blocks(itertools.chain((first,), left), block_size):
        parts = block.segments if isinstance(block, DataBlock) else [Segment(end, block.number * block.length, True)]
        for part in parts:
            _append(segments, part)
            end += part.length
            data += 0 if part.zero else part.length
        if data >= least:
            yield Unit(start, end, segments)
            start, data, segments = end, 0, []
    if segments:
        yield Unit(start, end, segments)


def dirty_units(extents: Iterable[Extent]) -> Iterator[Unit]:
    """Yield units of the dirty extents."""
    for dirty, group in itertools.groupby(extents, key=attrgetter("dirty")):
        if dirty:
            yield from units(group)


def units_left(extents: Iterable[Extent], done: RangeSet) -> Iterator[Unit]:
    """Yield units of the ranges that are not done."""
    return dirty_units(
        extent._replace(start=start, length=end - start, dirty=not is_done)
        for extent in extents
        for start, end, is_done in done.parts(extent.start, extent.end)
    )


def parts_left(unit: Unit, done: RangeSet) -> Iterator[Unit]:
    """Yield units of the parts of a unit that are not done."""
    return units_left((Extent(start, length, zero) for start, length, zero in unit.segments), done)


def joined(first: Unit, second: Unit) -> Unit:
    """Join two units into one. The second begins where the first one ends."""
    segments = list(first.segments)
    for segment in second.segments:
        _append(segments, segment)
    return Unit(first.start, second.end, segments)


def data_left(unit: Unit, done: RangeSet) -> int:
    """Return the bytes of data of a unit that are not done."""
    data = (segment for segment in unit.segments if not segment.zero)
    if not done.size():
        return sum(segment.length for segment in data)
    parts = (part for segment in data for part in done.parts(segment.start, segment.start + segment.length))
    return sum(end - start for start, end, is_done in parts if not is_done)


def widened(extents: Sequence[Extent], block: int) -> Iterator[Extent]:
    """Yield the extents, with dirty ones extended to whole blocks of `block` bytes."""
    dirty = RangeSet(limit=len(extents) + 1)
    for extent in extents:
        if extent.dirty:
            dirty.add(extent.start // block * block, -(-extent.end // block) * block)
    edges = [edge for piece in dirty.pieces() for edge in piece]
    for extent in extents:
        first, last = bisect_right(edges, extent.start), bisect_left(edges, extent.end)
        parts = itertools.pairwise([extent.start, *edges[first:last], extent.end])
        for number, (start, end) in enumerate(parts, first):
            yield extent._replace(start=start, length=end - start, dirty=number % 2 == 1)


def whole(extents: Iterable[Extent], block: int) -> list[Extent]:
    """Return the extents, with data extended to whole blocks of `block` bytes."""
    marked = [extent._replace(dirty=not extent.zero) for extent in extents]
    return [extent._replace(zero=not extent.dirty, hole=False, dirty=False) for extent in widened(marked, block)]


def _blocks(extents: Iterable[Extent], block_size: int) -> Iterator[DataBlock | ZeroBlocks]:
    plan = BlockPlan(block_size)
    for extent in extents:
        yield from plan.add(extent)
    yield from plan.end()


def _append(segments: list[Segment], part: Segment) -> None:
    """Append a segment. Join it with the last one if both are data or both zeros, for fewer requests."""
    last = segments[-1] if segments else None
    if last and last.zero == part.zero:
        segments[-1] = last._replace(length=last.length + part.length)
    else:
        segments.append(part)


class Queue:
    """Units for several threads. Each unit goes to one of them, in order. Thread-safe.

    While many units wait, consecutive ones are joined, to about `portion` bytes of data.

    Another thread makes the units ahead, because the map of an image may take long to read. This thread calls `planned`
    with each unit, and with None after the last one.
    """

    def __init__(
        self,
        work: Iterator[Unit],
        portion: int,
        stop: Stop,
        planned: Callable[[Unit | None], None] = lambda _: None,
    ) -> None:
        self._work = work
        self._together = portion // DEFAULT_BLOCK
        self._stop = stop
        self._planned = planned
        self._changed = threading.Condition()
        self._units: collections.deque[Unit] = collections.deque()
        self._waiting = 0  # number of waiting segments
        self._ended = False
        stop.call(self._wake)

    def fill(self) -> None:
        """Make the units, until there are no more. Raises what making them raises, and Stopped."""
        for unit in self._work:
            self._planned(unit)
            with self._changed:
                self._changed.wait_for(lambda: self._stop.is_set or self._waiting < AHEAD)
                self._stop.check()
                self._units.append(unit)
                self._waiting += len(unit.segments)
                self._changed.notify_all()
        self._planned(None)
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def take(self, idle: Callable[[], object] = lambda: None) -> Iterator[Unit]:
        """Yield units until there are no more. While there is none yet, call `idle` every IDLE seconds.

        Raises Stopped, and what `idle` raises.
        """
        while True:
            with self._changed:
                is_ready = self._changed.wait_for(lambda: self._stop.is_set or self._ended or self._units, IDLE)
                self._stop.check()
                unit = self._next() if self._units else None
                self._changed.notify_all()
            if unit is not None:
                yield unit
            elif is_ready:
                return
            else:
                idle()

    def _next(self) -> Unit:
        unit = self._pop()
        for _ in range(min(self._together, len(self._units) // SHARE) - 1):
            if self._units[0].start != unit.end:
                break
            unit = joined(unit, self._pop())
        return unit

    def _pop(self) -> Unit:
        unit = self._units.popleft()
        self._waiting -= len(unit.segments)
        return unit

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
