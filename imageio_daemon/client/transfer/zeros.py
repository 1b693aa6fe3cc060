# SPDX-License-Identifier: Apache-2.0
"""Detection of zeros in data."""

from collections.abc import Iterator
from typing import NamedTuple

from ioutil_ext import is_zero

from ...units import KiB
from ..file_part import FilePart

#: Granularity of the detection, in bytes. A request to zero a range takes as much processor time of both sides as
#: sending 64 KiB (0.2 ms), and it saves space in the target.
STEP = 64 * KiB


class BufferRun(NamedTuple):
    """A part of a buffer, from start to end, in bytes."""

    start: int
    end: int
    zero: bool


def runs(data: memoryview | FilePart, offset: int) -> Iterator[BufferRun]:
    """Yield the runs of zeros and of other data. They are aligned by `offset`, the data's place in the image."""
    start, kind = 0, None
    position = 0
    while position < len(data):
        end = min(position + STEP - (offset + position) % STEP, len(data))
        # The first byte of most data is not zero. Checking it first takes 0.6 µs instead of 1.4.
        zero = not data[position] and _is_zero(data[position:end])
        if kind is not None and zero != kind:
            yield BufferRun(start, position, kind)
            start = position
        kind, position = zero, end
    if kind is not None:
        yield BufferRun(start, len(data), kind)


def _is_zero(data: memoryview | FilePart) -> bool:
    return is_zero(data.read() if isinstance(data, FilePart) else data)
