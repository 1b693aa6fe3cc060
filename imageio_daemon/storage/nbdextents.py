# SPDX-License-Identifier: Apache-2.0
"""What a server tells of a range in several contexts, as one list of extents."""

from collections.abc import Iterator, Mapping

from ..extents import Extent
from ..nbdproto.client import Agreed
from ..nbdproto.constants import ALLOCATION_DEPTH, BASE_ALLOCATION, DIRTY, DIRTY_BITMAP, Status
from ..nbdproto.messages import iter_extents
from .base import Context


def wanted_contexts(agreed: Agreed, context: Context) -> dict[int, str]:
    """Return the contexts that an answer needs, of those that there are."""
    other = ALLOCATION_DEPTH if context is Context.ZERO else DIRTY_BITMAP
    return {i: name for i, name in agreed.contexts.items() if name == BASE_ALLOCATION or name.startswith(other)}


def extents(
    statuses: Mapping[int, bytes], contexts: Mapping[int, str], offset: int, end: int, *, extended: bool
) -> Iterator[Extent]:
    """Yield what the answers tell, from offset, at most up to end: as far as all of them go.

    statuses: payloads by the id of their context. They may be of different lengths, cut differently, and go past the
    end. Raises ValueError: a context is not answered, or an extent is empty.
    """
    missing = [name for i, name in contexts.items() if i not in statuses]
    if missing:
        raise ValueError(f"no status of {missing[0]!r}")
    streams = [_Stream(name, iter_extents(statuses[i], extended=extended)[1], offset) for i, name in contexts.items()]
    while offset < end and all(stream.reach(offset) for stream in streams):
        until = min(end, *(stream.end for stream in streams))
        found: dict[str, bool] = {}
        for stream in streams:
            for name, value in stream.meaning.items():
                found[name] = value or found.get(name, False)
        yield Extent(offset, until - offset, **found)
        offset = until


class _Stream:
    """The extents of one context, in order."""

    def __init__(self, name: str, told: Iterator[tuple[int, int]], offset: int) -> None:
        self._name = name
        self._told = told
        self._status = 0
        self.end = offset

    def reach(self, offset: int) -> bool:
        """Go to the extent that has the offset. False: nothing more was told."""
        while self.end <= offset:
            extent = next(self._told, None)
            if extent is None:
                return False
            self.end += extent[0]
            self._status = extent[1]
        return True

    @property
    def meaning(self) -> dict[str, bool]:
        """Return what the status says. Bits that are not known mean nothing."""
        if self._name == BASE_ALLOCATION:
            return {"zero": bool(self._status & Status.ZERO)}
        if self._name == ALLOCATION_DEPTH:
            return {"hole": self._status == 0}
        return {"dirty": bool(self._status & DIRTY)}
