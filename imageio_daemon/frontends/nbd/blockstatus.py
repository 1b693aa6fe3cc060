# SPDX-License-Identifier: Apache-2.0
"""What BLOCK_STATUS tells of an image."""

from bisect import bisect_right

from ... import operations
from ...errors import NotFound
from ...extents import Extent
from ...nbdproto.constants import MAX_EXTENTS, CommandFlag, Status
from ...nbdproto.transmission import Request
from ...storage.base import Backend, Context
from ...transfers import Transfer

#: Extents asked for ahead when a client wants one at a time: what storage tells in one call.
AHEAD = 1024
#: Seconds that they are believed. Changes through this server are noticed at once, those of others are not.
MAX_AGE = 1.0


class BlockStatus:
    """Answer from what is known, if nothing changed since.

    qemu asks for one extent in each request: without memory, mapping an image of n extents would look at n²/2.
    """

    def __init__(self, transfer: Transfer, backend: Backend) -> None:
        self._transfer = transfer
        self._backend = backend
        self._known: list[Extent] = []
        self._starts: list[int] = []
        self._generation = 0
        self._learnt = 0.0

    def recall(self, request: Request, now: float) -> list[tuple[int, int]] | None:
        """Return the only extent that the request asks for, if it is known; now: the loop's time."""
        if not request.flags & CommandFlag.REQ_ONE or not self._generation:
            return None
        if now - self._learnt > MAX_AGE or self._backend.generation != self._generation:
            return None
        i = bisect_right(self._starts, request.offset) - 1
        if i < 0 or self._known[i].end <= request.offset:
            return None
        return [_first(self._known[i:], request)]

    async def ask(self, request: Request, now: float) -> list[tuple[int, int]]:
        """Return length and status of the extents from the request's offset; see recall()."""
        one = bool(request.flags & CommandFlag.REQ_ONE)
        generation = self._backend.generation
        most = AHEAD if one else MAX_EXTENTS
        try:
            found = await operations.extents_in(self._transfer, Context.ZERO, request.offset, request.length, most)
        except NotFound:
            return [(request.length, 0)]  # nobody knows: data
        if not one:
            return [(extent.length, _status(extent)) for extent in found]
        if len(found) == AHEAD:
            found.pop()  # it may go on
        self._remember(found, generation, now)
        return [_first(found, request)]

    def _remember(self, found: list[Extent], generation: int, now: float) -> None:
        self._known = found
        self._starts = [extent.start for extent in found]
        # Valid only if nothing changed while we looked.
        self._generation = generation if self._backend.generation == generation else 0
        self._learnt = now


def _status(extent: Extent) -> int:
    return Status.HOLE | Status.ZERO if extent.zero else 0


def _first(found: list[Extent], request: Request) -> tuple[int, int]:
    extent = found[0]
    length = min(extent.end, request.offset + request.length) - request.offset
    return length, _status(extent)
