# SPDX-License-Identifier: Apache-2.0
"""Sending of units over one connection: data by PUT, zeros by the longest possible requests to zero."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...image.ranges import RangeSet
from ...units import KiB, MiB
from ..file_part import FilePart
from ..local.source import Source
from ..server.data import AHEAD, FilePiece, Piece
from ..server.remote_image import RemoteImage
from ..server.restarts import Restarts
from .checkpoints import Checkpoints
from .digest import Digest, DigestPart
from .earlier import require_sent
from .plan import Unit
from .progress import Counter
from .wire_compression import Choice, Compressor
from .zeros import runs

#: Bytes of the first request with data, or of the first ones that are sent together. After a request of less than SHORT
#: seconds the next one is twice as long, after one of more than LONG half as long. An interrupted request is sent again
#: as a whole, which must not cost a slow link more than some seconds.
FIRST_REQUEST = 1 * MiB
LEAST_REQUEST = 256 * KiB
SHORT = 0.5
LONG = 2.0
#: Alignment of pieces in memory, in bytes, for sources with direct I/O.
ALIGNMENT = 4096


@dataclass(frozen=True)
class Sending:
    """What all threads of an upload send, and how.

    `done` are the ranges that need not be sent. With `skip_zeros`, the target reads as zeros already. `digest` gets
    what is sent and what is done. With `compares`, for sources that are read once, what is done is compared when it is
    read. `choice` decides whether data is compressed; without it, none is. `part` returns ranges of the source that the
    kernel sends. Without it, or with a choice, the data has to be read.
    """

    source: Source
    counter: Counter
    checkpoints: Checkpoints
    restarts: Restarts
    done: RangeSet
    skip_zeros: bool
    digest: Digest | None
    compares: bool
    choice: Choice | None
    part: Callable[[int, int], FilePart] | None

    def worker(self, image: RemoteImage, buffer: memoryview) -> Callable[[Unit], None]:
        """Return the function that sends units in a thread with this connection and buffer."""
        return Sender(self, image, buffer).send


class Sender:
    """The sender of one thread, with a buffer that no other thread uses, as long as the longest request."""

    def __init__(self, sending: Sending, image: RemoteImage, buffer: memoryview) -> None:
        self._all = sending
        self._image = image
        self._buffer = buffer
        self._compressor = None if sending.choice is None else Compressor(sending.choice)
        self._part = sending.part if sending.choice is None else None
        self._request = min(FIRST_REQUEST, len(buffer))
        self._data: list[Piece | FilePiece] = []  # pieces that are not sent yet, in the buffer or in the file
        self._filled = 0  # bytes of the buffer in use, or bytes of these pieces of the file
        self._zeros = (0, 0)  # start and end of the zeros that are not sent yet

    def send(self, unit: Unit) -> None:
        """Make the target read as the source in this unit. Raises ClientError."""
        digest = self._all.digest.part(unit.start) if self._all.digest else None
        for segment in unit.segments:
            for start, end, is_done in self._all.done.parts(segment.start, segment.start + segment.length):
                if is_done:
                    self._pass(start, end, digest, zero=segment.zero)
                elif segment.zero:
                    self._add_zeros(start, end)
                    if digest:
                        digest.zeros(end - start)
                else:
                    for piece in self._contents(start, end, digest):
                        self._add_data(piece)
        self._send_zeros()
        if self._data:
            self._send_data()
        if digest:
            digest.end()

    def _pass(self, start: int, end: int, digest: DigestPart | None, *, zero: bool) -> None:
        """Count a range that is done. Read it if a digest needs it, or if the source must be read in order."""
        if zero and digest:
            digest.zeros(end - start)
        elif self._all.compares:
            proof = Digest()
            part = proof.part(0)
            for piece in self._pieces(start, end, digest):
                part.data(piece.data)
            part.end()
            require_sent(self._image, start, end, proof)
        elif digest:
            for _ in self._pieces(start, end, digest):
                pass
        self._all.counter.add(resumed=end - start)

    def _contents(self, start: int, end: int, digest: DigestPart | None) -> Iterator[Piece | FilePiece]:
        """Yield pieces of a range to send, in memory or in the file."""
        if self._part is None:
            yield from self._pieces(start, end, digest)
            return
        for offset, length in self._ranges(start, end):
            yield FilePiece(offset, self._part(offset, length))

    def _pieces(self, start: int, end: int, digest: DigestPart | None) -> Iterator[Piece]:
        """Read a range, and yield its pieces. They are put into the buffer after waiting pieces."""
        for offset, length in self._ranges(start, end):
            data = self._buffer[self._filled : self._filled + length]
            self._all.source.read(offset, data)
            if digest:
                digest.data(data)
            yield Piece(offset, data)

    def _ranges(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield offset and length of pieces that, with the waiting ones, are as long as a request is now."""
        while start < end:
            most = self._request if self._compressor is None else min(self._request, self._compressor.choice.most)
            length = min(most, end - start)
            if self._data and self._filled + length > most:
                self._send_data()
            yield start, length
            start += length

    def _add_data(self, piece: Piece | FilePiece) -> None:
        """Let the parts of a piece that are not zero wait, to send them together with the next ones."""
        offset, data = piece
        found = list(runs(data, offset))
        for run in found:
            if run.zero:
                self._all.counter.spare(run.end - run.start)
                self._add_zeros(offset + run.start, offset + run.end)
            else:
                self._send_zeros()
                start, part = offset + run.start, data[run.start : run.end]
                self._data.append(FilePiece(start, part) if isinstance(part, FilePart) else Piece(start, part))
        if not all(run.zero for run in found):
            self._filled += -(-len(data) // ALIGNMENT) * ALIGNMENT
        if len(self._data) >= AHEAD:
            self._send_data()

    def _send_data(self) -> None:
        pieces, sent = self._data, sum(len(piece.data) for piece in self._data)
        self._data, self._filled = [], 0
        restarts, started = self._all.restarts.count, time.monotonic()
        self._write(pieces, sent)
        self._adapt(sent, time.monotonic() - started)
        for offset, data in pieces:
            self._all.checkpoints.sent(self._image, offset, offset + len(data), restarts)

    def _write(self, pieces: Sequence[Piece | FilePiece], size: int) -> None:
        """Send pieces, compressed if the choice says so."""
        compressor = self._compressor
        started = time.monotonic()
        compressed = None
        if compressor:  # with a compressor, all pieces are in memory
            compressed = compressor.compress([piece for piece in pieces if isinstance(piece, Piece)])
        as_they_are = self._image.write(compressed or pieces, self._all.counter.moved)
        if compressor and not as_they_are:
            compressor.refused()
        elif compressor:
            compressor.sent(size, time.monotonic() - started)

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
        restarts = self._all.restarts.count
        if self._all.skip_zeros and start < end:
            self._all.counter.add(skipped=end - start)
            self._all.checkpoints.sent(self._image, start, end, restarts)
            return
        for step in self._image.zero(start, end - start):
            self._all.counter.add(zero=step)
            self._all.checkpoints.sent(self._image, start, start + step, restarts)
            start += step
            restarts = self._all.restarts.count
