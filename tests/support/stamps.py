# SPDX-License-Identifier: Apache-2.0
"""Bytes that show which operation wrote them, and where."""

from struct import Struct

#: Bytes of a unit: the smallest sector.
UNIT = 512
ZERO = 0
#: The number for a unit without a valid stamp: no operation has written these bytes at this place.
FOREIGN = -1

_STAMP = Struct(">QQ")
_STAMPS = UNIT // _STAMP.size


def stamped(number: int, start: int, end: int) -> bytes:
    """Return the bytes that operation `number` writes to the units from start to end."""
    return b"".join(_STAMP.pack(number, unit) * _STAMPS for unit in range(start, end))


def writers(data: bytes, start: int) -> list[frozenset[int]]:
    """Return for each unit of the data the numbers of the operations that wrote it. The first unit is `start`.

    There are several if the unit was read while it was written.
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
