# SPDX-License-Identifier: Apache-2.0
"""Operations that run in storage, for the status of a transfer."""

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What an operation of Python does. Operations of lanes have the names of C's iou_kind."""

    READ = "read"
    WRITE = "write"
    ZERO = "zero"
    FLUSH = "flush"
    EXTENTS = "extents"
    CHECKSUM = "checksum"
    STAT = "stat"


#: Seconds after which an operation counts as hanging. Usually one of a few MiB takes some ms.
HANGING = 30.0

#: The operations that read bytes of the image.
READING = (Kind.READ, Kind.CHECKSUM)


class WaitingOperation(NamedTuple):
    """An operation that storage has not completed. `seconds` is the time since it, or its last part, began."""

    seconds: float
    kind: str
    offset: int
    length: int
