# SPDX-License-Identifier: Apache-2.0
"""Upload of a local source to a remote image."""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...units import KiB, MiB
from ..errors import (
    ChecksumMismatch,
    ClientError,
    FlushFailed,
    LocalError,
    Refused,
    ServerFailed,
    StateMismatch,
    Stopped,
    Temporary,
    Usage,
)
from ..local.source import Source
from ..server.image import Image
from ..server.session import ClientSession
from ..server.stopping import Stop
from . import workers
from .digest import Digest
from .memory import new_buffer
from .plan import Queue, units
from .progress import Counter, Progress, Report
from .sender import Sender
from .state import CHECKPOINT, Confirmed, StateFile

log = logging.getLogger(__name__)

#: Bytes of the longest request and of each connection's buffer. Processor seconds for 1 GiB over TLS, client and
#: server, on a busy machine: 1.76 + 1.85 with 1 MiB, 1.69 + 1.90 with 4 MiB, 1.85 + 1.97 with 8 MiB. That is no
#: difference, and longer requests wait for fewer answers.
BUFFER_SIZE = 8 * MiB
#: Attempts to get all data confirmed by a flush. One succeeds if no connection is lost before its flush.
ROUNDS = 4
#: Longest wait of an interrupted upload for its last flush, in seconds. A second interrupt ends the wait.
LAST_FLUSH = 10.0
#: Before an upload is continued, SAMPLE bytes are compared at both ends of each done range and at about SAMPLES places
#: in between. A target that differs in a fraction f is missed with the probability (1 - f) ** SAMPLES.
SAMPLE = 4 * KiB
SAMPLES = 128


@dataclass(frozen=True)
class Uploaded:
    """The result of an upload. local: it used the server's unix socket."""

    progress: Progress
    connections: int
    local: bool
    checksum: str | None = None


