# SPDX-License-Identifier: Apache-2.0
"""Ranges of bytes on a server that takes whole blocks only."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
        edges = []
        for block in sorted({offset // size * size, (end - 1) // size * size} if length else ()):
            first, last = max(offset, block), min(end, block + size)
            if last - first < size:
                inside, outside = slice(first - block, last - block), slice(first - offset, last - offset)
                edges.append(Edge(block, memoryview(bytearray(size)), inside, outside))
        return cls(-(-offset // size) * size, end // size * size, edges)


class Exclusion:
    """Let writers that share blocks pass one after the other. For one loop."""

    def __init__(self) -> None:
        self._held: dict[asyncio.Future[None], range] = {}
        self._waiting: dict[asyncio.Future[None], range] = {}

    @asynccontextmanager
    async def hold(self, blocks: range) -> AsyncIterator[None]:
        """Hold a range of bytes for the time of the block, after all that asked before and overlap."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = blocks
        self._admit()
        try:
            await turn
            yield
        finally:
            self._held.pop(turn, None)
            self._waiting.pop(turn, None)
            self._admit()

    def _admit(self) -> None:
        """Admit who overlaps nobody that holds or came earlier."""
        before = list(self._held.values())
        for turn, wanted in list(self._waiting.items()):
            if not any(_overlap(wanted, other) for other in before):
                self._held[turn] = self._waiting.pop(turn)
                if not turn.done():
                    turn.set_result(None)
            before.append(wanted)


def _overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop
