# SPDX-License-Identifier: Apache-2.0
"""Find zeros in data."""

from collections.abc import Iterator
from typing import NamedTuple

from ioutil_ext import is_zero

from ..units import KiB

#: Zeros are looked for in whole steps of this size: a request to zero a range costs about as much as sending 64 KiB
#: (0.2 ms of processor time of both sides), and it saves space in the target.
STEP = 64 * KiB


class Run(NamedTuple):
    """A part of a buffer, from start to end."""

    start: int
    end: int
    zero: bool


def runs(data: memoryview, offset: int) -> Iterator[Run]:
    """Cut data, which stands at offset in the image, in runs of zeros and of other data."""
    start, kind = 0, None
    position = 0
    while position < len(data):
        end = min(position + STEP - (offset + position) % STEP, len(data))
        # Most data is told by its first byte: 0.6 µs instead of 1.4.
        zero = not data[position] and is_zero(data[position:end])
        if kind is not None and zero != kind:
            yield Run(start, position, kind)
            start = position
        kind, position = zero, end
    if kind is not None:
        yield Run(start, len(data), kind)
