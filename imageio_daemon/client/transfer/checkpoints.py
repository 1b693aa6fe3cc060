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


class Confirmed:
    """The bytes that were sent, and those that a flush of the same process has confirmed. Thread-safe.

    Restarts tells whether it is the same process.
    """

    def __init__(self, done: Iterable[tuple[int, int]] = (), interval: float = CHECKPOINT) -> None:
        self._lock = threading.Lock()
        self._safe = new_ranges(done)
        self._interval = interval
        self._next = time.monotonic() + interval
        #: The sent bytes that no flush has confirmed, and those that are lost.
        self.rest = Unflushed()

    def add(self, start: int, end: int, restarts: int) -> bool:
        """Add sent bytes. Return True, to one thread at a time, if a flush is due.

        `restarts` is the Restarts.count before they were sent.
        """
        self.rest.wrote(start, end, restarts)
        with self._lock:
            if time.monotonic() < self._next:
                return False
            self._next = time.monotonic() + self._interval
            return True

    def flushed(self, sent: Written, restarts: int) -> None:
        """Note a flush of the bytes that rest.take() has returned. Those sent before a restart may be lost.

        `restarts` is the Restarts.count after the flush.
        """
        self.rest.flushed(sent, restarts)
        with self._lock:
            for piece in sent[restarts].pieces() if restarts in sent else ():
                self._safe.add(*piece)

    def confirm(self, start: int, end: int) -> None:
        """Add bytes that are on stable storage, as the server says."""
        with self._lock:
            self._safe.add(start, end)

    def size(self) -> int:
        """Return the number of bytes that are on stable storage."""
        with self._lock:
            return self._safe.size()

    def pieces(self) -> list[tuple[int, int]]:
        """Return the (start, end) ranges that are on stable storage."""
        with self._lock:
            return self._safe.pieces()


class Checkpoints:
    """Flush the target every `interval` seconds, and save in the record what that confirms. Thread-safe.

    `done` are the ranges that were on stable storage before.
    """

    def __init__(self, record: Record, done: RangeSet, interval: float) -> None:
        self._record = record
        self._before = done.size()
        self._confirmed = Confirmed(done.pieces(), interval)
        self._saving = threading.Lock()

    @property
    def durable(self) -> int | None:
        """Return how many bytes the next transfer need not move, or None if this one cannot be continued."""
        return self._confirmed.size() if self._record.is_kept else None

    def sent(self, image: RemoteImage, start: int, end: int, restarts: int = 0) -> None:
        """Note that the target has taken the bytes from start to end, and flush if it is time.

        `restarts` is the Restarts.count before they were sent. Raises as confirm() does.
        """
        if self._confirmed.add(start, end, restarts):
            self._save(image)

    def confirm(self, image: RemoteImage) -> None:
        """Flush. Raises FlushFailed, and as _flush() does."""
        sent = self._confirmed.rest.take()
        try:
            restarts = self._flush(image)
        except Stopped:
            self._confirmed.rest.give_back(sent)
            raise
        except FlushFailed:
            self._record.close()
            raise
        self._confirmed.flushed(sent, restarts)

    def _flush(self, image: RemoteImage) -> int:
        """Flush the target, and return Restarts.count after it."""
        raise NotImplementedError

    def _save(self, image: RemoteImage) -> None:
        """Flush and save, unless another thread does it now, because a flush may take long."""
        if not self._saving.acquire(blocking=False):
            return
        try:
            self.confirm(image)
            self._record.save(self._confirmed.pieces())
        finally:
            self._saving.release()


class LocalCheckpoints(Checkpoints):
    """The checkpoints of a download."""

    def __init__(self, target: PartTarget, record: Record, done: RangeSet, interval: float) -> None:
        super().__init__(record, done, interval)
        self._target = target

    @property
    def is_anything(self) -> bool:
        """Tell whether the next download may need less than all."""
        return bool(self._record.is_kept and (self._confirmed.size() or self._confirmed.rest.is_waiting))

    def leave(self) -> None:
        """Close the target, and save which ranges of it are on stable storage. Call this when nothing else runs."""
        sent = self._confirmed.rest.take()
        with contextlib.suppress(LocalError):  # what the last checkpoint has confirmed stays
            if self._target.keep():
                self._confirmed.flushed(sent, 0)
        self._record.save(self._confirmed.pieces())

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
        lost, again = self._confirmed.rest.take_lost(), new_ranges()
        durable = self._record.durable(image) if lost.size() else new_ranges()
        for piece in lost.pieces():
            for start, end, is_durable in durable.parts(*piece):
                if is_durable:
                    self._confirmed.confirm(start, end)
                else:
                    again.add(start, end)
        return again

    def save_interrupted(self) -> None:
        """Flush, so that the next upload need not send all again. Uses a new connection: the others are shut down.

        Takes at most LAST_FLUSH seconds.
        """
        if self.durable is None:
            return
        if not self._confirmed.rest.is_waiting:
            # Otherwise there is nothing new to record, or an earlier state is not proven yet.
            if self._confirmed.size() > self._before:
                self._record.save(self._confirmed.pieces())
            return
        log.info("%s flushes what it has; interrupt again to end at once", self._session.peer)
        stop = Stop()
        image = self._session.reconnect(stop)
        limit = threading.Timer(LAST_FLUSH, stop.stop)
        limit.start()
        try:
            with contextlib.suppress(ClientError):  # what the last checkpoint has confirmed stays
                workers.run([lambda: self._save(image)], stop)
        finally:
            limit.cancel()

    def _flush(self, image: RemoteImage) -> int:
        image.flush()
        image.look_for_restart()  # after the flush, to make sure that one process answered all
        return self._session.restarts.count
