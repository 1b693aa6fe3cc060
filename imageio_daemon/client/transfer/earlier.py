# SPDX-License-Identifier: Apache-2.0
"""What earlier transfers have left in the target, and the proof that it is of this source (docs/adr/0037, 0053)."""

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ...commands.amounts import human
from ...image.ranges import RangeSet
from ..errors import Refused, StateMismatch
from ..local.source import Source
from ..server.image import RemoteImage
from ..server.session import ClientSession
from . import workers
from .comparison import Comparison
from .connections import Run
from .equality import Equality
from .plan import Queue, Unit
from .progress import Counter, Phase
from .record import Claim, Record, aligned, new_ranges

log = logging.getLogger(__name__)


class Found(NamedTuple):
    """What need not be sent. needs_checksum: the checksum of the whole image has to prove it at the end."""

    done: RangeSet
    needs_checksum: bool = False


class Earlier:
    """The earlier transfers of a local image that can be read in any order. remote_size: bytes of the remote one."""

    def __init__(
        self, source: Source, session: ClientSession, record: Record, counter: Counter, run: Run, remote_size: int
    ) -> None:
        self._source = source
        self._session = session
        self._record = record
        self._counter = counter
        self._run = run
        features = session.abilities.features
        self._by_checksum = "checksum_range" in features
        self._can_verify = "checksum" in features and remote_size == source.size

    def find(self, images: list[RemoteImage], recorded: RangeSet, *, compare_all: bool) -> Found:
        """Return what need not be sent: what the server has recorded, and what a state of this host tells.

        The record is that of the ticket, so a sample of it is compared, unless compare_all. Nobody vouches that a state
        belongs to this target: a state of which one byte differs is not used. Raises StateMismatch if what is recorded
        differs, FlushFailed.
        """
        if recorded.size():
            different = self._compare(images, recorded, every=compare_all)
            if different:
                raise different
        for claim in self._record.claims():
            found = self._missing(claim, recorded)
            if not self._is_provable(claim):
                continue
            different = self._compare(images, found, every=self._by_checksum)
            if not different:
                # What is proven is the content, wherever the server has it.
                workers.run([images[0].flush], self._session.stop)
                for start, end in recorded.pieces():
                    found.add(start, end)
                return Found(found, needs_checksum=not self._by_checksum and self._can_verify)
            log.info("an earlier upload of this source had another target, or this one was changed since")
        return Found(recorded)

    def find_copied(self, images: list[RemoteImage]) -> Found:
        """Return what need not be received again: what earlier downloads have left, where the image is equal now.

        A server that computes no checksums of ranges sends a sample of it back. Raises LocalError, those of
        RemoteImage.
        """
        for claim in self._record.claims():
            left = self._missing(claim, new_ranges())
            if not left.size() or not (self._by_checksum or self._can_verify):
                continue
            if not self._by_checksum:
                if not self._compare(images, left, every=False):
                    return Found(left, needs_checksum=True)
                continue
            log.info("%s are there from before: comparing them", human(left.size()))
            equal = Equality(self._source, self._session, self._counter, self._run).find(images, left)
            if equal.size() < left.size():
                changed = human(left.size() - equal.size())
                log.warning("the image has changed in %s of what is there from before: receiving these anew", changed)
            if equal.size():
                return Found(equal)
        return Found(new_ranges())

    def _missing(self, claim: Claim, recorded: RangeSet) -> RangeSet:
        """Return what a claim has more than the record of the server."""
        parts = (part for start, end in claim.done for part in recorded.parts(start, min(end, self._source.size)))
        return aligned((start, end) for start, end, is_recorded in parts if not is_recorded)

    def _is_provable(self, claim: Claim) -> bool:
        return self._by_checksum or self._can_verify or claim.same_url

    def _compare(self, images: list[RemoteImage], done: RangeSet, *, every: bool) -> StateMismatch | Refused | None:
        """Return the first difference between source and target in these ranges; None: they are equal."""
        comparison = Comparison(self._source, done, by_checksum=self._by_checksum)
        ((amount, units),) = workers.run([partial(comparison.plan, every=every)], self._session.stop)
        log.info("%s are there from before: comparing %s of them", human(done.size()), human(amount))
        different: list[StateMismatch | Refused] = []

        def worker(image: RemoteImage, buffer: memoryview) -> Callable[[Unit], None]:
            def compare(unit: Unit) -> None:
                if different:
                    return
                try:
                    comparison.compare(image, unit, buffer)
                except (StateMismatch, Refused) as e:  # refused: the ticket may not read
                    different.append(e)
                self._counter.check(unit.end - unit.start)

            return compare

        self._counter.begin(Phase.COMPARING, amount)
        self._run(images, Queue(units, self._source.portion, self._session.stop), worker)
        self._counter.begin(Phase.TRANSFERRING)
        return different[0] if different else None
