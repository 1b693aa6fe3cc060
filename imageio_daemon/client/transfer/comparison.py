# SPDX-License-Identifier: Apache-2.0
"""Proof, before an upload is continued, that source and target are still the same where it has been."""

import random
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

from ...image.blockhash import Segment
from ...image.ranges import RangeSet
from ...units import KiB, MiB
from ..errors import StateMismatch
from ..local.source import Source
from ..server.data import Range
from ..server.image import RemoteImage
from .digest import Digest
from .hashing import hash_unit
from .plan import Unit, dirty_units
from .record import ALIGNMENT, new_ranges

#: Places to compare, spread at random over the data that is on stable storage. A source that was changed in a fraction
#: f of its pieces of SAMPLE bytes is missed with the probability (1 - f) ** SAMPLES: 1 % in 8 of 100 cases, 5 % in 2 of
#: a million.
SAMPLES = 256
#: Bytes of a sample where the server computes its checksum: both sides read 256 MiB, in about a second.
SAMPLE = 1 * MiB
#: Bytes of a sample where it has to be sent back.
READ_SAMPLE = 4 * KiB
#: Of the longest ranges, so many have both ends compared, too. At the beginning that is twice as much: the second MiB
#: of a disk is where the first partition has the time of its last use.
ENDS = 64


class Comparison:
    """The comparison of one upload. by_checksum: the server computes checksums of ranges; otherwise it sends them."""

    def __init__(self, source: Source, done: RangeSet, *, by_checksum: bool) -> None:
        self._source = source
        self._done = done
        self._by_checksum = by_checksum

    def plan(self, *, every: bool) -> tuple[int, Iterator[Unit]]:
        """Return how many bytes to compare, and the units: all that is on stable storage, or a sample.

        Raises LocalError, also when the units are taken.
        """
        if every:
            return self._done.size(), self.all()
        sample = list(self.sample())
        return sum(unit.end - unit.start for unit in sample), iter(sample)

    def all(self) -> Iterator[Unit]:
        """Yield all that is on stable storage. Raises LocalError."""
        # As "dirty" extents: the same plan.
        extents = (
            extent._replace(start=start, length=end - start, dirty=is_done)
            for extent in self._source.extents()
            for start, end, is_done in self._done.parts(extent.start, extent.end)
        )
        return dirty_units(extents)

    def sample(self) -> Iterator[Unit]:
        """Yield a sample of it. Holes of the source are left out, but not the ends of the ranges. Raises LocalError."""
        size = SAMPLE if self._by_checksum else READ_SAMPLE
        chosen = new_ranges()
        for start, end in sorted(self._done.pieces(), key=lambda piece: piece[0] - piece[1])[:ENDS]:
            chosen.add(start, min(start + 2 * size, end))
            chosen.add(max(start, (end - size) // ALIGNMENT * ALIGNMENT), end)
        for position in self._spread():
            start = position // ALIGNMENT * ALIGNMENT
            for begin, end, is_done in self._done.parts(start, start + size):
                if is_done:
                    chosen.add(begin, end)
        for start, end in chosen.pieces():
            for begin in range(start, end, SAMPLE):
                stop = min(begin + SAMPLE, end)
                yield Unit(begin, stop, [Segment(begin, stop - begin, zero=False)])

    def _spread(self) -> Iterator[int]:
        """Yield positions in the data, one at random in each of SAMPLES parts of the same size."""
        data = new_ranges()
        for extent in self._source.extents():
            for start, end, is_done in self._done.parts(extent.start, extent.end):
                if is_done and not extent.zero:
                    data.add(start, end)
        pieces = data.pieces()
        before = [0, *accumulate(end - start for start, end in pieces)]
        for number in range(SAMPLES if pieces else 0):
            at = int((number + random.random()) * before[-1] / SAMPLES)  # noqa: S311 - no secret
            piece = bisect_right(before, at) - 1
            yield pieces[piece][0] + at - before[piece]

    def compare(self, image: RemoteImage, unit: Unit, buffer: memoryview) -> None:
        """Compare a unit. buffer: of the calling thread. Raises StateMismatch, LocalError, those of RemoteImage."""
        if self._by_checksum:
            digest = Digest()
            hash_unit(self._source, unit, buffer, digest, 0)
            self.require(image, unit.start, unit.end, digest)
        elif not self._reads(image, unit, buffer):
            raise _mismatch(unit.start, unit.end)

    def require(self, image: RemoteImage, start: int, end: int, digest: Digest) -> None:
        """Compare a range, whose digest is known, by its checksum. Raises StateMismatch, those of RemoteImage."""
        theirs = image.checksum(digest.algorithm, digest.block_size, (start, end - start))
        if theirs["checksum"] != digest.hexdigest():
            raise _mismatch(start, end)

    def _reads(self, image: RemoteImage, unit: Unit, buffer: memoryview) -> bool:
        half = len(buffer) // 2
        for offset, theirs in image.read([Range(unit.start, unit.end - unit.start)], buffer[:half]):
            ours = buffer[half : half + len(theirs)]
            self._source.read(offset, ours)
            if theirs != ours:
                return False
        return True


def _mismatch(start: int, end: int) -> StateMismatch:
    return StateMismatch(
        f"an earlier upload has sent the bytes from {start} to {end}, and they are not those of this source: it is "
        "another one, or source or target was changed since. --restart sends all anew"
    )
