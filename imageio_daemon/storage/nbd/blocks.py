# SPDX-License-Identifier: Apache-2.0
"""Ranges of bytes on a server that takes whole blocks only."""

from typing import NamedTuple


class Edge(NamedTuple):
    """A block of which a range has only a part.

    `memory`: for the whole block. `inside`: the part, in the block. `outside`: the same, in the range.
    """

    block: int
    memory: memoryview
    inside: slice
    outside: slice

    @property
    def length(self) -> int:
        """Return the bytes of the part."""
        return int(self.inside.stop - self.inside.start)


class Blocks(NamedTuple):
    """A range as whole blocks, `start` to `end` (empty if start >= end), and the edges beside them."""

    start: int
    end: int
    edges: list[Edge]

    @classmethod
    def of(cls, offset: int, length: int, size: int) -> "Blocks":
        """Cut a range; size is that of a block."""
        end = offset + length
        if offset % size == 0 and end % size == 0:
            return cls(offset, end, [])
        edges = []
        for block in sorted({offset // size * size, (end - 1) // size * size} if length else ()):
            first, last = max(offset, block), min(end, block + size)
            if last - first < size:
                inside, outside = slice(first - block, last - block), slice(first - offset, last - offset)
                edges.append(Edge(block, memoryview(bytearray(size)), inside, outside))
        return cls(-(-offset // size) * size, end // size * size, edges)
