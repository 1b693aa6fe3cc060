# SPDX-License-Identifier: Apache-2.0
"""What earlier transfers have left in the target, and the proof that it is from this source (docs/adr/0037, 0053)."""

import logging
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import NamedTuple

from ...commands.amounts import human
from ...image.ranges import RangeSet
from ...units import KiB, MiB
from ..errors import Refused, StateMismatch
from ..local.source import Source
from ..server.remote_image import RemoteImage
from ..unflushed import new_ranges
from .digest import Digest
from .equality import Equality, has_digest
from .plan import Unit
from .progress import Counter
from .record import ALIGNMENT, Claim, Record, aligned
from .transfer_connections import TransferConnections

log = logging.getLogger(__name__)

#: Places to compare, spread at random over the data that is on stable storage. If a fraction f of the pieces of SAMPLE
#: bytes has changed, this is not noticed with the probability (1 - f) ** SAMPLES: in 8 of 100 cases for 1 %, in 2 of a
#: million for 5 %.
SAMPLES = 256
#: Bytes of a sample if the server computes its checksum. Both sides then read 256 MiB, in about a second.
SAMPLE = 1 * MiB
#: Bytes of a sample if the server has to send it back.
READ_SAMPLE = 4 * KiB
#: Both ends of this number of ranges, the longest ones, are compared, too. At the beginning of a range that is twice as
#: much, because the second MiB of a disk is where the first partition has the time of its last use.
ENDS = 64


class Found(NamedTuple):
    """What need not be sent. If it `needs_checksum`, the checksum of the whole image has to prove it at the end."""

    done: RangeSet
    needs_checksum: bool = False


class Earlier:
    """The earlier transfers of a local image that can be read in any order. `remote_size` is the remote image's."""

    def __init__(
        self, source: Source, there: TransferConnections, record: Record, counter: Counter, remote_size: int
    ) -> None:
        self._source = source
        self._there = there
        self._record = record
        self._equality = Equality(source, there, counter)
        features = there.session.abilities.features
        self._by_checksum = "checksum_range" in features
        self._can_verify = "checksum" in features and remote_size == source.size

    def find(self, recorded: RangeSet, *, compare_all: bool) -> Found:
        """Return what need not be sent: what the server has recorded, and what a state file of this host tells.

        The record belongs to the ticket, so only a sample of it is compared, or with `compare_all` everything. A state
        file may belong to another target, so it is not used if one byte of it differs. Raises FlushFailed, and
        StateMismatch if recorded bytes differ.
        """
        if recorded.size():
            different = self._compare(recorded, every=compare_all)
            if different:
                raise different
        for claim in self._record.claims():
            found = self._missing(claim, recorded)
            if not self._is_provable(claim):
                continue
            different = self._compare(found, every=self._by_checksum)
            if not different:
                # The proof is about content that may be in the server's memory only.
                self._there.ask(RemoteImage.flush)
                for start, end in recorded.pieces():
                    found.add(start, end)
                return Found(found, needs_checksum=not self._by_checksum and self._can_verify)
            log.info("an earlier upload of this source had another target, or this one was changed since")
        return Found(recorded)

    def find_copied(self) -> Found:
        """Return what need not be received: what earlier downloads have left, if it is equal to the image now.

        A server that computes no checksums of ranges sends a sample. Raises LocalError, and as RemoteImage does.
        """
        for claim in self._record.claims():
            left = self._missing(claim, new_ranges())
            if not left.size() or not (self._by_checksum or self._can_verify):
                continue
            if not self._by_checksum:
                if not self._compare(left, every=False):
                    return Found(left, needs_checksum=True)
                continue
            log.info("%s are there from before: comparing them", human(left.size()))
            equal = self._equality.find(left)
            if equal.size() < left.size():
                changed = human(left.size() - equal.size())
                log.warning("the image has changed in %s of what is there from before: receiving these anew", changed)
            if equal.size():
                return Found(equal)
        return Found(new_ranges())

    def _missing(self, claim: Claim, recorded: RangeSet) -> RangeSet:
        """Return the ranges of a claim that the server's record lacks."""
        parts = (part for start, end in claim.done for part in recorded.parts(start, min(end, self._source.size)))
        return aligned((start, end) for start, end, is_recorded in parts if not is_recorded)

    def _is_provable(self, claim: Claim) -> bool:
        return self._by_checksum or self._can_verify or claim.same_url

    def _compare(self, done: RangeSet, *, every: bool) -> StateMismatch | Refused | None:
        """Return the first difference between source and target in these ranges, or None if they are equal."""
        size = SAMPLE if self._by_checksum else READ_SAMPLE
        compared = done if every else self._there.ask(lambda _: sample(self._source, done, size))
        log.info("%s are there from before: comparing %s of them", human(done.size()), human(compared.size()))
        different: list[StateMismatch | Refused] = []

        def worker(image: RemoteImage, buffer: memoryview) -> Callable[[Unit], None]:
            def compare(unit: Unit) -> None:
                if different:
                    return
                try:
                    equal = self._equality.compare(image, unit, buffer)
                except Refused as e:  # the ticket may not read
                    different.append(e)
                    return
                parts = equal.parts(unit.start, unit.end)
                different.extend(_mismatch(start, end) for start, end, is_equal in parts if not is_equal)

            return compare

        self._equality.run(compared, worker, all_or_nothing=True)
        return different[0] if different else None


def sample(source: Source, done: RangeSet, size: int) -> RangeSet:
    """Return places of `size` bytes in what is on stable storage, without holes of the source except at ends of ranges.

    Raises LocalError.
    """
    chosen = new_ranges()
    for start, end in sorted(done.pieces(), key=lambda piece: piece[0] - piece[1])[:ENDS]:
        chosen.add(start, min(start + 2 * size, end))
        chosen.add(max(start, (end - size) // ALIGNMENT * ALIGNMENT), end)
    for position in _spread(source, done):
        start = position // ALIGNMENT * ALIGNMENT
        for begin, end, is_done in done.parts(start, start + size):
            if is_done:
                chosen.add(begin, end)
    return chosen


def _spread(source: Source, done: RangeSet) -> Iterator[int]:
    """Yield positions in the data, a random one in each of SAMPLES equal parts."""
    data = new_ranges()
    for extent in source.extents():
        for start, end, is_done in done.parts(extent.start, extent.end):
            if is_done and not extent.zero:
                data.add(start, end)
    pieces = data.pieces()
    before = [0, *accumulate(end - start for start, end in pieces)]
    for number in range(SAMPLES if pieces else 0):
        at = int((number + random.random()) * before[-1] / SAMPLES)  # noqa: S311 - no secret
        piece = bisect_right(before, at) - 1
        yield pieces[piece][0] + at - before[piece]


def require_sent(image: RemoteImage, start: int, end: int, digest: Digest) -> None:
    """Raise StateMismatch unless a range, which an earlier upload has sent, has this digest. Raises as RemoteImage."""
    if not has_digest(image, digest, (start, end - start)):
        raise _mismatch(start, end)


def _mismatch(start: int, end: int) -> StateMismatch:
    return StateMismatch(
        f"an earlier upload has sent the bytes from {start} to {end}, and they are not those of this source: it is "
        "another one, or source or target was changed since. --restart sends all anew"
    )
