# SPDX-License-Identifier: Apache-2.0
"""Manifests: files with the digests of an image's blocks, to compare the image with years later (docs/adr/0054)."""

import os
from collections.abc import Iterator
from pathlib import Path

from ...image.block_list import Block, BlockListHead, ListReader, ListWriter
from ...units import MiB, TiB
from ..errors import LocalError
from ..local.part_file import PartFile
from ..local.source import Source
from ..server.remote_image import RemoteImage
from ..server.session import ClientSession
from .block_hashing import hash_all
from .digest import Digest, Listed, told
from .equality import SPAN, aligned
from .progress import Counter, Phase

#: Bytes of the file that are read or written at a time.
PIECE = 1 * MiB
#: Most bytes of an image in a manifest: the largest vhdx. The digests of its zeros take 2 s.
MAX_SIZE = 64 * TiB


class Manifest:
    """A file with the digests of a download. It gets its name when it is complete.

    Methods raise LocalError.
    """

    def __init__(self, path: Path) -> None:
        self._part = PartFile(path)

    def write(self, digest: Digest, size: int) -> None:
        """Write the digests of an image of `size` bytes, and give the file its name."""
        listed = ListWriter(BlockListHead(digest.algorithm, digest.block_size, 0))
        for start, end, found in digest.listed(size):
            if found is None:
                listed.zeros(end - start)
            else:
                listed.block(end - start, found)
            if listed.size >= PIECE:
                self._part.write(listed.take())
        listed.end(size, digest.hexdigest())
        self._part.write(listed.take())
        self._part.publish()

    def abandon(self) -> None:
        """Remove the file, unless it has got its name."""
        self._part.remove()


class ManifestComparison:
    """The comparison of an image of `size` bytes with a manifest. Raises LocalError.

    `head` has the manifest's algorithm and block size, `length` the number of bytes, `checksum` the digest of all.
    """

    def __init__(self, path: Path, size: int, counter: Counter) -> None:
        self._name = str(path)
        self._size = size
        self._counter = counter
        self._blocks = self._read(path)
        counter.begin(Phase.VERIFYING, size)

    def here(self, source: Source) -> list[tuple[int, int]]:
        """Return the ranges of a local image that differ. Raises LocalError."""
        digest = Digest(self.head.algorithm, self.head.block_size)
        hash_all(source, digest, self._counter.check)
        return self._different(digest.listed(self._size))

    def there(self, session: ClientSession, image: RemoteImage) -> list[tuple[int, int]]:
        """Return the ranges of a remote image that differ. Raises as RemoteImage does."""
        algorithm, size = self.head.algorithm, self.head.block_size
        if "checksum_blocks" not in session.abilities.features:
            is_equal = self._size == self.length and image.checksum(algorithm, size)["checksum"] == self.checksum
            return [] if is_equal else [(0, max(self._size, self.length))]
        span = SPAN // size * size

        def listed() -> Iterator[Listed]:
            for start in range(0, self._size, span):
                length = min(span, self._size - start)
                yield from told(image.blocks(algorithm, size, (start, length)))
                self._counter.check(length)

        return self._different(listed())

    def _different(self, listed: Iterator[Listed]) -> list[tuple[int, int]]:
        found = [(part.start, part.end) for part in aligned(told(self._blocks), listed) if not part.is_equal]
        least, most = sorted((self._size, self.length))
        return [*found, *([(least, most)] if least < most else [])]

    def _read(self, path: Path) -> list[Block]:
        """Return the blocks of the manifest. Raises LocalError."""
        malformed = LocalError(
            f"{self._name} is no manifest, was damaged after it was written, or has digests unknown to this host"
        )
        reader = ListReader(malformed, MAX_SIZE)
        blocks: list[Block] = []
        try:
            with path.open("rb") as file:
                while data := file.read(PIECE):
                    blocks += reader.feed(data)
        except OSError as e:
            raise LocalError(f"can't read {self._name}: {os.strerror(e.errno or 0)}") from e
        reader.end()
        if reader.head is None or reader.head.offset or reader.length is None or reader.checksum is None:
            raise malformed
        self.head, self.length, self.checksum = reader.head, reader.length, reader.checksum
        return blocks
