# SPDX-License-Identifier: Apache-2.0
"""BLAKE2b of our own beside hashlib's."""

import hashlib
import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imageio_daemon.image import blake2
from imageio_daemon.image.blake2 import CHUNK, Blake2b, short_hash

LENGTHS = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1, 100_000]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("size", [1, 16, 31, 32])
def test_it_is_that_of_hashlib(length: int, size: int) -> None:
    content = os.urandom(length)
    state = Blake2b(size)
    state.update(content)
    assert state.digest() == hashlib.blake2b(content, digest_size=size).digest()
    assert state.hexdigest() == state.digest().hex()
    assert len(state.digest()) == state.digest_size == size


@given(st.lists(st.integers(0, 3 * CHUNK), max_size=12))
def test_it_does_not_depend_on_the_pieces(lengths: list[int]) -> None:
    mine, others = Blake2b(32), hashlib.blake2b(digest_size=32)
    for number, length in enumerate(lengths):
        piece = memoryview(bytes([number]) * length)
        mine.update(piece)
        others.update(piece)
        assert mine.digest() == others.digest(), "and a digest does not end it"


def test_memory_may_change_after_it_was_added() -> None:
    memory = bytearray(b"a" * 200)
    state = Blake2b(32)
    state.update(memoryview(memory))
    memory[:] = b"b" * 200
    assert state.digest() == hashlib.blake2b(b"a" * 200, digest_size=32).digest()


@pytest.mark.parametrize("size", [0, 33, 64])
def test_digests_have_1_to_32_bytes(size: int) -> None:
    with pytest.raises(ValueError, match=f"a digest of {size} bytes"):
        Blake2b(size)


def test_a_part_of_a_chunk_only_ends_a_message() -> None:
    with pytest.raises(ValueError, match="not whole chunks"):
        blake2._add(Blake2b(32)._state, b"a")


@pytest.mark.parametrize("text", ["", "a", "Größe", "x" * 5000])
def test_names_are_those_of_b2sum_and_of_earlier_versions(text: str) -> None:
    told = subprocess.run(["b2sum", "-l", "128"], input=text.encode(), capture_output=True, check=True).stdout
    assert short_hash(text) == told.split()[0].decode()
