# SPDX-License-Identifier: Apache-2.0
"""Digests of blocks from pieces of memory. The bytes are hashed in C, without the GIL."""

from collections.abc import Sequence
from typing import Protocol

from ioutil_ext import ffi, lib

from .blockhash import Hash, new_hash, update_zeros

#: A piece of a block: memory, or None for zeros.
Piece = memoryview | None

_POINTERS = ffi.typeof("void *[]")


class Digests(Protocol):
    """Hash up to `lanes` blocks of the same length together. Use this in one thread at a time."""

    lanes: int

    def add(self, pieces: Sequence[Piece], length: int, *, last: bool) -> None:
        """Add `length` bytes to each block. They are the last ones, or `length` is a multiple of 128."""

    def digests(self) -> list[bytes]:
        """Return the raw digests, in the order of the blocks. After them come digests of unused lanes."""


def lanes_of(algorithm: str) -> int:
    """Return how many blocks the object from new_digests() hashes together."""
    return _Blake2b.lanes if algorithm == "blake2b" else _OneBlock.lanes


def new_digests(algorithm: str) -> Digests:
    """Return an object that hashes blocks. Raises ValueError for an algorithm that this host lacks or forbids."""
    return _Blake2b() if algorithm == "blake2b" else _OneBlock(new_hash(algorithm))


class _Blake2b:
    """Hash several blocks at once, in a third of the time of hashlib (ioutil_ext/content/blake2b.c)."""

    lanes = lib.IOU_HASH_LANES

    def __init__(self) -> None:
        self._state = ffi.new("iou_blake2b *")
        lib.iou_blake2b_begin(self._state, lib.IOU_HASH_DIGEST)

    def add(self, pieces: Sequence[Piece], length: int, *, last: bool) -> None:
        held = [ffi.NULL if piece is None else ffi.from_buffer("char[]", piece) for piece in pieces]
        if any(piece is not None and len(piece) != length for piece in pieces) or len(pieces) > self.lanes:
            raise ValueError(f"{len(pieces)} pieces are not at most {self.lanes} of {length} bytes")
        pointers = ffi.new(_POINTERS, held + [ffi.NULL] * (self.lanes - len(held)))
        if lib.iou_blake2b_add(self._state, pointers, length, last):
            raise ValueError(f"{length} bytes are not whole chunks")

    def digests(self) -> list[bytes]:
        memory = bytearray(self.lanes * lib.IOU_HASH_DIGEST)
        lib.iou_blake2b_digests(self._state, ffi.from_buffer(memory))
        size = lib.IOU_HASH_DIGEST
        return [bytes(memory[start : start + size]) for start in range(0, len(memory), size)]


class _OneBlock:
    """Hash one block, by a hash object of Python."""

    lanes = 1

    def __init__(self, state: Hash) -> None:
        self._state = state

    def add(self, pieces: Sequence[Piece], length: int, *, last: bool) -> None:
        (piece,) = pieces
        if piece is None:
            update_zeros(self._state, length)
        else:
            self._state.update(piece)

    def digests(self) -> list[bytes]:
        return [self._state.digest()]
