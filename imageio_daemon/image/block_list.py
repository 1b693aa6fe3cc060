# SPDX-License-Identifier: Apache-2.0
"""The digests of the blocks of an image as a list: JSON Lines (docs/images-api.md, "The digest of each block").

A server sends such a list as an answer, and a manifest is a file with such a list.
"""

import json
from collections.abc import Iterator
from typing import NamedTuple

from ..units import MAX_OFFSET
from .blockhash import BLOCK_ALIGNMENT, MAX_BLOCK, MIN_BLOCK, Total, zero_digest

#: Longest line, in bytes. The longest digests have 128 digits.
MAX_LINE = 1024


class Block(NamedTuple):
    """A block with its digest in hexadecimal, or any number of blocks of zeros without a digest."""

    start: int
    length: int
    digest: str | None


class BlockListHead(NamedTuple):
    """The head of a list. `block_size` is in bytes, as `offset`, where the first block begins."""

    algorithm: str
    block_size: int
    offset: int


class ListWriter:
    """The text of a list, line by line. Neighbouring zeros become one line."""

    def __init__(self, head: BlockListHead) -> None:
        self._position = head.offset
        self._zeros = 0  # bytes before the position that have no line yet
        self._lines = [json.dumps(head._asdict())]
        #: Bytes of the text that take() returns, without the ends of its lines.
        self.size = len(self._lines[0])

    def zeros(self, length: int) -> None:
        """Add blocks of zeros, with `length` bytes in all."""
        self._zeros += length
        self._position += length

    def block(self, length: int, digest: bytes) -> None:
        """Add a block of data."""
        self._tell_zeros()
        self._add(f'{{"start": {self._position}, "length": {length}, "digest": "{digest.hex()}"}}')
        self._position += length

    def end(self, length: int, checksum: str) -> None:
        """Add the last line: the length of all blocks, in bytes, and the digest of their digests."""
        self._tell_zeros()
        self._add(json.dumps({"length": length, "checksum": checksum}))

    def take(self) -> bytes:
        """Return the lines that were added since the last call."""
        data = "".join(f"{line}\n" for line in self._lines).encode()
        self._lines.clear()
        self.size = 0
        return data

    def _tell_zeros(self) -> None:
        if self._zeros:
            self._add(f'{{"start": {self._position - self._zeros}, "length": {self._zeros}, "zero": true}}')
            self._zeros = 0

    def _add(self, line: str) -> None:
        self._lines.append(line)
        self.size += len(line)


class ListReader:
    """A list that comes in pieces. Methods raise `malformed` if it is no list, or contradicts itself.

    `most` is the length of the longest expected range, in bytes. It limits the time that zeros can take. `head` is None
    until its line has come. `length`, the bytes of all blocks, and `checksum` are None until the end.
    """

    def __init__(self, malformed: Exception, most: int) -> None:
        self._most = most
        self.head: BlockListHead | None = None
        self.length: int | None = None
        self.checksum: str | None = None
        self._malformed = malformed
        self._rest = b""
        self._position = 0
        self._is_last = False  # the block before was shorter than the others
        self._total: Total | None = None

    def feed(self, data: bytes) -> Iterator[Block]:
        """Yield the blocks of the lines that are complete now. Takes time linear in the length of the data."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            raise self._malformed
        for line in lines:
            if len(line) > MAX_LINE or self.checksum is not None:
                raise self._malformed
            try:
                block = self._told(_object(line))
            except (ValueError, TypeError, KeyError, RecursionError) as e:
                raise self._malformed from e
            if block is not None:
                yield block

    def end(self) -> None:
        """Raise `malformed` unless the list is complete, and its checksum is that of the digests."""
        if self._rest or self.checksum is None or self._total is None or self._total.hexdigest() != self.checksum:
            raise self._malformed

    def _told(self, told: dict[str, object]) -> Block | None:
        if self.head is None or self._total is None:
            self.head = BlockListHead(str(told["algorithm"]), _number(told["block_size"]), _number(told["offset"]))
            if not MIN_BLOCK <= self.head.block_size <= MAX_BLOCK or self.head.block_size % BLOCK_ALIGNMENT:
                raise ValueError("block_size")
            self._position = self.head.offset
            self._total = Total(self.head.algorithm)
            return None
        if "checksum" in told:
            self.length, self.checksum = _number(told["length"]), str(told["checksum"])
            if self.length != self._position - self.head.offset:
                raise ValueError("length")
            return None
        return self._block(self.head, self._total, _number(told["start"]), _number(told["length"]), told)

    def _block(self, head: BlockListHead, total: Total, start: int, length: int, told: dict[str, object]) -> Block:
        """Return a block, and add it to the total. It has to follow the block before. Raises ValueError, TypeError."""
        is_zero = told.get("zero") is True
        most = min(head.offset + self._most - start, MAX_OFFSET - start if is_zero else head.block_size)
        if self._is_last or start != self._position or not 0 < length <= most:
            raise ValueError("place")
        self._position += length
        self._is_last = length % head.block_size != 0
        if is_zero:
            for size, count in ((head.block_size, length // head.block_size), (length % head.block_size, 1)):
                total.add_all(zero_digest(head.algorithm, size), count if size else 0)
            return Block(start, length, None)
        digest = bytes.fromhex(str(told["digest"]))
        if len(digest) != len(zero_digest(head.algorithm, head.block_size)):
            raise ValueError("digest")
        total.add(digest)
        return Block(start, length, digest.hex())


def _object(line: bytes) -> dict[str, object]:
    told = json.loads(line)
    if not isinstance(told, dict):
        raise TypeError("no object")
    return told


def _number(told: object) -> int:
    if type(told) is not int or not 0 <= told <= MAX_OFFSET:
        raise TypeError("no number of bytes")
    return told
