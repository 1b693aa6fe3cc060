# SPDX-License-Identifier: Apache-2.0
"""Receiving of units over one connection: data by GETs of ranges; the target makes zeros itself."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ...image.ranges import RangeSet
from ..local.source import Source
from ..local.target import Target
from ..server.data import Piece, Range
from ..server.remote_image import RemoteImage
from .checkpoints import LocalCheckpoints
from .digest import Digest, DigestPart
from .plan import Unit
from .progress import Counter
from .zeros import runs


class _Part(NamedTuple):
    """A part of a unit. `is_done` tells that the target has it from before."""

    start: int
    end: int
    zero: bool
    is_done: bool


@dataclass(frozen=True)
class Receiving:
    """What all threads of a download receive, and where to.

    `checkpoints` is for a target that can be continued. `done` are the ranges that need not be received, because the
    target has them; `earlier` reads them. `digest` gets what is received and what is done.
    """

    target: Target
    counter: Counter
    checkpoints: LocalCheckpoints | None
    done: RangeSet
    earlier: Source | None
    digest: Digest | None

    def worker(self, image: RemoteImage, buffer: memoryview) -> Callable[[Unit], None]:
        """Return the function that receives units in a thread with this connection and buffer."""
        return Receiver(self, image, buffer).receive


class Receiver:
    """The receiver of one thread, with a buffer that no other thread uses."""

    def __init__(self, receiving: Receiving, image: RemoteImage, buffer: memoryview) -> None:
        self._all = receiving
        self._image = image
        self._buffer = buffer

    def receive(self, unit: Unit) -> None:
        """Make the target read as the image in this unit. Raises ClientError."""
        digest = self._all.digest.part(unit.start) if self._all.digest else None
        parts = [
            _Part(start, end, zero, is_done)
            for begin, length, zero in unit.segments
            for start, end, is_done in self._all.done.parts(begin, begin + length)
        ]
        data = [Range(start, end - start) for start, end, zero, is_done in parts if not zero and not is_done]
        pieces = self._image.read(data, self._buffer, self._all.counter.moved, self._all.counter.total)
        for part in parts:
            length = part.end - part.start
            if part.is_done:
                self._all.counter.add(resumed=length)
                if digest and not part.zero:
                    self._read_again(part, digest)
            elif part.zero:
                self._write_zeros(part.start, length)
                self._all.counter.add(zero=length)
                self._written(part.start, part.end)
            else:
                self._receive_data(pieces, length, digest)
            if digest and part.zero:
                digest.zeros(length)
        next(pieces, None)  # run the generator to its end
        if digest:
            digest.end()

    def _receive_data(self, pieces: Iterator[Piece], length: int, digest: DigestPart | None) -> None:
        while length:
            piece = next(pieces)
            self._write(piece)
            length -= len(piece.data)
            if digest:
                digest.data(piece.data)
            self._written(piece.offset, piece.offset + len(piece.data))

    def _read_again(self, part: _Part, digest: DigestPart) -> None:
        """Add a part that the target has from before to the digest. Call this while no piece is in the buffer."""
        if self._all.earlier is None:
            raise RuntimeError("nothing is there from before")
        for offset in range(part.start, part.end, len(self._buffer)):
            memory = self._buffer[: part.end - offset]
            self._all.earlier.read(offset, memory)
            digest.data(memory)

    def _written(self, start: int, end: int) -> None:
        if self._all.checkpoints:
            self._all.checkpoints.sent(self._image, start, end)

    def _write(self, piece: Piece) -> None:
        offset, data = piece
        for run in runs(data, offset):
            if run.zero:
                self._write_zeros(offset + run.start, run.end - run.start)
            else:
                self._all.target.write(offset + run.start, data[run.start : run.end])

    def _write_zeros(self, offset: int, length: int) -> None:
        if not self._all.target.reads_zero:
            self._all.target.zero(offset, length)
