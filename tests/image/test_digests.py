# SPDX-License-Identifier: Apache-2.0
import hashlib
import os
import subprocess

import pytest

from imageio_daemon.image.blockhash import Total, algorithms, new_hash
from imageio_daemon.image.digests import Piece, lanes_of, new_digests
from imageio_daemon.units import KiB


def expected(algorithm: str, content: bytes) -> bytes:
    state = new_hash(algorithm)
    state.update(content)
    return state.digest()


@pytest.mark.parametrize("algorithm", ["blake2b", "blake2s", "sha256", "md5"])
@pytest.mark.parametrize("length", [1, 127, 128, 129, 4 * KiB, 64 * KiB + 5])
@pytest.mark.parametrize("step", [128, 4 * KiB])
def test_each_block_has_the_digest_that_it_has_alone(algorithm: str, length: int, step: int) -> None:
    digests = new_digests(algorithm)
    blocks = [os.urandom(length) if number != 2 else None for number in range(digests.lanes)]
    for start in range(0, length, step):
        count = min(step, length - start)
        pieces: list[Piece] = [None if block is None else memoryview(block)[start : start + count] for block in blocks]
        digests.add(pieces, count, last=start + count == length)
    assert digests.digests() == [expected(algorithm, block or bytes(length)) for block in blocks]


@pytest.mark.parametrize("algorithm", ["blake2b", "sha256"])
def test_a_single_block_needs_no_others(algorithm: str) -> None:
    digests = new_digests(algorithm)
    digests.add([memoryview(b"abc")], 3, last=True)
    assert digests.digests()[0] == expected(algorithm, b"abc")
    assert lanes_of(algorithm) == digests.lanes


def test_blake2b_is_that_of_b2sum() -> None:
    digests = new_digests("blake2b")
    digests.add([memoryview(b"abc")], 3, last=True)
    told = subprocess.run(["b2sum", "-l", "256"], input=b"abc", capture_output=True, check=True).stdout
    assert digests.digests()[0].hex() == told.split()[0].decode()


@pytest.mark.parametrize(("pieces", "length"), [([b"abc"], 2), ([b"abc"], 4), ([b"a"] * 5, 1)])
def test_pieces_of_another_length_or_number_are_refused(pieces: list[bytes], length: int) -> None:
    with pytest.raises(ValueError, match="pieces"):
        new_digests("blake2b").add([memoryview(piece) for piece in pieces], length, last=True)


@pytest.mark.parametrize(("length", "last"), [(127, False), (129, False), (0, False)])
def test_a_part_of_a_chunk_only_ends_a_block(length: int, last: bool) -> None:
    with pytest.raises(ValueError, match="chunks"):
        new_digests("blake2b").add([None], length, last=last)


def test_an_empty_block_has_a_digest_and_ends_no_other() -> None:
    digests = new_digests("blake2b")
    digests.add([memoryview(b"")], 0, last=True)
    assert digests.digests()[0] == expected("blake2b", b"")
    digests = new_digests("blake2b")
    digests.add([None], 128, last=False)
    with pytest.raises(ValueError, match="chunks"):
        digests.add([None], 0, last=True)


def test_an_algorithm_whose_digests_have_any_length_is_none() -> None:
    with pytest.raises(ValueError, match="any length"):
        new_digests("shake_128")
    assert "shake_128" not in algorithms()


def test_an_unknown_algorithm_is_an_error() -> None:
    with pytest.raises(ValueError, match="unsupported"):
        new_digests("md6")


def test_the_total_of_many_equal_blocks_is_that_of_all_their_digests() -> None:
    total = Total("sha256")
    total.add(b"1" * 32)
    total.add(b"2" * 32, 100_000)
    assert total.hexdigest() == hashlib.sha256(b"1" * 32 + b"2" * 32 * 100_000).hexdigest()
