# SPDX-License-Identifier: Apache-2.0
"""What BLOCK_STATUS tells of an image."""

import asyncio
from collections.abc import Sequence

from ... import operations, starting
from ...errors import NotFound
from ...extents import ZERO, ExtentList
from ...nbdproto.constants import MAX_EXTENTS, Status
from ...nbdproto.transmission import Request
from ...storage.base import Backend, Context
from ...transfers import Transfer

#: The status of each combination of an extent's flags.
_STATUS = bytes(Status.HOLE | Status.ZERO if flags & ZERO else 0 for flags in range(256))

#: Length and status of each extent.
Answer = tuple[Sequence[int], Sequence[int]]


class BlockStatus:
    """Ask storage about each request, and remember at most that there is data.

    qemu asks for one extent in each request. The data after a hole is found with it, and is told once, when it is asked
    for next: that is never wrong, whoever has changed the image meanwhile. That something is a hole is not remembered:
    another process may have written there, and told the client so before it asks.
    """

    def __init__(self, transfer: Transfer, backend: Backend) -> None:
        self._transfer = transfer
        self._backend = backend
        self._data = range(0)
        self._generation = 0  # when it was found

    async def ask(self, request: Request) -> Answer:
        """Return the extents from the request's offset."""
        wanted = (Context.ZERO, request.offset, request.length, MAX_EXTENTS)
        try:
            found = await operations.extents_in(self._transfer, *wanted)
        except NotFound:
            return (request.length,), (0,)  # nobody knows: data
        return found.lengths, found.flags.translate(_STATUS)

    # One extent at a time

    def recall(self, request: Request) -> Answer | None:
        """Return the extent, if it is data that was found with the one before. What we have changed is asked anew."""
        data, self._data = self._data, range(0)
        if request.offset not in data or self._generation != self._backend.generation:
            return None
        return (min(data.stop - request.offset, request.length),), (0,)

    def ask_one(self, request: Request) -> "asyncio.Future[ExtentList]":
        """Start to look for it; see learn(). Raises as starting.start_extent()."""
        self._generation = self._backend.generation
        return starting.start_extent(self._transfer, self._backend, request.offset, request.length)

    def learn(self, request: Request, found: ExtentList) -> Answer:
        """Return the extent of those that were found."""
        if not found:  # past the end of the image
            return (request.length,), (_STATUS[ZERO],)
        bounds, flags = found.bounds, found.flags
        if self._generation and len(found) > 1 and not flags[1] & ZERO:
            self._data = range(bounds[1], bounds[2])
        return (bounds[1] - bounds[0],), (_STATUS[flags[0]],)
