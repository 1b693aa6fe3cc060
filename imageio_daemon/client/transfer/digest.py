# SPDX-License-Identifier: Apache-2.0
"""The digest of an image, computed from blocks in any order; see image/blockhash.py."""

import threading
from collections.abc import Iterable, Iterator

from ...image.block_list import Block
from ...image.blockhash import DEFAULT_ALGORITHM, DEFAULT_BLOCK, ZERO_BATCH, Hash, new_hash, update_zeros, zero_digest

#: Start, end and digest of a block, or of any number of blocks of zeros, with None as the digest.
Listed = tuple[int, int, bytes | None]


class Digest:
    """The digests of all blocks of an image. Thread-safe. Raises ValueError for an unknown algorithm."""

    def __init__(self, algorithm: str = DEFAULT_ALGORITHM, block_size: int = DEFAULT_BLOCK) -> None:
        self.algorithm = algorithm
        self.block_size = block_size
        self._lock = threading.Lock()
        self._digests: dict[int, tuple[bytes, int]] = {}

    def part(self, start: int) -> "DigestPart":
        """Return the digest of consecutive bytes from start on, which is a multiple of the block size."""
        return DigestPart(self, start // self.block_size)

    def add(self, index: int, digest: bytes, count: int = 1) -> None:
        """Add the digest of a block, or of several equal ones."""
        with self._lock:
            self._digests[index] = (digest, count)

    def add_listed(self, start: int, end: int, digest: bytes | None) -> None:
        """Add a block of a list, or, with None, blocks of zeros. The last one may be shorter than the others."""
        index = start // self.block_size
        if digest is not None:
            self.add(index, digest)
            return
        count, rest = divmod(end - start, self.block_size)
        if count:
            self.add(index, self.zero_digest(self.block_size), count)
        if rest:
            self.add(index + count, self.zero_digest(rest))

    def zero_digest(self, length: int) -> bytes:
        """Return the digest of a block of zeros."""
        return zero_digest(self.algorithm, length)

    def listed(self, size: int, offset: int = 0) -> Iterator[Listed]:
        """Yield the blocks of `size` bytes from offset on. The first of them has the number 0 here."""
        for index, (digest, count) in sorted(self._digests.items()):
            start = index * self.block_size
            end = min(start + count * self.block_size, size)
            is_zero = digest == self.zero_digest(min(self.block_size, end - start))
            yield offset + start, offset + end, None if is_zero else digest

    def hexdigest(self) -> str:
        """Return the digest of the image. Call this when every part has ended."""
        state = new_hash(self.algorithm)
        for _, (digest, count) in sorted(self._digests.items()):
            for done in range(0, count, ZERO_BATCH):
                state.update(digest * min(ZERO_BATCH, count - done))
        return state.hexdigest()

    def blocks(self, most: int) -> list[str] | None:
        """Return the digests of all blocks in order, or None if there are more than `most`.

        Call this when every part has ended.
        """
        if sum(count for _, count in self._digests.values()) > most:
            return None
        return [digest.hex() for _, (digest, count) in sorted(self._digests.items()) for _ in range(count)]


def told(blocks: Iterable[Block]) -> Iterator[Listed]:
    """Yield the blocks of a server's list."""
    for start, length, digest in blocks:
        yield start, start + length, None if digest is None else bytes.fromhex(digest)


class DigestPart:
    """The digests of consecutive blocks, computed from bytes in order. For one thread."""

    def __init__(self, whole: Digest, index: int) -> None:
        self._whole = whole
        self._index = index
        self._filled = 0
        self._state: Hash = new_hash(whole.algorithm)

    def data(self, data: memoryview) -> None:
        """Add bytes."""
        while data:
            piece = data[: self._whole.block_size - self._filled]
            self._state.update(piece)
            self._advance(len(piece))
            data = data[len(piece) :]

    def zeros(self, length: int) -> None:
        """Add zeros."""
        size = self._whole.block_size
        if self._filled:
            head = min(length, size - self._filled)
            update_zeros(self._state, head)
            self._advance(head)
            length -= head
        if count := length // size:
            self._whole.add(self._index, self._whole.zero_digest(size), count)
            self._index += count
        if rest := length % size:
            update_zeros(self._state, rest)
            self._advance(rest)

    def end(self) -> None:
        """Add a last block that is shorter than the others."""
        if self._filled:
            self._take()

    def _advance(self, length: int) -> None:
        self._filled += length
        if self._filled == self._whole.block_size:
            self._take()

    def _take(self) -> None:
        self._whole.add(self._index, self._state.digest())
        self._index += 1
        self._filled = 0
        self._state = new_hash(self._whole.algorithm)
