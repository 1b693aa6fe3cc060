# SPDX-License-Identifier: Apache-2.0
"""Sending of units of work over one connection: data by PUT, zeros by the longest possible requests to zero."""

import time
from collections.abc import Iterator

from ...image.ranges import RangeSet
from ...units import KiB, MiB
from ..local.source import Source
from ..server.image import Image
from ..server.restarts import Restarts
from .checkpoints import Checkpoints
from .digest import DigestPart
from .plan import Unit
from .progress import Counter
from .zeros import runs

#: Bytes of the first request for data. The next ones are twice as long after one that took less than SHORT seconds, and
#: half as long after one that took more than LONG: a request that is interrupted is sent again as a whole, and a slow
#: link shall not lose more than some seconds by it.
FIRST_REQUEST = 1 * MiB
LEAST_REQUEST = 256 * KiB
SHORT = 0.5
LONG = 2.0


class Sender:
    """The sender of one thread. buffer: used by no other thread, its length is that of the longest request.

    done: what need not be sent. skip_zeros: the target reads as zeros already.
    """

    def __init__(
        self,
        source: Source,
        image: Image,
        buffer: memoryview,
        counter: Counter,
        checkpoints: Checkpoints,
        restarts: Restarts,
        *,
        done: RangeSet,
        skip_zeros: bool,
    ) -> None:
        self._source = source
        self._image = image
        self._buffer = buffer
        self._counter = counter
        self._checkpoints = checkpoints
        self._restarts = restarts
        self._done = done
        self._skip_zeros = skip_zeros
        self._request = min(FIRST_REQUEST, len(buffer))
        self._zeros = (0, 0)  # start and end of the zeros that are not sent yet

    def send(self, unit: Unit, digest: DigestPart | None) -> None:
        """Make the target read as the source in this unit. Raises ClientError."""
        for segment in unit.segments:
            for start, end, is_done in self._done.parts(segment.start, segment.start + segment.length):
                if is_done:
                    self._counter.add(resumed=end - start)
                elif segment.zero:
                    self._add_zeros(start, end)
                if segment.zero and digest:
                    digest.zeros(end - start)
                elif not segment.zero and (digest or not is_done):
                    self._read(start, end, digest, is_done=is_done)
        self._send_zeros()
        if digest:
            digest.end()

    def _read(self, start: int, end: int, digest: DigestPart | None, *, is_done: bool) -> None:
        while start < end:
            data = self._buffer[: min(self._request, end - start)]
            self._source.read(start, data)
            if digest:
                digest.data(data)
            if not is_done:
                self._send_data(start, data)
            start += len(data)

    def _send_data(self, offset: int, data: memoryview) -> None:
        for run in runs(data, offset):
            if run.zero:
                self._add_zeros(offset + run.start, offset + run.end)
            else:
                self._send_zeros()
                self._write(offset + run.start, data[run.start : run.end])

    def _write(self, offset: int, data: memoryview) -> None:
        restarts, started = self._restarts.count, time.monotonic()
        self._image.write(offset, data)
        self._adapt(len(data), time.monotonic() - started)
        self._counter.add(data=len(data))
        self._checkpoints.sent(self._image, offset, offset + len(data), restarts)

    def _adapt(self, sent: int, seconds: float) -> None:
        if seconds > LONG:
            self._request = max(self._request // 2, LEAST_REQUEST)
        elif seconds < SHORT and sent == self._request:
            self._request = min(self._request * 2, len(self._buffer))

    def _add_zeros(self, start: int, end: int) -> None:
        if self._zeros[1] != start:
            self._send_zeros()
            self._zeros = (start, start)
        self._zeros = (self._zeros[0], end)

    def _send_zeros(self) -> None:
        start, end = self._zeros
        self._zeros = (0, 0)
        restarts = self._restarts.count
        if self._skip_zeros and start < end:
            self._counter.add(skipped=end - start)
            self._checkpoints.sent(self._image, start, end, restarts)
            return
        for step in self._image.zero(start, end - start):
            self._counter.add(zero=step)
            self._checkpoints.sent(self._image, start, start + step, restarts)
            start += step
            restarts = self._restarts.count


def hash_unit(source: Source, unit: Unit, buffer: memoryview, digest: DigestPart) -> None:
    """Add a unit of the source to the digest."""
    for start, length, zero in unit.segments:
        if zero:
            digest.zeros(length)
        else:
            for data in pieces(source, start, length, buffer):
                digest.data(data)
    digest.end()


def pieces(source: Source, start: int, length: int, buffer: memoryview) -> Iterator[memoryview]:
    """Yield a range of the source in the buffer: a piece is valid until the next one."""
    for offset in range(start, start + length, len(buffer)):
        data = buffer[: start + length - offset]
        source.read(offset, data)
        yield data
