# SPDX-License-Identifier: Apache-2.0
"""What runs in storage, for the status of a transfer."""

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What an operation of Python does. Those of lanes have the names of C's iou_kind."""

    READ = "read"
    WRITE = "write"
    ZERO = "zero"
    FLUSH = "flush"
    EXTENTS = "extents"
    CHECKSUM = "checksum"
    STAT = "stat"


#: The operations that read or write bytes of the image.
MOVING = (Kind.READ, Kind.WRITE, Kind.CHECKSUM)


class Waiting(NamedTuple):
    """An operation that storage has not completed. seconds: since it, or its last part, began."""

    seconds: float
    kind: str
    offset: int
    length: int
