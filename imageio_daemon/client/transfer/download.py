# SPDX-License-Identifier: Apache-2.0
"""Download of a remote image to a local target."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ...image.extents import Extent, ExtentList
from ...image.ranges import RangeSet
from ...units import MiB
from ..errors import ChecksumMismatch, ClientError, LocalError, Refused, StateMismatch
from ..local.source import Source
from ..local.target import PartTarget, Target, UpdatedTarget
from ..server.remote_image import RemoteImage
from ..server.session import ClientSession
from ..unflushed import new_ranges
from . import workers
from .base import unchanged_here
from .checkpoints import LocalCheckpoints
from .digest import Digest
from .earlier import Earlier
from .equality import Equality, no_ranges
from .manifest import Manifest
from .plan import Queue, Unit, data_left, dirty_units, units, units_left, whole, widened
from .progress import Counter, Phase, Progress, Report
from .receiver import Receiving
from .record import DOWNLOAD, Record, States
from .transfer_connections import TransferConnections
from .transfer_options import DownloadOptions
from .verification import no_checksum

log = logging.getLogger(__name__)

#: Bytes that are received before they are written. 1.2 GiB over TLS and over a unix socket took, in 7 alternating runs,
#: 2.15 and 1.49 s with 1 MiB, 1.96 and 1.31 s with 2 MiB, 1.82 and 1.22 s with 4 MiB; in later runs 1.79 and 1.42 s
#: with 4 MiB, 1.77 and 1.36 s with 8 MiB.
BUFFER_SIZE = 4 * MiB


@dataclass(frozen=True)
class Downloaded:
    """The result of a download. `local` tells that it used the server's unix socket."""

    progress: Progress
    connections: int
    local: bool
    checksum: str | None = None


def refusals(session: ClientSession, options: DownloadOptions) -> Iterator[ClientError]:
    """Yield why the server's abilities do not suffice, before anything is changed."""
    if options.verify or options.manifest is not None:
        yield from no_checksum(session, "checksum")
    if options.update:
        yield from no_ranges(session)


def extents_of(image: RemoteImage, session: ClientSession, options: DownloadOptions) -> Sequence[Extent]:
    """Return the extents of the image, with what has changed if only that is wanted. Raises as RemoteImage does."""
    if not options.dirty:
        return image.extents() if "extents" in session.abilities.features else [Extent(0, image.size())]
    try:
        return image.extents("dirty")
    except Refused as e:
        if e.http_status == 404:
            raise Refused(f"the server does not know what has changed: download all ({e})", 404) from e
        raise


#: Features of a server that can prove what an earlier download has left. Without any, a download leaves nothing.
PROOFS = {"checksum", "checksum_range"}


