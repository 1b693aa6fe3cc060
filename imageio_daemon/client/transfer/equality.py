# SPDX-License-Identifier: Apache-2.0
"""Find where a local image and a remote one are equal: by digests that both sides compute, or else byte by byte."""

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ...image.blockhash import DEFAULT_BLOCK
from ...image.ranges import RangeSet
from ...units import GiB, MiB
from ..errors import Refused
from ..local.source import Source
from ..server.data import Range
from ..server.remote_image import RemoteImage
from ..server.session import ClientSession
from ..unflushed import new_ranges
from .block_hashing import hash_unit
from .digest import Digest, Listed, told
from .plan import Queue, Unit, units
from .progress import Counter, Phase
from .transfer_connections import TransferConnections, Worker

#: Most bytes of a unit, most of which may be zeros. The answer for a unit has at most 400 KiB.
SPAN = 16 * GiB

#: Bytes of data of a unit, if there are as many and the server lists blocks. Each unit is a request, and both sides
#: hash 4 blocks in the time of one (image/digests.py). Processor seconds of client and server, on one host, for an
#: update of 2 GiB with 512 MiB of data: 1.05 + 1.08 with 4 MiB, 0.76 + 0.90 with 16, 0.69 + 0.86 with 32, 0.69 + 0.90
#: with 64.
LEAST = 32 * MiB


def no_ranges(session: ClientSession) -> Iterator[Refused]:
    """Yield an error if the server computes no checksums of ranges, which show what differs."""
    if "checksum_range" not in session.abilities.features:
        yield Refused(f"{session.peer} tells no checksums of ranges, so nobody knows what differs: copy all", 404)


def has_digest(image: RemoteImage, digest: Digest, part: tuple[int, int]) -> bool:
    """Return whether a part of an image, by offset and length, has this digest. Raises as RemoteImage does."""
    return bool(image.checksum(digest.algorithm, digest.block_size, part)["checksum"] == digest.hexdigest())


class Equality:
    """Compare a local image with a remote one. If its server computes no checksums of ranges, it sends the bytes.

    `digest`, if it is set, gets the digests of equal blocks. The server then has to compute these, and ranges have to
    begin at blocks of the image.
    """

    def __init__(
        self, local: Source, there: TransferConnections, counter: Counter, digest: Digest | None = None
    ) -> None:
        self._local = local
        self._there = there
        self._counter = counter
        self._digest = digest
        features = there.session.abilities.features
        self._has_checksums = "checksum_range" in features
        self._lists_blocks = "checksum_blocks" in features

    def find(self, within: RangeSet) -> RangeSet:
        """Return which bytes of these ranges are equal, in whole blocks from the beginning of each range.

        Raises LocalError, and as RemoteImage does.
        """
        equal, lock = new_ranges(), threading.Lock()

        def worker(image: RemoteImage, buffer: memoryview) -> Callable[[Unit], None]:
            def compare(unit: Unit) -> None:
                here = self.compare(image, unit, buffer)
                with lock:
                    for piece in here.pieces():
                        equal.add(*piece)

            return compare

        self.run(within, worker)
        return equal

    def run(self, within: RangeSet, worker: Worker, *, all_or_nothing: bool = False) -> None:
        """Have each connection's worker compare units of these ranges. Raises LocalError, and what the workers raise.

        With `all_or_nothing`, the units are long also if the server does not list blocks, so that compare() finds
        either all of a unit equal or nothing.
        """
        least = LEAST if self._lists_blocks or all_or_nothing else DEFAULT_BLOCK
        self._counter.begin(Phase.COMPARING, within.size())
        self._there.run(Queue(self._units(within, least), DEFAULT_BLOCK, self._there.session.stop), worker)
        self._counter.begin(Phase.TRANSFERRING)

    def compare(self, image: RemoteImage, unit: Unit, buffer: memoryview) -> RangeSet:
        """Return the equal ranges of a unit, by the thread's own connection and buffer.

        Raises LocalError, and as RemoteImage does.
        """
        equal = new_ranges()
        for start, end, digest in self._equal(image, unit, buffer):
            equal.add(start, end)
            if self._digest is not None:
                self._digest.add_listed(start, end, digest)
        self._counter.check(unit.end - unit.start)
        return equal

    def _units(self, within: RangeSet, least: int) -> Iterator[Unit]:
        """Yield the units to compare. They end where a range ends, and at multiples of SPAN. Raises LocalError."""
        parts = (
            extent._replace(start=begin, length=min(end, limit) - begin, dirty=is_within)
            for extent in self._local.extents()
            for start, end, is_within in within.parts(extent.start, extent.end)
            for begin, limit in _cuts(start, end)
        )
        for (is_within, _), group in itertools.groupby(parts, key=lambda part: (part.dirty, part.start // SPAN)):
            if is_within:
                yield from units(group, least=least)

    def _equal(self, image: RemoteImage, unit: Unit, buffer: memoryview) -> Iterator[Listed]:
        """Yield the equal ranges of a unit: blocks, if the server lists these, or else all or nothing."""
        part = (unit.start, unit.end - unit.start)
        if not self._has_checksums:
            if self._reads(image, Range(*part), buffer):
                yield unit.start, unit.end, None
            return
        ours = Digest()
        hash_unit(self._local, unit, buffer, ours, 0)
        if self._lists_blocks:
            theirs = image.blocks(ours.algorithm, ours.block_size, part)
            for start, end, is_equal, digest in aligned(ours.listed(unit.end - unit.start, unit.start), told(theirs)):
                if is_equal:
                    yield start, end, digest
        elif has_digest(image, ours, part):
            yield from ours.listed(unit.end - unit.start, unit.start)

    def _reads(self, image: RemoteImage, part: Range, buffer: memoryview) -> bool:
        """Return whether both images have the same bytes in a range."""
        half = len(buffer) // 2
        for offset, theirs in image.read([part], buffer[:half]):
            ours = buffer[half : half + len(theirs)]
            self._local.read(offset, ours)
            if theirs != ours:
                return False
        return True


def _cuts(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield, for each part of a range between multiples of SPAN, its start and the next multiple."""
    while start < end:
        limit = (start // SPAN + 1) * SPAN
        yield start, limit
        start = limit


class Aligned(NamedTuple):
    """A range of two images, whether it is equal, and its digest in the first one."""

    start: int
    end: int
    is_equal: bool
    digest: bytes | None


def aligned(ours: Iterator[Listed], theirs: Iterator[Listed]) -> Iterator[Aligned]:
    """Walk along two lists of the same blocks, and yield ranges that are equal or not."""
    mine, other = next(ours, None), next(theirs, None)
    position = mine[0] if mine else 0
    while mine and other:
        end = min(mine[1], other[1])
        yield Aligned(position, end, mine[2] == other[2], mine[2])
        position = end
        if mine[1] == end:
            mine = next(ours, None)
        if other[1] == end:
            other = next(theirs, None)
