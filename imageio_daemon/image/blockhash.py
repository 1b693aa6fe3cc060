# SPDX-License-Identifier: Apache-2.0
"""The digest of an image: H( H(block 0) + H(block 1) + … ), over the raw digests of its blocks.

Blocks can be hashed in any order and in parallel. Equal blocks of zeros, however they are stored, are hashed once.
"""

import functools
import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, cast

from ..units import KiB, MiB
from .blake2 import Blake2b
from .extents import Extent

DEFAULT_ALGORITHM = "blake2b"
#: Bytes of BLAKE2 digests. BLAKE2 has digests of several lengths, and both sides of a comparison must use the same one.
BLAKE2_SIZE = 32

BLOCK_ALIGNMENT = 4 * KiB
MIN_BLOCK = 1 * MiB
DEFAULT_BLOCK = 4 * MiB
MAX_BLOCK = 16 * MiB

#: Zeros to hash. update_zeros() repeats them for longer ranges, which so need no more memory.
_ZEROS = bytes(1 * MiB)
#: Most digests of zeros in memory, for the block sizes in use and the shorter last blocks of images.
ZEROS_KEPT = 64
#: Most digests of zero blocks to hash in one call: 1 MiB at 32 bytes each.
ZERO_BATCH = 32 * 1024
#: Shorter holes between data are read together with the data. Reading 256 KiB of a hole takes 25 us on tmpfs, and a
#: separate read for the data after it at least 50 us.
SHORT_HOLE = 256 * KiB


class Hash(Protocol):
    """A hash object of hashlib, or Blake2b."""

    def update(self, data: bytes | memoryview, /) -> object:
        """Add bytes."""

    def digest(self) -> bytes:
        """Return the raw digest."""

    def hexdigest(self) -> str:
        """Return the digest in hexadecimal."""


#: Used instead of hashlib.blake2b and the like, as a Python that was built without them does not have these names.
_NEW: Callable[..., Any] = hashlib.new


def new_hash(algorithm: str) -> Hash:
    """Return a hash object. Raises ValueError for an algorithm that is not one of algorithms().

    A host in FIPS mode has fewer algorithms. BLAKE2b always works, as the default of both sides of a comparison.
    """
    size = {"digest_size": BLAKE2_SIZE} if algorithm in ("blake2b", "blake2s") else {}
    try:
        state = _NEW(algorithm, usedforsecurity=False, **size)
    except ValueError:
        if algorithm != "blake2b":
            raise
        return Blake2b(BLAKE2_SIZE)
    if not state.digest_size:
        raise ValueError(f"digests of {algorithm} have any length")
    return cast(Hash, state)


def algorithms() -> list[str]:
    """Return the names of the algorithms that work here and need no length, sorted."""
    return sorted(name for name in hashlib.algorithms_available | {DEFAULT_ALGORITHM} if _usable(name))


def _usable(name: str) -> bool:
    try:
        new_hash(name)
    except ValueError:
        return False  # FIPS mode forbids it, or no loaded provider of OpenSSL has it although OpenSSL lists it
    return True


class Total:
    """The digest of an image, computed from the digests of its blocks in order."""

    def __init__(self, algorithm: str) -> None:
        self._state = new_hash(algorithm)

    def add(self, digest: bytes, count: int = 1) -> None:
        """Add the digest of a block, or of at most ZERO_BATCH equal ones."""
        self._state.update(digest * count)

    def add_all(self, digest: bytes, count: int) -> None:
        """Add the digest of any number of equal blocks."""
        for done in range(0, count, ZERO_BATCH):
            self.add(digest, min(ZERO_BATCH, count - done))

    def hexdigest(self) -> str:
        """Return the digest of the image in hexadecimal."""
        return self._state.hexdigest()


def update_zeros(state: Hash, length: int) -> None:
    """Add `length` zeros to a hash."""
    while length:
        count = min(length, len(_ZEROS))
        state.update(memoryview(_ZEROS)[:count])
        length -= count


@functools.lru_cache(ZEROS_KEPT)
def zero_digest(algorithm: str, length: int) -> bytes:
    """Return the digest of `length` zeros. Raises ValueError as new_hash().

    The cache is for updates, which ask for many ranges of an image, and need this digest for each. 4 MiB take 6 ms.
    Without the cache, a third of the processor time of an update of 10 GiB with 1 GiB of data was spent here.
    """
    state = new_hash(algorithm)
    update_zeros(state, length)
    return state.digest()


class Segment(NamedTuple):
    """A part of a block. `zero` tells that it reads as zeros, and need not be read."""

    start: int
    length: int
    zero: bool


class DataBlock(NamedTuple):
    """A block of which at least a part has to be read."""

    segments: list[Segment]

    @property
    def start(self) -> int:
        """Return where the block begins, in bytes."""
        return self.segments[0].start

    @property
    def length(self) -> int:
        """Return the length of the block, in bytes."""
        last = self.segments[-1]
        return last.start + last.length - self.start


class ZeroBlocks(NamedTuple):
    """Consecutive blocks of zeros. Each has `length` bytes."""

    number: int
    length: int


class BlockPlan:
    """Cut extents into blocks. Add the extents in order and without gaps."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._segments: list[Segment] = []
        self._filled = 0

    def add(self, extent: Extent) -> Iterator[DataBlock | ZeroBlocks]:
        """Add an extent, and yield the blocks that are complete now."""
        start, left = extent.start, extent.length
        while left:
            if extent.zero and not self._filled and left >= self._block_size:
                count = left // self._block_size
                yield ZeroBlocks(count, self._block_size)
                length = count * self._block_size
            else:
                length = min(left, self._block_size - self._filled)
                self._segments.append(Segment(start, length, extent.zero))
                self._filled += length
                if self._filled == self._block_size:
                    yield self._take()
            start += length
            left -= length

    def end(self) -> Iterator[DataBlock | ZeroBlocks]:
        """Yield the last block, if it is a short one."""
        if self._filled:
            yield self._take()

    def _take(self) -> DataBlock | ZeroBlocks:
        segments, filled = self._segments, self._filled
        self._segments, self._filled = [], 0
        if all(segment.zero for segment in segments):
            return ZeroBlocks(1, filled)
        return DataBlock(segments)


class Run(NamedTuple):
    """Bytes of an image, from `start` to `end`."""

    start: int
    end: int


class Pieces:
    """The pieces of one block. Take them in order. The time for all of them grows with the number of segments."""

    def __init__(self, block: DataBlock) -> None:
        self._data: deque[Segment] = deque(segment for segment in block.segments if not segment.zero)

    def take(self, start: int, end: int) -> list[Run]:
        """Return, in order, what to read of the piece from `start` to `end`: its data, joined over short holes.

        The rest of the piece is zeros. The piece has to follow the one before.
        """
        runs: list[Run] = []
        while self._data and self._data[0].start < end:
            segment = self._data[0]
            stop = segment.start + segment.length
            run = Run(max(segment.start, start), min(stop, end))
            if runs and run.start - runs[-1].end < SHORT_HOLE:
                run = Run(runs.pop().start, run.end)
            runs.append(run)
            if stop > end:
                break
            self._data.popleft()
        return runs
