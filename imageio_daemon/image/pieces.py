# SPDX-License-Identifier: Apache-2.0
"""The reads that are needed to hash a piece of a block: its data, with the short holes between."""

from collections import deque
from typing import NamedTuple

from ..units import KiB
from .blockhash import DataBlock, Segment

#: Shorter holes between data are read together with the data. Reading 256 KiB of a hole takes 25 us on tmpfs, and a
#: separate read for the data after it at least 50 us.
SHORT_HOLE = 256 * KiB


class Run(NamedTuple):
    """Bytes of an image, from `start` to `end`."""

    start: int
    end: int


class Pieces:
    """The pieces of one block. Take them in order. The time for all of them grows with the number of segments."""

    def __init__(self, block: DataBlock) -> None:
        self._data: deque[Segment] = deque(segment for segment in block.segments if not segment.zero)

    def take(self, start: int, end: int) -> list[Run]:
        """Return, in order, what to read of the piece from `start` to `end`: its data, joined over short holes.

        The rest of the piece is zeros. The piece has to follow the one before.
        """
        runs: list[Run] = []
        while self._data and self._data[0].start < end:
            segment = self._data[0]
            stop = segment.start + segment.length
            run = Run(max(segment.start, start), min(stop, end))
            if runs and run.start - runs[-1].end < SHORT_HOLE:
                run = Run(runs.pop().start, run.end)
            runs.append(run)
            if stop > end:
                break
            self._data.popleft()
        return runs
