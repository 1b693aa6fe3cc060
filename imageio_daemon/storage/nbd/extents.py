# SPDX-License-Identifier: Apache-2.0
"""What a server tells of a range in several contexts, as one list of extents.

An answer may have a million of them. So they are looked at many at a time, by what Python does in C.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, compress, repeat
from operator import ne, or_, sub

from ...image.extents import DIRTY, HOLE, ZERO, ExtentList
from ...nbdproto import constants
from ...nbdproto.client.negotiation import Agreed
from ...nbdproto.constants import ALLOCATION_DEPTH, BASE_ALLOCATION, DIRTY_BITMAP, Status
from ...nbdproto.messages import unpack_statuses
from ..backend import Context

#: Extents of an answer that are looked at, in all contexts; what follows is asked for again. It takes up to 0.1 s, and
#: as many come in a chunk of qemu's, the largest of any known server.
MAX_LOOKED_AT = 2**17

_ZERO, _DIRTY = int(Status.ZERO), int(constants.DIRTY)

#: Where each extent begins and then where the last ends, and the flags of each; neighbours may say the same.
_Told = tuple[Sequence[int], bytes]


def wanted_contexts(agreed: Agreed, context: Context) -> dict[int, str]:
    """Return the contexts that an answer needs, of those that there are."""
    other = ALLOCATION_DEPTH if context is Context.ZERO else DIRTY_BITMAP
    return {i: name for i, name in agreed.contexts.items() if name == BASE_ALLOCATION or name.startswith(other)}


def extents(
    statuses: Mapping[int, bytes], contexts: Mapping[int, str], offset: int, end: int, *, extended: bool
) -> ExtentList:
    """Return what the answers tell, from offset, at most up to end: as far as all of them go.

    statuses: payloads by the id of their context. They may be of different lengths, cut differently, and go past the
    end. Raises ValueError: a context is not answered, or an extent is empty.
    """
    missing = [name for i, name in contexts.items() if i not in statuses]
    if missing:
        raise ValueError(f"no status of {missing[0]!r}")
    most = MAX_LOOKED_AT // len(contexts)
    first, *others = [
        _told(name, *unpack_statuses(statuses[i], most, extended=extended), offset) for i, name in contexts.items()
    ]
    for other in others:
        first = _both(first, other)
    return _joined(first, end)


def _told(name: str, lengths: Sequence[int], statuses: Sequence[int], offset: int) -> _Told:
    """Return what one context tells. Bits that are not known mean nothing."""
    if 0 in lengths:
        raise ValueError("empty extent")
    if name == BASE_ALLOCATION:
        flags = bytes([ZERO if status & _ZERO else 0 for status in statuses])
    elif name == ALLOCATION_DEPTH:
        flags = bytes([0 if status else HOLE for status in statuses])
    else:
        flags = bytes([DIRTY if status & _DIRTY else 0 for status in statuses])
    return list(accumulate(lengths, initial=offset)), flags


def _both(one: _Told, other: _Told) -> _Told:
    """Return what two contexts tell, as far as both go."""
    end = min(one[0][-1], other[0][-1])
    bounds = list(dict.fromkeys(sorted([*one[0], *other[0]])))  # two runs, which sorting only merges
    del bounds[bisect_right(bounds, end) :]
    places = dict(zip(bounds, range(len(bounds)), strict=True))
    return bounds, bytes(map(or_, _spread(one, places), _spread(other, places)))


def _spread(told: _Told, places: Mapping[int, int]) -> Iterator[int]:
    """Return the flags between all bounds, of which the context's own are some. places: the number of each bound."""
    bounds, flags = told
    own = [place for place in map(places.get, bounds) if place is not None]
    own.append(len(places) - 1)
    return chain.from_iterable(map(repeat, flags, map(sub, own[1:], own)))


def _joined(told: _Told, end: int) -> ExtentList:
    """Return the list up to the end, in which neighbours that say the same are one."""
    bounds, flags = told
    count = min(bisect_left(bounds, end), len(flags))
    flags = flags[:count]
    differs = [True, *map(ne, flags, flags[1:])]
    starts = compress(bounds, differs[:count])
    return ExtentList(array("Q", (*starts, min(end, bounds[count]))), bytes(compress(flags, differs)))
