# SPDX-License-Identifier: Apache-2.0
"""Replies on their way out."""

import asyncio
from collections import deque
from collections.abc import Callable

from ...buffers import Buffer
from ...transports import pause_when_anything_waits
from ...units import MiB
from .share import Share

#: Bytes for the transport at once. Under TLS about as much cipher text waits below it.
MAX_BATCH = 1 * MiB
#: Replies for the transport at once; IOV_MAX is 1024 (limits.h).
MAX_REPLIES = 256

_Bytes = bytes | memoryview


class Output:
    """Send replies in batches, one a loop turn.

    The transport may read a buffer until it has sent everything: only then are buffers given back. Its limits for
    pausing are set so that it pauses as soon as anything is left and resumes when nothing is.
    """

    def __init__(self, transport: asyncio.Transport, share: Share, on_sent: Callable[[], None]) -> None:
        pause_when_anything_waits(transport)
        self._transport = transport
        self._share = share
        self._on_sent = on_sent
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[_Bytes, Buffer | None]] = deque()
        self._lent: list[Buffer] = []
        self._paused = False
        self._scheduled = False
        self._closed = False
        #: Bytes sent, for the log.
        self.sent = 0

    @property
    def waiting(self) -> int:
        """Return the number of replies that the transport has not taken."""
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """Tell whether everything was sent."""
        return not self._queue and not self._lent and not self._paused

    @property
    def paused(self) -> bool:
        """Tell whether the peer has to read before anything else is sent."""
        return self._paused

    def send(self, data: _Bytes, buffer: Buffer | None = None) -> None:
        """Send the bytes in this turn of the loop or later, after all before them; then give the buffer back."""
        if self._closed:
            if buffer is not None:
                self._share.release(buffer)
            return
        if len(data) > MAX_BATCH:
            view = memoryview(data)
            cut = range(0, len(view), MAX_BATCH)
            self._queue.extend((view[start : start + MAX_BATCH], None) for start in cut[:-1])
            data = view[cut[-1] :]
        self._queue.append((data, buffer))
        if not self._scheduled and not self._paused:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def pause(self) -> None:
        """Hold everything back: the transport is full."""
        self._paused = True

    def resume(self) -> None:
        """Go on: the transport has sent everything."""
        self._paused = False
        self._release()
        self._flush()

    def close(self) -> None:
        """Forget what was not sent: the connection is lost."""
        self._closed = True
        self._paused = False
        self._lent += [buffer for _, buffer in self._queue if buffer is not None]
        self._queue.clear()
        self._release()

    def _flush(self) -> None:
        self._scheduled = False
        while self._queue and not self._paused and not self._closed:
            batch = self._next_batch()
            if len(batch) == 1:
                self._transport.write(batch[0])
            else:
                self._transport.writelines(batch)
            if not self._paused:
                self._release()
        self._on_sent()

    def _next_batch(self) -> list[_Bytes]:
        queue, lent = self._queue, self._lent
        batch: list[_Bytes] = []
        size = 0
        while queue and len(batch) < MAX_REPLIES:
            data, buffer = queue[0]
            if batch and size + len(data) > MAX_BATCH:
                break
            queue.popleft()
            size += len(data)
            batch.append(data)
            if buffer is not None:
                lent.append(buffer)
        self.sent += size
        return batch

    def _release(self) -> None:
        lent, self._lent = self._lent, []
        for buffer in lent:
            self._share.release(buffer)
