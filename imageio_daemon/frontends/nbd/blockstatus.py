# SPDX-License-Identifier: Apache-2.0
"""What BLOCK_STATUS tells of an image."""

from bisect import bisect_right
from collections.abc import Sequence

from ... import operations
from ...errors import NotFound
from ...extents import ZERO, ExtentList
from ...nbdproto.constants import MAX_EXTENTS, CommandFlag, Status
from ...nbdproto.transmission import Request
from ...storage.base import Backend, Context
from ...transfers import Transfer

#: Extents asked for ahead when a client wants one at a time: what storage tells in one call.
AHEAD = 1024
#: Seconds that they are believed. Changes through this server are noticed at once, those of others are not.
MAX_AGE = 1.0

#: The status of each combination of an extent's flags.
_STATUS = bytes(Status.HOLE | Status.ZERO if flags & ZERO else 0 for flags in range(256))

#: Length and status of each extent.
Answer = tuple[Sequence[int], Sequence[int]]


class BlockStatus:
    """Answer from what is known, if nothing changed since.

    qemu asks for one extent in each request: without memory, mapping an image of n extents would look at n²/2.
    """

    def __init__(self, transfer: Transfer, backend: Backend) -> None:
        self._transfer = transfer
        self._backend = backend
        self._known = ExtentList.of(())
        self._generation = 0
        self._learnt = 0.0

    def recall(self, request: Request, now: float) -> Answer | None:
        """Return the only extent that the request asks for, if it is known; now: the loop's time."""
        if not request.flags & CommandFlag.REQ_ONE or not self._generation:
            return None
        if now - self._learnt > MAX_AGE or self._backend.generation != self._generation:
            return None
        i = bisect_right(self._known.bounds, request.offset) - 1
        if not 0 <= i < len(self._known):
            return None
        return _one(self._known, i, request)

    async def ask(self, request: Request, now: float) -> Answer:
        """Return the extents from the request's offset; see recall()."""
        one = bool(request.flags & CommandFlag.REQ_ONE)
        generation = self._backend.generation
        most = AHEAD if one else MAX_EXTENTS
        try:
            found = await operations.extents_in(self._transfer, Context.ZERO, request.offset, request.length, most)
        except NotFound:
            return (request.length,), (0,)  # nobody knows: data
        if not one:
            return found.lengths, found.flags.translate(_STATUS)
        if len(found) == AHEAD:
            found = found.take(AHEAD - 1)  # the last one may go on
        self._remember(found, generation, now)
        return _one(found, 0, request)

    def _remember(self, found: ExtentList, generation: int, now: float) -> None:
        self._known = found
        # Valid only if nothing changed while we looked.
        self._generation = generation if self._backend.generation == generation else 0
        self._learnt = now


def _one(found: ExtentList, number: int, request: Request) -> Answer:
    end = min(found.bounds[number + 1], request.offset + request.length)
    return (end - request.offset,), (_STATUS[found.flags[number]],)
