# SPDX-License-Identifier: Apache-2.0
"""Check that the storage of the target has room for the data, before the first byte is sent."""

from ...commands.amounts import human
from ..errors import NoRoom
from ..local.source import Source


def check_room(source: Source, available: int) -> None:
    """Raise NoRoom if the source has more data than the `available` bytes for the target. Raises LocalError.

    Zeros inside data count as data, because they are unknown before they are read.
    """
    if source.size <= available:
        return
    data = sum(extent.length for extent in source.extents() if not extent.zero)
    if data > available:
        raise NoRoom(
            f"the source has {human(data)} of data, and the storage of the target has room for {human(available)}: "
            "make room, or say --no-room-check if much of the data is zeros"
        )
