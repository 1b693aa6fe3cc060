# SPDX-License-Identifier: Apache-2.0
"""Sending of units of work over one connection: data by PUT, zeros by the longest possible requests to zero."""

from collections.abc import Iterator

from ..local.source import Source
from ..server.image import Image
from .digest import DigestPart
from .plan import Unit
from .progress import Counter
from .zeros import runs


class Sender:
    """The sender of one thread. buffer: used by no other thread. skip_zeros: the target reads as zeros already."""

    def __init__(self, source: Source, image: Image, buffer: memoryview, counter: Counter, *, skip_zeros: bool) -> None:
        self._source = source
        self._image = image
        self._buffer = buffer
        self._counter = counter
        self._skip_zeros = skip_zeros
        self._zeros = (0, 0)  # start and end of the zeros that are not sent yet

    def send(self, unit: Unit, digest: DigestPart | None) -> None:
        """Make the target read as the source in this unit. Raises ClientError."""
        for start, length, zero in unit.segments:
            if zero:
                self._add_zeros(start, start + length)
                if digest:
                    digest.zeros(length)
                continue
            for offset, data in pieces(self._source, start, length, self._buffer):
                if digest:
                    digest.data(data)
                self._send_data(offset, data)
        self._send_zeros()
        if digest:
            digest.end()

    def skip(self, unit: Unit, digest: DigestPart | None) -> None:
        """Count a unit that was sent before; read it if its digest is needed."""
        if digest:
            hash_unit(self._source, unit, self._buffer, digest)
        self._counter.add(skipped=unit.end - unit.start)

    def _send_data(self, offset: int, data: memoryview) -> None:
        for run in runs(data, offset):
            if run.zero:
                self._add_zeros(offset + run.start, offset + run.end)
            else:
                self._send_zeros()
                self._image.write(offset + run.start, data[run.start : run.end])
                self._counter.add(data=run.end - run.start)

    def _add_zeros(self, start: int, end: int) -> None:
        if self._zeros[1] != start:
            self._send_zeros()
            self._zeros = (start, start)
        self._zeros = (self._zeros[0], end)

    def _send_zeros(self) -> None:
        start, end = self._zeros
        self._zeros = (0, 0)
        if self._skip_zeros:
            self._counter.add(skipped=end - start)
            return
        for step in self._image.zero(start, end - start):
            self._counter.add(zero=step)


def hash_unit(source: Source, unit: Unit, buffer: memoryview, digest: DigestPart) -> None:
    """Add a unit of the source to the digest."""
    for start, length, zero in unit.segments:
        if zero:
            digest.zeros(length)
        else:
            for _, data in pieces(source, start, length, buffer):
                digest.data(data)
    digest.end()


def pieces(source: Source, start: int, length: int, buffer: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield a range of the source as (offset, data), in the buffer: data is valid until the next one."""
    for offset in range(start, start + length, len(buffer)):
        data = buffer[: start + length - offset]
        source.read(offset, data)
        yield offset, data
