# SPDX-License-Identifier: Apache-2.0
import hashlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imageio_daemon.image.blockhash import (
    BLAKE2_SIZE,
    BlockPlan,
    DataBlock,
    Segment,
    ZeroBlocks,
    algorithms,
    new_hash,
    update_zeros,
    zero_digest,
)
from imageio_daemon.image.extents import Extent
from imageio_daemon.units import MiB

BLOCK = 100


def plan(*extents: tuple[int, bool]) -> list[DataBlock | ZeroBlocks]:
    """Cut extents, given as (length, zero), into blocks."""
    blocks: list[DataBlock | ZeroBlocks] = []
    cutter = BlockPlan(BLOCK)
    start = 0
    for length, zero in extents:
        blocks += cutter.add(Extent(start, length, zero=zero))
        start += length
    return [*blocks, *cutter.end()]


def test_no_extents_are_no_blocks() -> None:
    assert plan() == []


def test_last_block_is_shorter() -> None:
    assert plan((250, False)) == [
        DataBlock([Segment(0, 100, False)]),
        DataBlock([Segment(100, 100, False)]),
        DataBlock([Segment(200, 50, False)]),
    ]


def test_blocks_of_zeros_are_counted() -> None:
    assert plan((10**15, True)) == [ZeroBlocks(10**13, BLOCK)]


def test_last_block_of_zeros_is_shorter() -> None:
    assert plan((250, True)) == [ZeroBlocks(2, 100), ZeroBlocks(1, 50)]


def test_block_of_several_zero_extents_is_zero() -> None:
    assert plan((60, True), (40, True)) == [ZeroBlocks(1, 100)]


def test_block_with_data_keeps_its_zeros_apart() -> None:
    assert plan((30, True), (40, False), (230, True)) == [
        DataBlock([Segment(0, 30, True), Segment(30, 40, False), Segment(70, 30, True)]),
        ZeroBlocks(2, 100),
    ]


@given(st.lists(st.tuples(st.integers(1, 350), st.booleans()), max_size=12))
def test_blocks_cover_the_image_in_order(extents: list[tuple[int, bool]]) -> None:
    position = 0
    for block in plan(*extents):
        if isinstance(block, ZeroBlocks):
            position += block.number * block.length
            continue
        for segment in block.segments:
            assert segment.start == position
            position += segment.length
        assert not all(segment.zero for segment in block.segments)
    assert position == sum(length for length, _ in extents)


@given(st.lists(st.tuples(st.integers(1, 350), st.booleans()), max_size=12))
def test_zeros_hash_like_bytes(extents: list[tuple[int, bool]]) -> None:
    image = b"".join(bytes([0 if zero else 7]) * length for length, zero in extents)
    digests = new_hash("sha256")
    for block in plan(*extents):
        if isinstance(block, ZeroBlocks):
            for _ in range(block.number):
                digests.update(hashlib.sha256(bytes(block.length)).digest())
            continue
        state = new_hash("sha256")
        for segment in block.segments:
            if segment.zero:
                update_zeros(state, segment.length)
            else:
                state.update(image[segment.start : segment.start + segment.length])
        digests.update(state.digest())
    expected = hashlib.sha256()
    for start in itertools.count(0, BLOCK):
        if start >= len(image):
            break
        expected.update(hashlib.sha256(image[start : start + BLOCK]).digest())
    assert digests.hexdigest() == expected.hexdigest()


@pytest.mark.parametrize("length", [0, 1, MiB - 1, MiB, MiB + 1, 3 * MiB])
def test_any_number_of_zeros_is_hashed(length: int) -> None:
    state = new_hash("sha1")
    update_zeros(state, length)
    assert state.digest() == hashlib.sha1(bytes(length)).digest()


@pytest.mark.parametrize("length", [0, 1, 4 * MiB, 4 * MiB + 1])
@pytest.mark.parametrize("name", ["blake2b", "sha256"])
def test_digest_of_zeros_is_that_of_their_bytes(name: str, length: int) -> None:
    state = new_hash(name)
    state.update(bytes(length))
    assert zero_digest(name, length) == zero_digest(name, length) == state.digest()


def test_zeros_of_an_unknown_algorithm_are_not_hashed() -> None:
    with pytest.raises(ValueError, match="unsupported hash type nothing"):
        zero_digest("nothing", 1)


@pytest.mark.parametrize("name", ["blake2b", "blake2s"])
def test_blake2_has_32_bytes(name: str) -> None:
    assert len(new_hash(name).digest()) == BLAKE2_SIZE
    assert new_hash(name).digest() == getattr(hashlib, name)(digest_size=32).digest()


def test_every_listed_algorithm_works() -> None:
    names = algorithms()
    assert names == sorted(names)
    assert {"blake2b", "blake2s", "md5", "sha1", "sha256", "sha3_256", "sha512"} <= set(names)
    for name in names:
        assert new_hash(name).digest()


def test_algorithms_that_need_a_length_are_not_listed() -> None:
    assert not {"shake_128", "shake_256"} & set(algorithms())


def test_unknown_algorithm_is_refused() -> None:
    with pytest.raises(ValueError, match="unsupported"):
        new_hash("crc32")
