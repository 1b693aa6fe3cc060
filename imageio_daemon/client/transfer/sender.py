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
from .comparison import Comparison
from .digest import Digest, DigestPart
from .plan import Unit
from .progress import Counter
from .wire_compression import ENCODING, Compressor
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

    done: what need not be sent. skip_zeros: the target reads as zeros already. comparison: of what is done, for sources
    that are read once: it is compared when they are. compressor: None: data is sent as it is.
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
        comparison: Comparison | None,
        compressor: Compressor | None,
    ) -> None:
        self._source = source
        self._image = image
        self._buffer = buffer
        self._counter = counter
        self._checkpoints = checkpoints
        self._restarts = restarts
        self._done = done
        self._skip_zeros = skip_zeros
        self._comparison = comparison
        self._compressor = compressor
        self._request = min(FIRST_REQUEST, len(buffer))
        self._zeros = (0, 0)  # start and end of the zeros that are not sent yet

    def send(self, unit: Unit, digest: DigestPart | None) -> None:
        """Make the target read as the source in this unit. Raises ClientError."""
        for segment in unit.segments:
            for start, end, is_done in self._done.parts(segment.start, segment.start + segment.length):
                if is_done:
                    self._pass(start, end, digest, zero=segment.zero)
                elif segment.zero:
                    self._add_zeros(start, end)
                    if digest:
                        digest.zeros(end - start)
                else:
                    for offset, data in self._pieces(start, end, digest):
                        self._send_data(offset, data)
        self._send_zeros()
        if digest:
            digest.end()

    def _pass(self, start: int, end: int, digest: DigestPart | None, *, zero: bool) -> None:
        """Count what is done. Read it if a digest needs it, and if the source must be read in order."""
        if zero and digest:
            digest.zeros(end - start)
        elif self._comparison:
            proof = Digest()
            part = proof.part(0)
            for _, data in self._pieces(start, end, digest):
                part.data(data)
            part.end()
            self._comparison.require(self._image, start, end, proof)
        elif digest:
            for _ in self._pieces(start, end, digest):
                pass
        self._counter.add(resumed=end - start)

    def _pieces(self, start: int, end: int, digest: DigestPart | None) -> Iterator[tuple[int, memoryview]]:
        """Read a range, and yield (offset, data) of pieces of the length that requests have now."""
        while start < end:
            data = self._buffer[: min(self._request, end - start)]
            self._source.read(start, data)
            if digest:
                digest.data(data)
            yield start, data
            start += len(data)

    def _send_data(self, offset: int, data: memoryview) -> None:
        for run in runs(data, offset):
            if run.zero:
                self._counter.spare(run.end - run.start)
                self._add_zeros(offset + run.start, offset + run.end)
            else:
                self._send_zeros()
                self._write(offset + run.start, data[run.start : run.end])

    def _write(self, offset: int, data: memoryview) -> None:
        restarts, started = self._restarts.count, time.monotonic()
        self._send_piece(offset, data)
        self._adapt(len(data), time.monotonic() - started)
        self._checkpoints.sent(self._image, offset, offset + len(data), restarts)

    def _send_piece(self, offset: int, data: memoryview) -> None:
        """Send data, compressed if that is faster."""
        compressor = self._compressor
        if compressor is None:
            self._image.write(offset, data, self._counter.moved)
            return
        started = time.monotonic()
        frame = compressor.compress(data)
        if frame is None:
            self._image.write(offset, data, self._counter.moved)
        else:
            self._image.write(offset, data, self._counter.moved, encoding=ENCODING, encoded=frame)
        compressor.choice.sent(len(data), time.monotonic() - started, compressed=frame is not None)

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
