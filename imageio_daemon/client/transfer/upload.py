# SPDX-License-Identifier: Apache-2.0
"""Upload of a local source to a remote image."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from ...image.ranges import RangeSet
from ..errors import ChecksumMismatch, ClientError, FlushFailed, LocalError, StateMismatch, StorageFailed, Temporary
from ..file_part import FilePart
from ..local.source import FileSource, MarkedSource, Source
from ..server.remote_image import RemoteImage
from ..server.session import ClientSession
from ..unflushed import new_ranges
from . import workers
from .base import unchanged_there
from .checkpoints import RemoteCheckpoints
from .digest import Digest
from .earlier import Earlier
from .equality import Equality, no_ranges
from .plan import Queue, Unit, data_left, units, units_left
from .progress import Counter, Phase, Progress, Report
from .record import ALIGNMENT, Record, States, aligned
from .remote_source import RemoteSource
from .room import no_room, not_verifiable, write_end
from .sender import Sending
from .transfer_connections import TransferConnections
from .transfer_options import SendOptions, Uploaded
from .update import send_what_differs
from .verification import await_verification, is_finalized, no_checksum, not_writable, prove
from .wire_compression import Compression, choice_for

log = logging.getLogger(__name__)

#: Most attempts to have a flush confirm all data. One succeeds if no connection is lost before its flush.
ROUNDS = 4


class Upload:
    """One upload. `counter` has counted what was read of the source before."""

    def __init__(
        self,
        source: Source,
        session: ClientSession,
        options: SendOptions,
        report: Report | None = None,
        counter: Counter | None = None,
    ) -> None:
        self._source = source
        self._session = session
        self._options = options
        self._digest = Digest() if options.verifies else None
        self._record = Record()
        self._done = new_ranges()
        self._target_size = 0
        self._finalized = False
        self._goes_on = False  # whether earlier uploads may have left something, or an update compares
        self._is_part = False  # whether the target is larger than the source
        self._is_compared = False  # whether this is an update of what is there: the digest has the ranges that are done
        self._checkpoints = self._new_checkpoints()
        self._report = report
        self._counter = counter or Counter()
        self._counter.retries.append(session.retries)
        self._counter.begin(Phase.TRANSFERRING)
        self._counter.total = source.size

    @property
    def progress(self) -> Progress:
        """Return the present progress."""
        return replace(
            self._counter.progress(),
            durable=self._checkpoints.durable,
            ending=self._session.stop.is_set,
        )

    def run(self) -> Uploaded:
        """Upload the image. Return when it is on stable storage and, if asked for, verified. Raises ClientError.

        If the upload is interrupted, or if the storage has no more room, flush and save the record first.
        """
        try:
            return self._upload()
        except FlushFailed:
            raise
        except (KeyboardInterrupt, StorageFailed):
            self._checkpoints.save_interrupted()
            self._tick()
            raise
        finally:
            self._record.release()

    def _upload(self) -> Uploaded:
        stop = self._session.stop
        stop.call(self._source.stop)
        (first,) = workers.run([self._prepare], stop)
        count = self.connections()
        images = self._session.more(first, count)
        there = TransferConnections(self._session, images, self._tick)
        workers.run([image.connect for image in images], stop)
        self._continue(there)
        if self.writes_end:
            there.ask(lambda image: write_end(image, self._source))
        if self._is_compared and not self._done.size():
            equality = Equality(self._source, there, self._counter, self._digest)
            send_what_differs(equality, self._sending(new_ranges(), self._counter, self._digest))
        else:
            self._send(there, self._done, self._counter, self._digest)
        self._send_what_was_lost(there)
        (verified,) = workers.run([partial(self._finish, first)], stop, self._tick)
        self._tick()
        checksum = self._digest.hexdigest() if self._digest and self._options.verifies else None
        return Uploaded(self.progress, count, self._session.is_local, checksum, verified)

    def connections(self) -> int:
        """Return the number of connections, each with a thread that reads and then writes.

        With another server as the source there are twice as many, if the server allows it, so that half of them read
        while the others write. 128 MiB over TLS and a link of 300 Mbit/s took 5.1 to 5.4 s with 4, and 4.4 s with 8,
        where a download takes 3.9 s. On one host nothing waits for a link.
        """
        most = self._session.abilities.max_writers
        count = self._session.connections(most)
        return min(2 * count, most) if isinstance(self._source, RemoteSource) and not self._session.is_local else count

    def _continue(self, there: TransferConnections) -> None:
        """Find what earlier uploads have left, and prove it, or what is equal by the bitmap of the source.

        Raises StateMismatch, Refused, FlushFailed.
        """
        base, source = self._options.base, self._source
        if source.is_stream or not self._goes_on:
            return
        if not self._is_compared:
            # Nothing shows whether a block device was changed.
            compare_all = self._options.compare_all or source.identity is None
            earlier = Earlier(source, there, self._record, self._counter, self._target_size)
            found = earlier.find(self._done, compare_all=compare_all)
            self._done = found.done
            if found.needs_checksum and not self._digest:
                self._digest = Digest()
        elif base is not None and isinstance(source, MarkedSource):
            self._done = unchanged_there(base, source, there, self._digest) or new_ranges()
        self._checkpoints = self._new_checkpoints()

    def _send(self, there: TransferConnections, done: RangeSet, counter: Counter, digest: Digest | None) -> None:
        """Send all except what is done."""

        def planned(unit: Unit | None) -> None:
            counter.plan(unit and data_left(unit, done))

        extents = self._source.extents()
        # All of a stream is read, and everything that a digest lacks.
        passes = self._source.is_stream or (digest and not self._is_compared) or not done.size()
        if not passes:
            counter.add(resumed=done.size())
        left = units(extents) if passes else units_left(extents, done)
        queue = Queue(left, self._source.portion, self._session.stop, planned)
        there.run(queue, self._sending(done, counter, digest).worker)

    def _sending(self, done: RangeSet, counter: Counter, digest: Digest | None) -> Sending:
        return Sending(
            self._source,
            counter,
            self._checkpoints,
            self._session.restarts,
            done=done,
            skip_zeros=self._session.abilities.reads_zero,
            digest=digest,
            compares=self._source.is_stream and not self._finalized,
            choice=choice_for(self._session, Compression(self._options.wire_compression)),
            part=None if digest else self._part(),
        )

    def _part(self) -> Callable[[int, int], FilePart] | None:
        """Return a function that makes ranges for the kernel to send. None with TLS, or past the page cache."""
        source = self._source
        return source.part if isinstance(source, FileSource) and source.is_cached and self._session.is_local else None

    def _send_what_was_lost(self, there: TransferConnections) -> None:
        """Flush, and send again what a restarted server may have lost, until a flush confirms all."""
        if self._finalized:
            return
        for left in reversed(range(ROUNDS)):
            (lost,) = workers.run([partial(self._confirm, there.images[0])], self._session.stop, self._tick)
            if not lost.size():
                return
            if not left:
                break
            log.info("connections to %s were lost: sending again what it may have lost", self._session.peer)
            done = new_ranges((s, e) for s, e, is_lost in lost.parts(0, self._source.size) if not is_lost)
            self._send(there, done, Counter(), None)  # the bytes are already in self._counter
        raise Temporary(f"connections to {self._session.peer} are lost too often to know what is on stable storage")

    def _tick(self) -> None:
        if self._report is not None:
            self._report(self.progress)

    # In threads

    def _prepare(self) -> RemoteImage:
        image = self._session.open()
        await_verification(image, self._session, self._counter)
        for refusal in self.refusals(image):
            raise refusal
        if not self._goes_on:
            self._record.discard()
        return image

    def refusals(self, image: RemoteImage) -> Iterator[ClientError]:
        """Do all that comes before the first byte, by the first connection. Yield why the upload fails before it.

        A dry run ends after that: nothing is changed on either side. Raises as RemoteImage does, LocalError, Stopped.
        """
        session, options = self._session, self._options
        if options.verify:
            yield from no_checksum(session, "checksum", "finalize")
        yield from not_writable(session, verify=options.verifies)
        self._finalized = is_finalized(session)
        if self._finalized:
            self._done.add(0, self._source.size)
        else:
            if options.room_check:
                yield from no_room(self._source, session.abilities.available)
            self._load(image)
        if self._is_compared:
            yield from no_ranges(session)
        if options.verifies:
            yield from self._not_verifiable(image)

    def from_before(self) -> int | None:
        """Return how many bytes earlier uploads have left, by the records alone, or None if there are none."""
        if not self._goes_on or self._is_compared:
            return None
        told = [sum(end - start for start, end in claim.done) for claim in self._record.claims()]
        return min(max([self._done.size(), *told]), self._source.size) or None

    @property
    def writes_end(self) -> bool:
        """Return whether the upload begins with the last byte, for which a target may be too small; see write_end()."""
        last = self._source.size - 1
        return last >= 0 and not (self._finalized or self._is_compared or self._done.overlaps(last, last + 1))

    def _not_verifiable(self, image: RemoteImage) -> Iterator[ChecksumMismatch]:
        """Yield an error if a part of the target would be verified, and the server computes no checksums of parts."""
        size = max(self._target_size or image.size(), self._source.size if self.writes_end else 0)
        self._is_part = size > self._source.size and "checksum_range" in self._session.abilities.features
        if size != self._source.size and not self._is_part:
            yield not_verifiable(size, self._source.size)

    def _load(self, image: RemoteImage) -> None:
        """Load the server's record, and find where this side keeps its own. Raises as RemoteImage does."""
        abilities, options, identity = self._session.abilities, self._options, self._source.identity
        # A source that is read once is compared by checksums while it is read.
        needed = {"durable", "checksum_range"} if self._source.is_stream else {"durable"}
        states = None
        if options.directory is not None and identity is not None:
            self._target_size = image.size()
            states = States(options.directory, identity, self._session.url, self._target_size)
        self._record = Record(on_server=needed <= abilities.features, states=states)
        # A target that reads as zeros is a new image with the same URL.
        self._goes_on = not options.restart and not abilities.reads_zero
        self._is_compared = options.update and self._goes_on
        if self._goes_on and not self._is_compared:  # an update compares all, whatever is recorded
            size = self._source.size
            self._done = aligned((start, min(end, size)) for start, end in self._record.durable(image).pieces())
            if self._source.is_stream:  # write_end() zeroes its last byte
                self._done.discard((size - 1) // ALIGNMENT * ALIGNMENT, size)
        self._checkpoints = self._new_checkpoints()

    def _new_checkpoints(self) -> RemoteCheckpoints:
        interval, once = self._options.checkpoint, self._source.is_stream
        return RemoteCheckpoints(self._session, self._record, self._done, interval, once=once)

    def _confirm(self, image: RemoteImage) -> RangeSet:
        self._checkpoints.confirm(image)
        return self._checkpoints.take_lost(image)

    def _finish(self, image: RemoteImage) -> str | None:
        try:
            self._source.check()
        except (ChecksumMismatch, LocalError):
            self._record.close()
            raise
        try:
            part = (0, self._source.size) if self._is_part else None  # finalize is for the whole image
            verified = prove(image, self._digest, part, self._session, self._counter) if self._digest else None
        except ChecksumMismatch as e:
            self._record.close()
            if not self._options.verifies:
                raise StateMismatch(
                    "an earlier upload had another target, or it was changed since: the same command sends all"
                ) from e
            raise
        self._record.discard()
        return verified