class Download:
    """One download."""

    def __init__(
        self,
        session: ClientSession,
        target: Target,
        options: DownloadOptions,
        report: Report | None = None,
    ) -> None:
        self._session = session
        self._target = target
        self._part = target if isinstance(target, PartTarget) and target.identity is not None else None
        self._options = options
        self._updated = target if isinstance(target, UpdatedTarget) else None
        self._digest = Digest() if options.verifies else None
        self._report = report
        self._counter = Counter()
        self._counter.retries.append(session.retries)
        self._extents: Sequence[Extent] = []
        self._size = 0
        self._earlier: Source | None = None  # the content that an earlier download has left
        self._done = new_ranges()
        self._record = Record()
        self._checkpoints: LocalCheckpoints | None = None
        self._manifest: Manifest | None = None
        self._complete = False

    @property
    def progress(self) -> Progress:
        """Return the present progress."""
        return replace(
            self._counter.progress(),
            durable=self._checkpoints.durable if self._checkpoints else None,
            ending=self._session.stop.is_set,
            complete=self._complete,
        )

    def run(self) -> Downloaded:
        """Download the image. Return when it is on stable storage and, if asked for, verified. Raises ClientError.

        If this ends early, leave what there is for the next download, or remove it if none can continue.
        """
        try:
            return self._download()
        except BaseException as e:
            self._leave(e)
            self._tick()
            raise
        finally:
            self._record.release()
            if self._earlier is not None:
                self._earlier.close()

    def _download(self) -> Downloaded:
        stop = self._session.stop
        stop.call(self._target.stop)
        if self._options.manifest is not None:
            self._manifest = Manifest(Path(self._options.manifest))
        (first,) = workers.run([self._prepare], stop)
        count = self._session.connections(self._session.abilities.max_readers)
        images = self._session.more(first, count)
        there = TransferConnections(self._session, images, self._tick, BUFFER_SIZE)
        self._continue(there)
        if not self._done.size():
            workers.run([partial(self._target.start, self._size)], stop)
        if self._updated is not None:
            self._find_equal(self._updated, there)
        if self._part is not None and PROOFS & self._session.abilities.features:
            self._record = self._new_record(self._part)
            self._checkpoints = LocalCheckpoints(self._part, self._record, self._done, self._options.checkpoint)
        receiving = Receiving(
            self._target, self._counter, self._checkpoints, done=self._done, earlier=self._earlier, digest=self._digest
        )
        there.run(Queue(self._plan(), self._target.portion, stop, self._planned), receiving.worker)
        (checksum,) = workers.run([partial(self._finish, first)], stop, self._tick)
        self._tick()
        return Downloaded(self.progress, count, self._session.is_local, checksum)

    def _plan(self) -> Iterator[Unit]:
        if self._options.dirty:
            return dirty_units(self._extents)
        # A digest includes blocks that were found equal, but not what an earlier download has left.
        if not self._done.size() or (self._digest and self._updated is None):
            return units(self._extents)
        self._counter.add(resumed=self._done.size())
        return units_left(self._extents, self._done)

    def _find_equal(self, target: UpdatedTarget, there: TransferConnections) -> None:
        """Find where an existing target already reads as the image, by a bitmap or else by digests."""
        self._earlier = earlier = target.source()
        found = None
        if (base := self._options.base) is not None:
            found = unchanged_here(base, earlier, self._size, there, self._counter, self._digest)
        if found is None:
            equality = Equality(earlier, there, self._counter, self._digest)
            found = equality.find(new_ranges([(0, self._size)]))
        self._done = found

    def _continue(self, there: TransferConnections) -> None:
        """Find where the content that an earlier download has left is equal to the image."""
        part = self._part
        if part is None or not part.is_earlier or self._options.restart:
            return
        self._record = self._new_record(part)
        (self._earlier,) = workers.run([partial(part.resume, self._size)], self._session.stop)
        if self._earlier is None:
            return
        earlier = Earlier(self._earlier, there, self._record, self._counter, self._size)
        found = earlier.find_copied()
        self._done = self._with_data(found.done) if found.needs_checksum else found.done
        if found.needs_checksum and not self._digest:
            self._digest = Digest()

    def _with_data(self, done: RangeSet) -> RangeSet:
        """Return the parts in which the image has data. The others become zeros anew: nobody has compared them."""
        return new_ranges(
            (start, end)
            for extent in self._extents
            if not extent.zero
            for start, end, is_done in done.parts(extent.start, extent.end)
            if is_done
        )

    def _new_record(self, part: PartTarget) -> Record:
        """Return the record for the part file. A new one has another identity than the one that was left."""
        directory, identity = self._options.directory, part.identity
        if self._done.size() or directory is None or identity is None:
            return self._record
        self._record.discard()
        return Record(states=States(directory, identity, self._session.url, self._size, DOWNLOAD))

    def _leave(self, error: BaseException) -> None:
        """Close the target and the manifest. What fails here is logged, because `error` is the reason."""
        with contextlib.ExitStack() as closing:  # the last one first
            if self._manifest is not None:
                closing.callback(_told, self._manifest.abandon)
            closing.callback(_told, partial(self._leave_target, error))

    def _leave_target(self, error: BaseException) -> None:
        """Close the target, and keep what it has if the next download can continue with it."""
        checkpoints = self._checkpoints
        if isinstance(error, ChecksumMismatch | StateMismatch):
            self._record.discard()
        elif checkpoints is not None and checkpoints.is_anything:
            checkpoints.leave()
            return
        elif self._part is not None and self._part.is_earlier:  # leave it as it was
            self._part.keep()
            return
        self._checkpoints = None
        self._target.abandon()

    def _tick(self) -> None:
        if self._report is not None:
            self._report(self.progress)

    # In threads

    def _planned(self, unit: Unit | None) -> None:
        self._counter.plan(unit and data_left(unit, self._done))

    def _prepare(self) -> RemoteImage:
        image = self._session.open()
        for refusal in refusals(self._session, self._options):
            raise refusal
        self._extents, block = extents_of(image, self._session, self._options), self._target.block
        if self._options.dirty:
            self._extents = ExtentList.of(widened(self._extents, block))
        elif block > 1:
            self._extents = whole(self._extents, block)
        self._size = sum(extent.length for extent in self._extents)
        self._counter.total = self._size
        if self._options.dirty:
            self._counter.add(skipped=sum(extent.length for extent in self._extents if not extent.dirty))
        return image

    def _finish(self, image: RemoteImage) -> str | None:
        if self._digest:
            self._counter.begin(Phase.VERIFYING)
        checksum = self._verify(image, self._digest) if self._digest else None
        self._target.finish()
        self._complete = True
        self._checkpoints = None
        self._record.discard()
        if self._manifest and self._digest:
            self._manifest.write(self._digest, self._size)
        return checksum if self._options.verifies else None

    def _verify(self, image: RemoteImage, digest: Digest) -> str:
        ours = digest.hexdigest()
        theirs = image.checksum(digest.algorithm, digest.block_size)["checksum"]
        if ours != theirs and not self._options.verifies:
            raise StateMismatch(
                "an earlier download was of another image, or it was changed since: the same command receives all"
            )
        if ours != theirs:
            late = "" if self._options.base is None else ", or update without --base: its bitmap may have begun later"
            raise ChecksumMismatch(
                f"the image reads as {theirs}, the copy as {ours}: find out who writes to the image{late}"
            )
        return ours


def _told(close: Callable[[], None]) -> None:
    """Call a function, and log its failure."""
    try:
        close()
    except (LocalError, OSError) as e:
        log.warning("%s", e)
