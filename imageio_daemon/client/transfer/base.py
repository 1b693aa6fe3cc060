# SPDX-License-Identifier: Apache-2.0
"""An update by the bitmap of the source, if a proof shows that the target is the base (docs/adr/0063)."""

import logging
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate

from ...image.blockhash import DEFAULT_BLOCK, Segment
from ...image.ranges import RangeSet
from ..local.source import MarkedSource, Source
from ..server.remote_image import RemoteImage
from ..unflushed import new_ranges
from .block_hashing import hash_unit
from .digest import Digest, Listed, told
from .equality import LEAST
from .plan import Queue, Unit, units
from .progress import Counter, Phase
from .remote_source import changed_there
from .transfer_connections import TransferConnections

log = logging.getLogger(__name__)

#: Blocks without a mark that are compared, of data or zeros, at random: 1 GiB, which is read in about a second. A
#: bitmap that lacks 1 % of the blocks is not noticed in 8 of 100 cases. Up to 1 GiB, all blocks are compared.
SAMPLES = 256

#: A function that adds the digests of the blocks of a unit of the source, by a connection and a buffer.
Hashing = Callable[[RemoteImage, memoryview, Unit, Digest], None]


def unchanged_there(
    checksum: str, source: MarkedSource, there: TransferConnections, digest: Digest | None
) -> RangeSet | None:
    """Return the ranges in which a server's image, on stable storage, reads as the source. None if unknown.

    `checksum` is that of the base. `digest` gets the digests of these blocks. Raises LocalError, and as RemoteImage
    does.
    """

    def hashing(_: RemoteImage, buffer: memoryview, unit: Unit, found: Digest) -> None:
        hash_unit(source, unit, buffer, found, unit.start // DEFAULT_BLOCK)

    def hash_target(target: Digest) -> None:
        there.ask(lambda image: _list(image, 0, source.size, target))

    found = _unchanged(checksum, source.size, there, lambda _: source.changed(), hash_target, hashing, digest)
    if found is not None:  # the comparison is about content that may be in the server's memory only
        there.ask(RemoteImage.flush)
    return found


def unchanged_here(
    checksum: str, target: Source, size: int, there: TransferConnections, counter: Counter, digest: Digest | None
) -> RangeSet | None:
    """Return the ranges in which a local image reads as a server's image of `size` bytes. None if unknown.

    Other arguments and errors are as for unchanged_there().
    """

    def hashing(image: RemoteImage, _: memoryview, unit: Unit, found: Digest) -> None:
        _list(image, unit.start, unit.end, found)

    def hash_target(ours: Digest) -> None:
        def worker(_: RemoteImage, buffer: memoryview) -> Callable[[Unit], None]:
            def hash_one(unit: Unit) -> None:
                hash_unit(target, unit, buffer, ours, unit.start // DEFAULT_BLOCK)
                counter.check(unit.end - unit.start)

            return hash_one

        counter.begin(Phase.COMPARING, size)
        extents = (
            extent._replace(length=min(extent.length, size - extent.start))
            for extent in target.extents()
            if extent.start < size  # a device may be larger
        )
        there.run(Queue(units(extents), LEAST, there.session.stop), worker)

    changed = partial(changed_there, session=there.session)
    found = _unchanged(checksum, size, there, changed, hash_target, hashing, digest)
    counter.begin(Phase.TRANSFERRING)
    return found


def _unchanged(
    checksum: str,
    size: int,
    there: TransferConnections,
    changed: Callable[[RemoteImage], RangeSet | None],
    hash_target: Callable[[Digest], None],
    hashing: Hashing,
    digest: Digest | None,
) -> RangeSet | None:
    """Return the ranges of `size` bytes in which the target reads as the source. None if the target is not the base.

    The base is the source as it was when its bitmap began, with this checksum. `changed` returns what the source has
    marked since then, `hash_target` adds the digests of all blocks of the target, and `hashing` hashes the source.
    `digest` gets the digests of the blocks in the ranges. Raises as these do.
    """
    if "checksum_blocks" not in there.session.abilities.features:
        return None
    if (dirty := there.ask(changed)) is None:
        log.warning("nobody knows what has changed in the source: comparing all")
        return None
    target = Digest()
    hash_target(target)
    if target.hexdigest() != checksum:
        log.warning("the target is not the base: comparing all of it")
        return None
    marked = new_ranges(
        (start // DEFAULT_BLOCK * DEFAULT_BLOCK, -(-end // DEFAULT_BLOCK) * DEFAULT_BLOCK)
        for start, end in dirty.pieces()
    )
    unchanged = new_ranges((start, end) for start, end, is_marked in marked.parts(0, size) if not is_marked)
    clean = [
        (begin, end, found)
        for start, limit, found in target.listed(size)
        for begin, end, is_clean in unchanged.parts(start, limit)
        if is_clean
    ]
    if _differs(clean, there, hashing):
        log.warning("the source has changed where its bitmap tells nothing: it began later; comparing all")
        return None
    if digest is not None:
        for listed in clean:
            digest.add_listed(*listed)
    return unchanged


def _differs(clean: list[Listed], there: TransferConnections, hashing: Hashing) -> bool:
    """Compare a sample, because the bitmap may have begun after the base. Raises as `hashing` does."""
    sample = list(_sample(clean))
    ours, theirs = Digest(), Digest()

    def worker(image: RemoteImage, buffer: memoryview) -> Callable[[Unit], None]:
        return lambda unit: hashing(image, buffer, unit, ours)

    for listed in sample:
        theirs.add_listed(*listed)
    work = (Unit(start, end, [Segment(start, end - start, zero=False)]) for start, end, _ in sample)
    there.run(Queue(work, LEAST, there.session.stop), worker)
    return ours.hexdigest() != theirs.hexdigest()


def _list(image: RemoteImage, start: int, end: int, digest: Digest) -> None:
    """Add the digests of a range, as its server tells them."""
    for listed in told(image.blocks(digest.algorithm, digest.block_size, (start, end - start))):
        digest.add_listed(*listed)


def _sample(clean: list[Listed]) -> Iterator[Listed]:
    """Yield blocks at random, in order. Each has the same chance: a guest also writes where there were zeros."""
    before = [0, *accumulate(-(-(end - start) // DEFAULT_BLOCK) for start, end, _ in clean)]
    for number in sorted(random.sample(range(before[-1]), min(SAMPLES, before[-1]))):
        run = bisect_right(before, number) - 1
        start, end, digest = clean[run]
        start += (number - before[run]) * DEFAULT_BLOCK
        yield start, min(start + DEFAULT_BLOCK, end), digest
