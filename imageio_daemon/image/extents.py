# SPDX-License-Identifier: Apache-2.0
"""Extents: ranges of an image that are data or read as zeros, are unallocated, were changed, or are durable."""

from array import array
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple, overload

#: The flags of an extent in a list, as bits.
ZERO, HOLE, DIRTY, DURABLE = 1, 2, 4, 8


class Extent(NamedTuple):
    """Describe `length` bytes from `start`.

    A `zero` extent reads as zeros. A `hole` is unallocated in the top layer, and reads come from the backing file. A
    `dirty` extent was changed since the bitmap was made. A `durable` one was written by the ticket, and is on stable
    storage.
    """

    start: int
    length: int
    zero: bool = False
    hole: bool = False
    dirty: bool = False
    durable: bool = False

    @property
    def end(self) -> int:
        """Return the first byte after the extent."""
        return self.start + self.length


class ExtentList(Sequence[Extent]):
    """Extents in order and without gaps. Neighbours with the same flags become one extent.

    They are stored as plain numbers: a million take 9 MiB, and 170 MiB as tuples. Code that moves many extents can use
    `bounds`, which has the start of each and then the end of the last, and `flags`, which has the flags of each.
    """

    def __init__(self, bounds: "array[int]", flags: bytes | bytearray) -> None:
        self.bounds = bounds
        self.flags = bytearray(flags)

    @classmethod
    def of(cls, extents: Iterable[Extent], start: int = 0) -> "ExtentList":
        """Return a list of the extents. The first one begins at `start`."""
        found = cls(array("Q", (start,)), b"")
        for extent in extents:
            found.append(extent)
        return found

    @property
    def end(self) -> int:
        """Return the first byte after the last extent."""
        return self.bounds[-1]

    def append(self, extent: Extent) -> None:
        """Add an extent that begins where the last one ends."""
        self._join(extent.zero * ZERO | extent.hole * HOLE | extent.dirty * DIRTY | extent.durable * DURABLE)
        self.bounds.append(extent.end)

    def extend(self, other: "ExtentList") -> None:
        """Add a list that begins where this one ends."""
        if other:
            self._join(other.flags[0])
            self.bounds += other.bounds[1:]
            self.flags += other.flags[1:]

    def take(self, count: int) -> "ExtentList":
        """Remove the first extents and return them."""
        taken = ExtentList(self.bounds[: count + 1], self.flags[:count])
        del self.bounds[:count], self.flags[:count]
        return taken

    def drop(self, offset: int) -> None:
        """Remove all before an offset. The offset must not be before the first extent."""
        if offset >= self.end:
            self.bounds, self.flags = array("Q", (offset,)), bytearray()
            return
        self.take(bisect_right(self.bounds, offset) - 1)
        self.bounds[0] = offset

    def _join(self, flags: int) -> None:
        """Prepare to append an extent: drop the end of the last one if it has the same flags."""
        if self.flags and self.flags[-1] == flags:
            self.bounds.pop()
        else:
            self.flags.append(flags)

    def __len__(self) -> int:
        return len(self.flags)

    @overload
    def __getitem__(self, index: int) -> Extent: ...
    @overload
    def __getitem__(self, index: slice) -> list[Extent]: ...
    def __getitem__(self, index: int | slice) -> Extent | list[Extent]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        return _extent(self.bounds[number], self.bounds[number + 1], self.flags[number])

    def __iter__(self) -> Iterator[Extent]:
        return map(_extent, self.bounds, self.bounds[1:], self.flags)


def _extent(start: int, end: int, flags: int) -> Extent:
    return Extent(
        start, end - start, bool(flags & ZERO), bool(flags & HOLE), bool(flags & DIRTY), bool(flags & DURABLE)
    )


#: A stream of lists. Each begins where the one before ends.
ExtentStream = AsyncGenerator[ExtentList, None]


async def merged(lists: ExtentStream) -> ExtentStream:
    """Join neighbours with the same flags across lists."""
    pending: ExtentList | None = None
    async with aclosing(lists):
        async for found in lists:
            if pending is None:
                pending = found
            else:
                pending.extend(found)
            if len(pending) > 1:
                yield pending.take(len(pending) - 1)  # the last one may continue in the next list
    if pending:
        yield pending
