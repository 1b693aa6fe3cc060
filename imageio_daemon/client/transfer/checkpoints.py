# SPDX-License-Identifier: Apache-2.0
"""Which bytes of a transfer are on stable storage: those written, the flushes that confirm them, and their record."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterable

from ...image.ranges import RangeSet
from ..errors import ClientError, FlushFailed, LocalError, ServerFailed, Stopped
from ..local.target import PartTarget
from ..server.remote_image import RemoteImage
from ..server.session import ClientSession
from ..stopping import Stop
from ..unflushed import Unflushed, Written, new_ranges
from . import workers
from .record import Record

log = logging.getLogger(__name__)

#: Most seconds for which an interrupted upload waits for its last flush. A second interrupt ends the wait.
LAST_FLUSH = 10.0
#: Seconds between two flushes. A continued transfer repeats at most what was moved in this time.
CHECKPOINT = 10.0


class Checkpoints:
    """Flush the target every `interval` seconds, and save in the record what that confirms. Thread-safe.

    `done` are the ranges that were on stable storage before.
    """

    def __init__(self, record: Record, done: RangeSet, interval: float) -> None:
        self._record = record
        self._before = done.size()
        self._lock = threading.Lock()
        self._safe = new_ranges(done.pieces())  # what is on stable storage
        self._unflushed = Unflushed()
        self._interval = interval
        self._next = time.monotonic() + interval
        self._saving = threading.Lock()

    @property
    def durable(self) -> int | None:
        """Return how many bytes the next transfer need not move, or None if this one cannot be continued."""
        return self._size() if self._record.is_kept else None

    def sent(self, image: RemoteImage, start: int, end: int, restarts: int = 0) -> None:
        """Note that the target has taken the bytes from start to end, and flush if it is time.

        `restarts` is the Restarts.count before they were sent. Raises as confirm() does.
        """
        self._unflushed.wrote(start, end, restarts)
        with self._lock:
            now = time.monotonic()
            is_due = now >= self._next
            if is_due:
                self._next = now + self._interval
        if is_due:
            self._flush_and_save(image)

    def confirm(self, image: RemoteImage) -> None:
        """Flush. Raises FlushFailed, and as _flush() does."""
        sent = self._unflushed.take()
        try:
            restarts = self._flush(image)
        except Stopped:
            self._unflushed.give_back(sent)
            raise
        except FlushFailed:
            self._record.close()
            raise
        self._flushed(sent, restarts)

    def _flush(self, image: RemoteImage) -> int:
        """Flush the target, and return Restarts.count after it."""
        raise NotImplementedError

    def _flushed(self, sent: Written, restarts: int) -> None:
        """Note a flush of the bytes that Unflushed.take() has returned. Those sent before a restart may be lost.

        `restarts` is the Restarts.count after the flush. If it is the same, one process has served all.
        """
        self._unflushed.flushed(sent, restarts)
        if restarts in sent:
            self._add(sent[restarts].pieces())

    def _add(self, safe: Iterable[tuple[int, int]]) -> None:
        """Add (start, end) ranges that are on stable storage."""
        with self._lock:
            for piece in safe:
                self._safe.add(*piece)

    def _size(self) -> int:
        with self._lock:
            return self._safe.size()

    def _save(self) -> None:
        """Save which ranges are on stable storage."""
        with self._lock:
            pieces = self._safe.pieces()
        self._record.save(pieces)

    def _flush_and_save(self, image: RemoteImage) -> None:
        """Flush and save, unless another thread does it now, because a flush may take long."""
        if not self._saving.acquire(blocking=False):
            return
        try:
            self.confirm(image)
            self._save()
        finally:
            self._saving.release()


class LocalCheckpoints(Checkpoints):
    """The checkpoints of a download."""

    def __init__(self, target: PartTarget, record: Record, done: RangeSet, interval: float) -> None:
        super().__init__(record, done, interval)
        self._target = target

    @property
    def is_anything(self) -> bool:
        """Return whether the next download may need less than all."""
        return bool(self._record.is_kept and (self._size() or self._unflushed.is_waiting))

    def leave(self) -> None:
        """Close the target, and save which ranges of it are on stable storage. Call this when nothing else runs."""
        sent = self._unflushed.take()
        with contextlib.suppress(LocalError):  # what the last checkpoint has confirmed stays
            if self._target.keep():
                self._flushed(sent, 0)
        self._save()

    def _flush(self, image: RemoteImage) -> int:
        self._target.flush()
        return 0


class RemoteCheckpoints(Checkpoints):
    """The checkpoints of an upload. `once` tells that the source can be read only once."""

    def __init__(
        self, session: ClientSession, record: Record, done: RangeSet, interval: float, *, once: bool = False
    ) -> None:
        super().__init__(record, done, interval)
        self._session = session
        self._once = once

    def confirm(self, image: RemoteImage) -> None:
        """Flush. Raises FlushFailed, as RemoteImage does, and ServerFailed if lost bytes cannot be read again."""
        super().confirm(image)
        if self._once and self.take_lost(image).size():
            raise ServerFailed(
                f"connections to {self._session.peer} were lost, what was written may be lost, and the input can't be "
                "read again: upload anew"
            )

    def take_lost(self, image: RemoteImage) -> RangeSet:
        """Return, only once, what to send again because the server was restarted. Raises as RemoteImage does."""
        lost = self._unflushed.take_lost()
        durable = self._record.durable(image) if lost.size() else new_ranges()
        parts = [part for piece in lost.pieces() for part in durable.parts(*piece)]
        self._add((start, end) for start, end, is_durable in parts if is_durable)
        return new_ranges((start, end) for start, end, is_durable in parts if not is_durable)

    def save_interrupted(self) -> None:
        """Flush, so that the next upload need not send all again. Uses a new connection: the others are shut down.

        Takes at most LAST_FLUSH seconds.
        """
        if self.durable is None:
            return
        if not self._unflushed.is_waiting:
            # Otherwise there is nothing new to record, or an earlier state is not proven yet.
            if self._size() > self._before:
                self._save()
            return
        log.info("%s flushes what it has; interrupt again to end at once", self._session.peer)
        stop = Stop()
        image = self._session.reconnect(stop)
        limit = threading.Timer(LAST_FLUSH, stop.stop)
        limit.start()
        try:
            with contextlib.suppress(ClientError):  # what the last checkpoint has confirmed stays
                workers.run([lambda: self._flush_and_save(image)], stop)
        finally:
            limit.cancel()

    def _flush(self, image: RemoteImage) -> int:
        image.flush()
        image.look_for_restart()  # after the flush, to make sure that one process answered all
        return self._session.restarts.count
