# SPDX-License-Identifier: Apache-2.0
"""Download of a remote image to a local target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ...image.extents import Extent, ExtentList
from ...units import MiB
from ..errors import ChecksumMismatch, Refused
from ..local.target import Target
from ..server.data import Piece, Range
from ..server.image import RemoteImage
from ..server.session import ClientSession
from . import workers
from .digest import Digest, DigestPart
from .memory import new_buffer
from .plan import Queue, Unit, dirty_units, units, whole, widened
from .progress import Counter, Progress, Report
from .zeros import runs

#: Bytes that are received before they are written. 1.2 GiB over TLS and over a unix socket, 7 alternating runs: 2.15
#: and 1.49 s with 1 MiB, 1.96 and 1.31 with 2, 1.82 and 1.22 with 4; later 1.79 and 1.42 with 4, 1.77 and 1.36 with 8.
BUFFER_SIZE = 4 * MiB


@dataclass(frozen=True)
class Downloaded:
    """The result of a download. local: it used the server's unix socket."""

    progress: Progress
    connections: int
    local: bool
    checksum: str | None = None


class Download:
    """One download. dirty: transfer and write only the extents that have changed since the server's checkpoint."""

    def __init__(
        self,
        session: ClientSession,
        target: Target,
        *,
        dirty: bool = False,
        verify: bool = False,
        report: Report | None = None,
    ) -> None:
        self._session = session
        self._target = target
        self._dirty = dirty
        self._digest = Digest() if verify else None
        self._report = report
        self._counter = Counter()
        self._extents: Sequence[Extent] = []

    @property
    def progress(self) -> Progress:
        """Return the present progress."""
        retries = self._session.retries
        return replace(self._counter.progress(), retries=retries.count, reason=retries.reason)

    def run(self) -> Downloaded:
        """Download the image; return when it is on stable storage and, if asked for, verified. Raises ClientError."""
        stop = self._session.stop
        stop.call(self._target.stop)
        (first,) = workers.run([self._prepare], stop)
        plan = dirty_units if self._dirty else units
        queue = Queue(plan(self._extents), self._target.portion, stop, self._planned)
        count = self._session.connections(self._session.abilities.max_readers)
        images = [first, *(self._session.connect() for _ in range(count - 1))]
        threads: list[Callable[[], None]] = [queue.fill, *(partial(self._work, image, queue) for image in images)]
        workers.run(threads, stop, self._tick)
        (checksum,) = workers.run([partial(self._finish, first)], stop, self._tick)
        self._tick()
        return Downloaded(self.progress, count, self._session.is_local, checksum)

    def _tick(self) -> None:
        if self._report is not None:
            self._report(self.progress)

    # In threads

    def _planned(self, unit: Unit | None) -> None:
        self._counter.plan(unit and sum(segment.length for segment in unit.segments if not segment.zero))

    def _prepare(self) -> RemoteImage:
        image = self._session.open()
        if self._dirty:
            self._extents = ExtentList.of(widened(self._dirty_extents(image), self._target.block))
        elif "extents" in self._session.abilities.features:
            self._extents = whole(image.extents(), self._target.block) if self._target.block > 1 else image.extents()
        else:
            self._extents = [Extent(0, image.size())]
        size = sum(extent.length for extent in self._extents)
        self._counter.total = size
        if self._dirty:
            self._counter.add(skipped=sum(extent.length for extent in self._extents if not extent.dirty))
        self._target.start(size)
        return image

    def _dirty_extents(self, image: RemoteImage) -> Sequence[Extent]:
        try:
            return image.extents("dirty")
        except Refused as e:
            if e.http_status == 404:
                raise Refused(f"the server does not know what has changed: download all ({e})", 404) from e
            raise

    def _work(self, image: RemoteImage, queue: Queue) -> None:
        buffer = new_buffer(BUFFER_SIZE)
        for unit in queue.take(image.abilities):
            digest = self._digest.part(unit.start) if self._digest else None
            self._receive(image, unit, buffer, digest)
            if digest:
                digest.end()

    def _receive(self, image: RemoteImage, unit: Unit, buffer: memoryview, digest: DigestPart | None) -> None:
        data = [Range(start, length) for start, length, zero in unit.segments if not zero]
        pieces = image.read(data, buffer, self._counter.moved)
        for start, length, zero in unit.segments:
            if zero:
                self._write_zeros(start, length)
                self._counter.add(zero=length)
                if digest:
                    digest.zeros(length)
                continue
            left = length
            while left:
                piece = next(pieces)
                self._write(piece)
                left -= len(piece.data)
                if digest:
                    digest.data(piece.data)
        next(pieces, None)  # it ends behind the last one

    def _write(self, piece: Piece) -> None:
        offset, data = piece
        for run in runs(data, offset):
            if run.zero:
                self._write_zeros(offset + run.start, run.end - run.start)
            else:
                self._target.write(offset + run.start, data[run.start : run.end])

    def _write_zeros(self, offset: int, length: int) -> None:
        if not self._target.reads_zero:
            self._target.zero(offset, length)

    def _finish(self, image: RemoteImage) -> str | None:
        checksum = self._verify(image, self._digest) if self._digest else None
        self._target.finish()
        return checksum

    def _verify(self, image: RemoteImage, digest: Digest) -> str:
        ours = digest.hexdigest()
        theirs = image.checksum(digest.algorithm, digest.block_size)["checksum"]
        if ours != theirs:
            raise ChecksumMismatch(f"the image reads as {theirs}, the copy as {ours}: find out who writes to the image")
        return ours
