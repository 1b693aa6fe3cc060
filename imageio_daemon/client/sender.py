# SPDX-License-Identifier: Apache-2.0
"""Send a unit of work over one connection: data as it is, zeros as requests that are as long as possible."""

from collections.abc import Iterator

from .digest import DigestPart
from .image import Image
from .plan import Unit
from .progress import Counter
from .source import Source
from .zeros import runs


class Sender:
    """One thread's way from the source to the server. The buffer is its own."""

    def __init__(self, source: Source, image: Image, buffer: memoryview, counter: Counter, *, skip_zeros: bool) -> None:
        self._source = source
        self._image = image
        self._buffer = buffer
        self._counter = counter
        self._skip_zeros = skip_zeros
        self._zeros = (0, 0)  # start and end of zeros that were not sent yet

    def send(self, unit: Unit, digest: DigestPart | None) -> None:
        """Make the target read as the source in this unit."""
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
        """Count a unit that was sent before; read it only for its digest."""
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
    """Read a unit for nothing but its digest."""
    for start, length, zero in unit.segments:
        if zero:
            digest.zeros(length)
        else:
            for _, data in pieces(source, start, length, buffer):
                digest.data(data)
    digest.end()


def pieces(source: Source, start: int, length: int, buffer: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Read a range; what is yielded, offset and data, is valid until the next piece."""
    for offset in range(start, start + length, len(buffer)):
        data = buffer[: start + length - offset]
        source.read(offset, data)
        yield offset, data
