# SPDX-License-Identifier: Apache-2.0
"""What is known of a range of an image: is there data, does it read as zeros, was it changed."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import NamedTuple


class Extent(NamedTuple):
    """Describe `length` bytes from `start`.

    `zero`: reads as zeros. `hole`: unallocated in the top layer, what is read comes from the backing file. `dirty`:
    changed since the bitmap was made.
    """

    start: int
    length: int
    zero: bool = False
    hole: bool = False
    dirty: bool = False

    @property
    def end(self) -> int:
        """Return the first byte after the extent."""
        return self.start + self.length


async def merged(extents: AsyncIterator[Extent]) -> AsyncGenerator[Extent, None]:
    """Join neighbours that say the same, so that a reader sees the fewest extents."""
    pending: Extent | None = None
    async for extent in extents:
        if pending is None:
            pending = extent
        elif pending.zero is extent.zero and pending[3:] == extent[3:] and pending.end == extent.start:
            pending = pending._replace(length=pending.length + extent.length)
        else:
            yield pending
            pending = extent
    if pending is not None:
        yield pending