class Upload:
    """One upload.

    state: the file with the state of an interrupted upload; None: it cannot be continued. checkpoint: seconds between
    two flushes, after each of which the state is saved. Raises Usage for a state of a source without an identity.
    """

    def __init__(
        self,
        source: Source,
        session: ClientSession,
        *,
        verify: bool = False,
        state: Path | None = None,
        checkpoint: float = CHECKPOINT,
        report: Report | None = None,
    ) -> None:
        if state is not None and source.identity is None:
            raise Usage("nobody can see whether a block device was changed, so its upload has no state")
        self._source = source
        self._session = session
        self._digest = Digest() if verify else None
        self._state_path = state
        self._state: StateFile | None = None
        self._checkpoint = checkpoint
        self._confirmed = Confirmed([], checkpoint)
        self._saving = threading.Lock()
        self._report = report
        self._counter = Counter()
        self._counter.total = source.size

    @property
    def progress(self) -> Progress:
        """Return the present progress."""
        return self._counter.progress()

    async def run(self) -> Uploaded:
        """Upload the image; return when it is on stable storage and, if asked for, verified.

        If cancelled, it flushes and saves the state first. Raises ClientError.
        """
        try:
            return await self._upload()
        except asyncio.CancelledError:
            await self._save_interrupted()
            raise

    async def _upload(self) -> Uploaded:
        stop = self._session.stop
        stop.call(self._source.stop)
        (first,) = await workers.run([self._prepare], stop)
        count = self._session.connections(self._session.abilities.max_writers)
        queue = Queue(units(self._source.extents(), self._source.portion))
        images = [first, *(self._session.connect() for _ in range(count - 1))]
        await workers.run([image.connect for image in images], stop)
        await workers.run([partial(self._work, image, queue, self._counter) for image in images], stop, self._tick)
        await self._send_what_was_lost(images)
        (checksum,) = await workers.run([partial(self._finish, first)], stop, self._tick)
        self._tick()
        return Uploaded(self.progress, count, self._session.is_local, checksum)

    async def _send_what_was_lost(self, images: list[Image]) -> None:
        """Flush, and send again what a restarted server may have lost, until a flush confirms all."""
        stop = self._session.stop
        for left in reversed(range(ROUNDS)):
            await workers.run([partial(self._confirm, images[0])], stop, self._tick)
            lost = self._confirmed.take_lost()
            if not lost:
                return
            if not left:
                break
            log.info("connections to %s were lost: sending again what it may have lost", self._session.peer)
            queue = Queue(iter(lost))
            # The bytes are already in self._counter.
            await workers.run([partial(self._work, image, queue, Counter()) for image in images], stop, self._tick)
        raise Temporary(f"connections to {self._session.peer} are lost too often to know what is on stable storage")

    async def _save_interrupted(self) -> None:
        """Flush over a new connection, because the others are shut down, and save the state of what is safe."""
        if self._state is None:
            return
        if not self._confirmed.is_waiting:
            if safe := self._confirmed.safe():
                self._state.save(safe)
            return
        log.info("interrupted: %s flushes what it has; interrupt again to end at once", self._session.peer)
        stop = Stop()
        image = self._session.reconnect(stop)
        # If it fails, the state of the last checkpoint stays.
        with contextlib.suppress(ClientError, TimeoutError):
            async with asyncio.timeout(LAST_FLUSH):
                await workers.run([partial(self._save, image)], stop)

    def _tick(self) -> None:
        if self._report is not None:
            self._report(self.progress)

    # In threads

    def _prepare(self) -> Image:
        image = self._session.open()
        if "zero" not in self._session.abilities.features:
            raise Refused("the ticket does not allow writing: ask for one that does", 403)
        path, identity = self._state_path, self._source.identity
        if path is None or not os.path.exists(path):
            self._probe(image)
        if path is not None and identity is not None:
            self._state = StateFile(path, identity, self._session.url, image.size())
            self._confirmed = Confirmed(self._resume(image, self._state), self._checkpoint)
        if self._digest and (size := image.size()) != self._source.size:
            raise ChecksumMismatch(
                f"can't verify: the target has {size} bytes, the source {self._source.size}, and the server's checksum "
                "is that of the whole target: make it as large as the source, or upload without --verify"
            )
        return image

    def _resume(self, image: Image, state: StateFile) -> list[tuple[int, int]]:
        """Return the ranges that need not be sent. Raises StateMismatch if the target has other data there."""
        done = state.load()
        if self._session.abilities.reads_zero:  # a new target with the same URL has none of the ranges
            state.remove()
            return []
        for offset, length in _samples(done):
            self._compare(image, state, offset, length)
        return done

    def _compare(self, image: Image, state: StateFile, offset: int, length: int) -> None:
        theirs, ours = memoryview(bytearray(length)), memoryview(bytearray(length))
        for _ in image.read(offset, length, theirs):
            pass
        self._source.read(offset, ours)
        if theirs != ours:
            raise StateMismatch(
                f"{state.path} tells that byte {offset} was uploaded, and the target has something else there: "
                "remove the file to start anew"
            )

    def _probe(self, image: Image) -> None:
        """Zero the last byte, so that a too small target fails at once and not at the end."""
        if self._source.size:
            for _ in image.zero(self._source.size - 1, 1):
                pass

    def _work(self, image: Image, queue: Queue, counter: Counter) -> None:
        buffer = new_buffer(BUFFER_SIZE)
        skip_zeros = self._session.abilities.reads_zero
        sender = Sender(self._source, image, buffer, counter, skip_zeros=skip_zeros)
        for unit in queue:
            digest = self._digest.part(unit.start) if self._digest else None
            if self._confirmed.has(unit):
                sender.skip(unit, digest)
                continue
            restarts = self._session.restarts.count
            sender.send(unit, digest)
            if self._confirmed.add(unit, restarts):
                self._save(image)

    def _save(self, image: Image) -> None:
        """Flush and save the state, unless another thread is doing it: a flush may take long."""
        if not self._saving.acquire(blocking=False):
            return
        try:
            self._confirm(image)
            if self._state:
                self._state.save(self._confirmed.safe())
        finally:
            self._saving.release()

    def _confirm(self, image: Image) -> None:
        """Flush, and confirm what was sent to the same process of the server."""
        sent = self._confirmed.take_sent()
        try:
            self._flush(image)
        except Stopped:
            self._confirmed.give_back(sent)
            raise
        self._confirmed.flushed(sent, restarts := self._session.restarts.count)
        if self._source.is_stream and any(before != restarts for _, before in sent):
            raise ServerFailed(
                f"connections to {self._session.peer} were lost, what was written may be lost, and the input can't be "
                "read again: upload anew"
            )

    def _flush(self, image: Image) -> None:
        try:
            image.flush()
        except FlushFailed:
            self._forget()
            raise

    def _finish(self, image: Image) -> str | None:
        try:
            self._source.check()
            checksum = self._verify(image, self._digest) if self._digest else None
        except (ChecksumMismatch, LocalError):
            self._forget()
            raise
        self._forget()
        return checksum

    def _forget(self) -> None:
        """Remove the state, so that the next upload starts from the beginning."""
        if self._state:
            self._state.remove()
            self._state = None

    def _verify(self, image: Image, digest: Digest) -> str:
        ours = digest.hexdigest()
        theirs = image.checksum(digest.algorithm, digest.block_size)["checksum"]
        if ours != theirs:
            raise ChecksumMismatch(
                f"the target reads as {theirs}, the source as {ours}: "
                "someone else writes to it, or its storage does not keep what it confirms; mend that, and upload anew"
            )
        return ours


def _samples(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the (offset, length) of the parts to compare."""
    step = max(SAMPLE, sum(end - start for start, end in ranges) // SAMPLES)
    for start, end in ranges:
        for offset in [*range(start, end, step), max(start, end - SAMPLE)]:
            yield offset, min(SAMPLE, end - offset)
