# SPDX-License-Identifier: Apache-2.0
"""An update by the bitmap of the source, if a proof shows that the target is the base (docs/adr/0063)."""

import logging
import random
from collections.abc import Callable

from ...image.block_list import Block
from ...image.blockhash import DEFAULT_ALGORITHM, DEFAULT_BLOCK, Segment
from ...image.ranges import RangeSet
from ..server.remote_image import RemoteImage
from ..server.session import ClientSession
from . import workers
from .block_hashing import hash_unit
from .digest import Digest
from .plan import Queue, Unit
from .remote_source import RemoteSource
from .run_all import RunQueue

log = logging.getLogger(__name__)

#: Blocks without a mark that are compared, at random: 1 GiB of data, which the server of the source reads in about a
#: second. A bitmap that lacks 1 % of the blocks is not noticed in 8 of 100 cases. Up to 1 GiB, all blocks are compared.
SAMPLES = 256


def unchanged(
    checksum: str,
    source: RemoteSource,
    session: ClientSession,
    run: RunQueue,
    images: list[RemoteImage],
    digest: Digest | None,
) -> RangeSet | None:
    """Return where the target, on stable storage, reads as the source, because it is the base there. None if unknown.

    `checksum` is that of the base. `digest` gets the digests of these blocks. Raises as RemoteImage does.
    """
    if "checksum_blocks" not in session.abilities.features:
        return None
    (clean,) = workers.run([source.unchanged], session.stop)
    if clean is None:
        log.warning("the server of the source does not know what has changed: comparing all")
        return None
    found = Base(checksum, clean, source, session, run).find(images, digest)
    if found is not None:  # the comparison is about content that may be in the server's memory only
        workers.run([images[0].flush], session.stop)
    return found


class Base:
    """The base of an update: the source as it was when its bitmap began, with the checksum of all of it.

    `clean` are the blocks of the source that have not changed since, by the bitmap.
    """

    def __init__(
        self, checksum: str, clean: RangeSet, source: RemoteSource, session: ClientSession, run: RunQueue
    ) -> None:
        self._checksum = checksum
        self._clean = clean
        self._source = source
        self._session = session
        self._run = run

    def find(self, images: list[RemoteImage], digest: Digest | None) -> RangeSet | None:
        """Return where the target reads as the source, because it is the base there, or None if it is not the base.

        `digest` gets the digests of these blocks. Raises as RemoteImage does.
        """
        whole = (0, self._source.size)
        (blocks,) = workers.run([lambda: images[0].blocks(DEFAULT_ALGORITHM, DEFAULT_BLOCK, whole)], self._session.stop)
        proven = Digest()
        for start, length, found in blocks:
            proven.add_listed(start // DEFAULT_BLOCK, length, _raw(found))
        if proven.hexdigest() != self._checksum:
            log.warning("the target is not the base: comparing all of it")
            return None
        clean = [
            Block(begin, end - begin, found)
            for start, length, found in blocks
            for begin, end, is_clean in self._clean.parts(start, start + length)
            if is_clean
        ]
        if self._differs(images, clean):
            log.warning("the source has changed where its bitmap tells nothing: it began later; comparing all")
            return None
        if digest is not None:
            for start, length, found in clean:
                digest.add_listed(start // DEFAULT_BLOCK, length, _raw(found))
        return self._clean

    def _differs(self, images: list[RemoteImage], clean: list[Block]) -> bool:
        """Compare a sample, because the bitmap may have begun after the base. Raises as RemoteImage does."""
        chosen = random.sample(clean, min(SAMPLES, len(clean)))
        sample = sorted(_one(block) for block in chosen)
        told = Digest()
        for start, length, found in sample:
            told.add_listed(start // DEFAULT_BLOCK, length, _raw(found))
        expected = {index: found for index, found, _ in told.items()}
        different: list[Unit] = []

        def worker(_: RemoteImage, buffer: memoryview) -> Callable[[Unit], None]:
            def compare(unit: Unit) -> None:
                ours = Digest()
                hash_unit(self._source, unit, buffer, ours, unit.start // DEFAULT_BLOCK)
                if any(expected[index + n] != found for index, found, count in ours.items() for n in range(count)):
                    different.append(unit)

            return compare

        units = (Unit(start, start + length, [Segment(start, length, zero=False)]) for start, length, _ in sample)
        self._run(images, Queue(units, self._source.portion, self._session.stop), worker)
        return bool(different)


def _one(block: Block) -> Block:
    """Return the block, or for a run of zeros one block of it at random."""
    start = block.start + random.randrange(-(-block.length // DEFAULT_BLOCK)) * DEFAULT_BLOCK  # noqa: S311 - no secret
    return Block(start, min(DEFAULT_BLOCK, block.start + block.length - start), block.digest)


def _raw(digest: str | None) -> bytes | None:
    return None if digest is None else bytes.fromhex(digest)
