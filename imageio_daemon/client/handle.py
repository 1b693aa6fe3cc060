# SPDX-License-Identifier: Apache-2.0
"""An open image on a server, for programs that read and write it in their own order."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Self

from ..image.extents import Extent
from ..units import MiB
from .errors import FlushFailed, Usage, WritesLost
from .server.data import Piece
from .server.remote_image import RemoteImage
from .server.session import ClientSession
from .unflushed import Unflushed

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Most bytes of one write request, which is sent again after a lost connection. Uploads have the same.
MAX_WRITE = 8 * MiB


class Image:
    """An open image. Thread-safe: as many calls run at a time as there are connections, and others wait.

    Offsets and sizes are in bytes, without alignment. Calls block until the server has answered. Requests with
    temporary failures are sent again, as Settings.retry_for says. Methods raise ClientError: Usage for a range outside
    of the image, and Refused, StorageFailed or ServerFailed. They also raise after close() in another thread.

    What was written is on stable storage only after the next flush(). Neither close() nor the end of a `with` statement
    flushes. The size of the image does not change.
    """

    def __init__(self, session: ClientSession) -> None:
        """Connect. From now on the image owns the session. Raises ClientError."""
        self._session = session
        self._unflushed = Unflushed()
        self._flushing = threading.Lock()
        self._failed: FlushFailed | None = None
        self._closing = threading.Lock()
        self._closed = False
        first = session.open()
        abilities = session.abilities
        #: The features that the server offers by OPTIONS, such as "extents" and "zero".
        self.features = abilities.features
        #: Whether the ticket allows writing.
        self.writable = "zero" in abilities.features
        #: The size of the image, in bytes.
        self.size = first.size()
        most = min(abilities.max_readers, abilities.max_writers) if self.writable else abilities.max_readers
        #: How many calls run at a time.
        self.connections = session.connections(most)
        # Connect all of them now. A later connect then means that a connection was lost.
        connections = session.more(first, self.connections)
        with ThreadPoolExecutor(self.connections) as threads:
            try:
                for connected in as_completed([threads.submit(other.connect) for other in connections[1:]]):
                    connected.result()
            except BaseException:  # also Ctrl-C: end the other threads, for which the pool waits
                session.stop.stop()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End running calls, and close the connections, without a flush. A second call does nothing."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._session.stop.stop()
            with contextlib.ExitStack() as all_connections:  # calls that wait for one fail when they get it
                for _ in range(self.connections):  # when the calls have ended
                    all_connections.enter_context(self._session.lent())
                self._session.close()

    def read(self, offset: int, buffer: "Buffer") -> None:
        """Fill a writable buffer with the bytes from offset on. Do not touch the buffer before the end of this call."""
        view = memoryview(buffer).cast("B")
        if view.readonly:
            raise TypeError("the buffer can't be written to")
        self._require(offset, len(view))
        if view:
            with self._connection() as connection:
                connection.read_into(offset, view)

    def write(self, offset: int, data: "Buffer") -> None:
        """Write data at offset. Where two calls at the same time overlap, the bytes of either of them stay.

        If this raises, any part of the data may have been written.
        """
        view = memoryview(data).cast("B")
        self._require(offset, len(view))
        for start in range(0, len(view), MAX_WRITE):
            piece = view[start : start + MAX_WRITE]
            with self._connection() as connection:
                connection.write([Piece(offset + start, piece)])
                self._unflushed.wrote(offset + start, offset + start + len(piece), connection.restarts_before)

    def zero(self, offset: int, size: int) -> None:
        """Make a range read as zeros, by the storage's best method. If this raises, any part may read as zeros."""
        self._require(offset, size)
        with self._connection() as connection:
            for step in connection.zero(offset, size):
                self._unflushed.wrote(offset, offset + step, connection.restarts_before)
                offset += step

    def flush(self) -> None:
        """Put all that was written or zeroed by earlier calls, which have returned, on stable storage.

        Raises WritesLost if the server was restarted after it had answered some of them. Write its `ranges` again:
        until then, each flush raises it. Raises FlushFailed if the storage has failed. Then all later flushes fail, and
        what was written since the last successful one may be lost. After any other error, the flush can be repeated.
        """
        with self._flushing:  # one at a time, because each is for all that was written before
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
        """Return which parts of the image are now data and which read as zeros, in order and without gaps.

        In the context "dirty", return what has changed since the server's checkpoint and what has not. Needs "extents"
        in `features`.
        """
        with self._connection() as connection:
            return connection.extents(context)

    def _flush(self) -> None:
        with self._connection() as connection:
            taken = self._unflushed.take()
            try:
                connection.flush()
                connection.look_for_restart()  # after the flush, to make sure that one process answered all
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
        """Take an idle connection, or wait for one, and give it back after the block."""
        with self._session.lent() as connection:
            if self._closed:
                raise Usage("the image was closed")
            yield connection
