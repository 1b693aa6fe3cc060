# SPDX-License-Identifier: Apache-2.0
"""The flushes of an upload: when, what they confirm, and who keeps that."""

import contextlib
import logging
import threading

from ...image.ranges import RangeSet
from ..errors import ClientError, FlushFailed, ServerFailed, Stopped
from ..server.image import RemoteImage
from ..server.session import ClientSession
from ..stopping import Stop
from . import workers
from .confirmed import Confirmed, Sent, new_ranges
from .record import Record

log = logging.getLogger(__name__)

#: Longest wait of an interrupted upload for its last flush, in seconds. A second interrupt ends the wait.
LAST_FLUSH = 10.0


class Checkpoints:
    """Flush every `interval` seconds, and save in the record what that confirms. Thread-safe.

    done: what was on stable storage before. once: the source can be read once only.
    """

    def __init__(
        self, session: ClientSession, record: Record, done: RangeSet, interval: float, *, once: bool = False
    ) -> None:
        self._session = session
        self._record = record
        self._once = once
        self._before = done.size()
        self._confirmed = Confirmed(done.pieces(), interval)
        self._saving = threading.Lock()

    @property
    def durable(self) -> int | None:
        """Return the bytes that the next upload need not send; None if it cannot be continued."""
        return self._confirmed.size() if self._record.is_kept else None

    def sent(self, image: RemoteImage, start: int, end: int, restarts: int) -> None:
        """Note that the server has answered the bytes from start to end, and flush if it is time.

        restarts: Restarts.count before they were sent. Raises FlushFailed and the errors of RemoteImage.
        """
        if self._confirmed.add(Sent(start, end, restarts)):
            self._save(image)

    def confirm(self, image: RemoteImage) -> None:
        """Flush. Raises FlushFailed, the errors of RemoteImage, ServerFailed if what is lost cannot be read again."""
        sent = self._confirmed.take_sent()
        try:
            image.flush()
            image.look_for_restart()  # afterwards: the same process has answered what was sent, and the flush
        except Stopped:
            self._confirmed.give_back(sent)
            raise
        except FlushFailed:
            self._record.close()
            raise
        self._confirmed.flushed(sent, self._session.restarts.count)
        if self._once and self.take_lost(image).size():
            raise ServerFailed(
                f"connections to {self._session.peer} were lost, what was written may be lost, and the input can't be "
                "read again: upload anew"
            )

    def take_lost(self, image: RemoteImage) -> RangeSet:
        """Return what was sent before a restart of the server, to be sent again, once. Raises as RemoteImage does."""
        lost, again = self._confirmed.take_lost(), new_ranges()
        durable = self._record.durable(image) if lost.size() else new_ranges()
        for piece in lost.pieces():
            for start, end, is_durable in durable.parts(*piece):
                if is_durable:
                    self._confirmed.confirm(start, end)
                else:
                    again.add(start, end)
        return again

    def save_interrupted(self) -> None:
        """Flush over a new connection, because the others are shut down, so that the next upload need not send it.

        It takes at most LAST_FLUSH seconds.
        """
        if self.durable is None:
            return
        if not self._confirmed.is_waiting:
            # Otherwise the record is as it was, or an earlier state is not proven yet.
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

    def _save(self, image: RemoteImage) -> None:
        """Flush and save, unless another thread is doing it: a flush may take long."""
        if not self._saving.acquire(blocking=False):
            return
        try:
            self.confirm(image)
            self._record.save(self._confirmed.pieces())
        finally:
            self._saving.release()
