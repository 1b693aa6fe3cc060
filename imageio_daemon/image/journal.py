# SPDX-License-Identifier: Apache-2.0
"""Journals of durable ranges, as ioutil_ext/durable/journal.h describes them: reading."""

import re
from zlib import crc32

from ..units import MAX_OFFSET
from .ranges import RangeSet

#: Bytes of the longest journal: C writes it anew when it is longer than 1 MiB, and one flush adds at most 0.8 MiB.
MAX_JOURNAL = 2 * 1024**2
#: Ranges of a record: IOU_DURABLE_RANGES of C.
MAX_RANGES = 16384

_HEAD = re.compile(rb"imageio-durable ([0-9]{1,9}) ([ -~]{1,255}) ([0-9a-f]{8})\n")
_COUNT = re.compile(rb"([0-9]{10}) ([0-9a-f]{8})\n")
_LINE = re.compile(rb"([+-]) ([0-9]{1,19}) ([0-9]{1,19}) ([0-9a-f]{8})\n")
_VERSION = 1


class Damaged(ValueError):
    """The text is not a whole journal of a version that is known. The message says why."""


def read(text: bytes, header: str) -> list[tuple[int, int]]:
    """Return the durable ranges that a journal tells, as sorted (start, end) pairs; none if it has another header.

    A last line that is not whole is ignored: the process or the host has ended while it was written. A journal with
    fewer lines than it counts was cut short by somebody else, and may lack that a range is not durable any more. Takes
    a time in proportion to the number of lines, and to that of ranges. Raises Damaged.
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


def _lines(text: bytes, place: int, crc: int, most: int) -> list[tuple[int, int]]:
    ranges = RangeSet(limit=MAX_JOURNAL)  # it never joins ranges, which would tell more
    lines = 0
    while line := _LINE.match(text, place):
        crc = crc32(text[place : line.start(4) - 1], crc)
        start, end = int(line[2]), int(line[3])
        if crc != int(line[4], 16) or not start < end <= MAX_OFFSET:
            break
        if line[1] == b"+":
            ranges.add(start, end)
        else:
            ranges.remove(start, end)
        lines += 1
        place = line.end()
    if lines < most:
        raise Damaged(f"it has {lines} lines of {most}")
    pieces = ranges.pieces()
    return pieces if len(pieces) <= MAX_RANGES else sorted(sorted(pieces, key=_length)[-MAX_RANGES:])


def _length(piece: tuple[int, int]) -> int:
    return piece[1] - piece[0]
