# SPDX-License-Identifier: Apache-2.0
"""Read journals of durable ranges, as ioutil_ext/durable/journal.h describes them."""

import re
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import pairwise
from zlib import crc32

from ..units import MAX_OFFSET

#: Bytes of the longest journal. C rewrites a journal that is longer than 1 MiB, and one flush adds at most 0.8 MiB.
MAX_JOURNAL = 2 * 1024**2
#: Most ranges of a record, as IOU_DURABLE_RANGES in C.
MAX_RANGES = 16384

_HEAD = re.compile(rb"imageio-durable ([0-9]{1,9}) ([ -~]{1,255}) ([0-9a-f]{8})\n")
_COUNT = re.compile(rb"([0-9]{10}) ([0-9a-f]{8})\n")
_LINE = re.compile(rb"([+-]) ([0-9]{1,19}) ([0-9]{1,19}) ([0-9a-f]{8})\n")
_VERSION = 1


class Damaged(ValueError):
    """The text is not a complete journal of a known version. The message says why."""


def read(text: bytes, header: str) -> list[tuple[int, int]]:
    """Return the durable ranges in a journal, as sorted (start, end) pairs, or none if it has another header.

    An incomplete last line is ignored, because the process or the host may have ended while it was written. A journal
    with fewer lines than the number in it is damaged: something else has cut it, and a lost line could say that a range
    is not durable any more. This takes as long as sorting the lines. Raises Damaged.
    """
    head = _HEAD.match(text)
    if head is None or crc32(text[: head.start(3) - 1]) != int(head[3], 16):
        raise Damaged("its first line is damaged")
    if int(head[1]) != _VERSION:
        raise Damaged(f"it has version {int(head[1])}, expected {_VERSION}")
    if head[2] != header.encode():
        return []
    count = _COUNT.match(text, head.end())
    if count is None or crc32(count[1]) != int(count[2], 16):
        raise Damaged("its second line is damaged")
    return _lines(text, count.end(), int(head[3], 16), int(count[1]))


def _durable(starts: list[int], ends: list[int], signs: list[bytes]) -> Iterator[tuple[int, int]]:
    """Yield in order the ranges for which the last line has a plus. After a sort, this looks once at each line.

    The lines are in lists of numbers, which cost the garbage collector nothing.
    """
    coming = sorted(range(len(starts)), key=starts.__getitem__, reverse=True)
    here: list[int] = []  # a heap of negated line numbers, so the last line is first
    begin = end = 0
    for place, until in pairwise(sorted({*starts, *ends})):
        while coming and starts[coming[-1]] == place:
            heappush(here, -coming.pop())
        while here and ends[-here[0]] <= place:
            heappop(here)
        if not here or signs[-here[0]] == b"-":
            continue
        if end < place:
            if begin < end:
                yield begin, end
            begin = place
        end = until
    if begin < end:
        yield begin, end


def _lines(text: bytes, place: int, crc: int, most: int) -> list[tuple[int, int]]:
    starts: list[int] = []
    ends: list[int] = []
    signs: list[bytes] = []
    while line := _LINE.match(text, place):
        crc = crc32(text[place : line.start(4) - 1], crc)
        start, end = int(line[2]), int(line[3])
        if crc != int(line[4], 16) or not start < end <= MAX_OFFSET:
            break
        starts.append(start)
        ends.append(end)
        signs.append(line[1])
        place = line.end()
    if len(starts) < most:
        raise Damaged(f"it has {len(starts)} lines of {most}")
    pieces = list(_durable(starts, ends, signs))
    return pieces if len(pieces) <= MAX_RANGES else sorted(sorted(pieces, key=_length)[-MAX_RANGES:])


def _length(piece: tuple[int, int]) -> int:
    return piece[1] - piece[0]
