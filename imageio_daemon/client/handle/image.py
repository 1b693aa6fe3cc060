# SPDX-License-Identifier: Apache-2.0
"""An image on a server that stays open, for programs that read and write it in their own order."""

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

from ...image.extents import Extent
from ...units import MiB
from ..errors import FlushFailed, Usage, WritesLost
from ..server.data import Piece
from ..server.remote_image import RemoteImage
from ..server.session import ClientSession
from ..unflushed import Unflushed

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Longest request to write, in bytes: what is sent again after a loss. As of uploads.
MAX_WRITE = 8 * MiB


class Image:
    """An open image. Thread-safe: as many calls run at a time as there are connections, others wait for one.

    Offsets and sizes are in bytes, without alignment. Calls block until the server has answered; requests that fail for
    a while are sent again, as Settings.retry_for says. Methods raise ClientError: Usage for a range outside of the
    image, and Refused, StorageFailed, ServerFailed. After close() in another thread they raise, too.

    What was written is on stable storage after the next flush(), and not before: neither close() nor the end of a
    `with` statement flushes. The size of the image does not change.
    """

    def __init__(self, session: ClientSession) -> None:
        """Connect. The image closes the session. Raises ClientError."""
        self._session = session
        self._unflushed = Unflushed()
        self._flushing = threading.Lock()
        self._failed: FlushFailed | None = None
        self._idle: queue.LifoQueue[RemoteImage] = queue.LifoQueue()
        self._closing = threading.Lock()
        self._closed = False
        first = session.open()
        abilities = session.abilities
        #: What the server offers, as OPTIONS tells it, such as "extents", "zero".
        self.features = abilities.features
        #: Whether the ticket allows to write.
        self.writable = "zero" in abilities.features
        #: The size of the image, in bytes.
        self.size = first.size()
        most = min(abilities.max_readers, abilities.max_writers) if self.writable else abilities.max_readers
        #: How many calls run at a time.
        self.connections = session.connections(most)
        # All of them now, so that each later connect is known to follow a loss.
        others = [session.connect() for _ in range(self.connections - 1)]
        if others:
            with ThreadPoolExecutor(len(others)) as threads:
                list(threads.map(RemoteImage.connect, others))
        for connection in (*others, first):
            self._idle.put(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End the calls that run, and close the connections. A second call does nothing. It does not flush."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._session.stop.stop()
            connections = [self._idle.get() for _ in range(self.connections)]  # when the calls have ended
            self._session.close()
            for connection in connections:
                self._idle.put(connection)  # for calls that wait for one, and fail

    def read(self, offset: int, buffer: "Buffer") -> None:
        """Fill a writable buffer with the bytes from offset on. The buffer is the call's until it returns or raises."""
        view = memoryview(buffer).cast("B")
        if view.readonly:
            raise TypeError("the buffer can't be written to")
        self._require(offset, len(view))
        if view:
            with self._connection() as connection:
                connection.read_into(offset, view)

    def write(self, offset: int, data: "Buffer") -> None:
        """Write data at offset. Calls that overlap and run at the same time leave either one's bytes.

        If it raises, any part of the data may have been written.
        """
        view = memoryview(data).cast("B")
        self._require(offset, len(view))
        for start in range(0, len(view), MAX_WRITE):
            piece = view[start : start + MAX_WRITE]
            with self._connection() as connection:
                connection.write([Piece(offset + start, piece)])
                self._unflushed.wrote(offset + start, offset + start + len(piece), connection.restarts_before)

    def zero(self, offset: int, size: int) -> None:
        """Make a range read as zeros, by the best way that the storage has. If it raises, any part may do so."""
        self._require(offset, size)
        with self._connection() as connection:
            for step in connection.zero(offset, size):
                self._unflushed.wrote(offset, offset + step, connection.restarts_before)
                offset += step

    def flush(self) -> None:
        """Return when all that was written or zeroed by calls which had returned before is on stable storage.

        Raises WritesLost if the server was restarted after it had answered some of them: these, its `ranges`, have to
        be written again, and until then each flush raises it. FlushFailed: the storage has failed, and so do all later
        flushes; what was written since the last one may be lost. A flush that raises anything else can be repeated.
        """
        with self._flushing:  # one at a time: each answers for all that was written before
            if self._failed is not None:
                again = FlushFailed(str(self._failed))
                again.code, again.status = self._failed.code, self._failed.status
                raise again from self._failed
            self._flush()
        if lost := self._unflushed.lost():
            size, peer = sum(length for _, length in lost), self._session.peer
            raise WritesLost(
                f"{peer} was restarted, or connections to it were lost, and with them perhaps {size} bytes that no "
                "flush had confirmed: write them again",
                lost,
            )

    def extents(self, context: str = "zero") -> Sequence[Extent]:
        """Return what of the image is data and what reads as zeros, in order and without gaps, as of this moment.

        context: "dirty": what has changed since the server's checkpoint, and what has not. Needs "extents" in features.
        """
        with self._connection() as connection:
            return connection.extents(context)

    def _flush(self) -> None:
        with self._connection() as connection:
            taken = self._unflushed.take()
            try:
                connection.flush()
                connection.look_for_restart()  # afterwards: the same process has answered the writes, and the flush
            except BaseException as e:
                self._unflushed.give_back(taken)
                if isinstance(e, FlushFailed):
                    self._failed = e
                raise
            self._unflushed.flushed(taken, self._session.restarts.count)

    def _require(self, offset: int, size: int) -> None:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise Usage(f"{size} bytes at {offset} are not in the image, which has {self.size}")

    @contextlib.contextmanager
    def _connection(self) -> Iterator[RemoteImage]:
        """Take a connection that no other thread uses; wait for one if all are in use."""
        connection = self._idle.get()
        try:
            if self._closed:
                raise Usage("the image was closed")
            yield connection
        finally:
            self._idle.put(connection)
