# SPDX-License-Identifier: Apache-2.0
"""Bytes that tell who wrote them, and where."""

from struct import Struct

#: Bytes that are looked at as one: the smallest sector.
UNIT = 512
ZERO = 0
#: What stands in a unit that no operation has written as it is: bytes of another place, or no stamp at all.
FOREIGN = -1

_STAMP = Struct(">QQ")
_STAMPS = UNIT // _STAMP.size


def stamped(number: int, start: int, end: int) -> bytes:
    """Return what operation `number` writes to the units from start to end."""
    return b"".join(_STAMP.pack(number, unit) * _STAMPS for unit in range(start, end))


def writers(data: bytes, start: int) -> list[frozenset[int]]:
    """Return for each unit of data, of which the first is unit `start`, the numbers of those who wrote it.

    They are several when it was read while one wrote it.
    """
    return [_writers_of(data[at : at + UNIT], start + at // UNIT) for at in range(0, len(data), UNIT)]


def _writers_of(data: bytes, unit: int) -> frozenset[int]:
    stamps = {data[: _STAMP.size]} if data == data[: _STAMP.size] * _STAMPS else _split(data)
    found = set()
    for stamp in stamps:
        number, place = _STAMP.unpack(stamp)
        found.add(number if (number and place == unit) or (number, place) == (0, 0) else FOREIGN)
    return frozenset(found)


def _split(data: bytes) -> set[bytes]:
    return {data[at : at + _STAMP.size] for at in range(0, len(data), _STAMP.size)}
