# SPDX-License-Identifier: Apache-2.0
import tracemalloc

import pytest

from imageio_daemon.image.extents import Extent, ExtentList, ExtentStream, merged
from imageio_daemon.units import MiB

DATA, ZEROS, BELOW = Extent(10, 5), Extent(15, 5, zero=True), Extent(20, 7, hole=True)


def test_many_extents_take_little_memory() -> None:
    many = (Extent(n, 1, n % 2 == 0, dirty=n % 3 == 0, durable=n % 5 == 0) for n in range(100_000))
    tracemalloc.start()
    try:
        found = ExtentList.of(many)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 2 * MiB
    assert found[99_999] == found[-1] == Extent(99_999, 1, dirty=True)
    assert found[:2] == [Extent(0, 1, zero=True, dirty=True, durable=True), Extent(1, 1)]
    assert sum(extent.length for extent in found) == len(found) == 100_000


def test_list_gives_back_what_it_was_made_of() -> None:
    extents = [DATA, ZEROS, BELOW, Extent(27, 1, True, True, True)]
    found = ExtentList.of(extents, 10)
    assert list(found) == extents
    assert [found[i] for i in range(4)] == extents
    assert (found[-1], found[1:3]) == (extents[-1], extents[1:3])
    assert ([extent.length for extent in found], found.end) == ([5, 5, 7, 1], 28)
    with pytest.raises(IndexError):
        found[4]


def test_neighbours_that_say_the_same_are_one() -> None:
    found = ExtentList.of([DATA, Extent(15, 1)], 10)
    found.append(Extent(16, 1))
    found.extend(ExtentList.of([Extent(17, 1), Extent(18, 1, zero=True)], 17))
    assert list(found) == [Extent(10, 8), Extent(18, 1, zero=True)]


def test_nothing_joined_to_a_list_changes_nothing() -> None:
    found = ExtentList.of([DATA], 10)
    found.extend(ExtentList.of((), 15))
    empty = ExtentList.of((), 10)
    assert (len(empty), empty.end) == (0, 10)
    empty.extend(found)
    assert list(empty) == [DATA]


def test_what_is_taken_is_removed() -> None:
    found = ExtentList.of([DATA, ZEROS, BELOW], 10)
    assert list(found.take(2)) == [DATA, ZEROS]
    assert list(found) == [BELOW]
    assert list(found.take(9)) == [BELOW]
    assert not found


async def stream(*lists: list[Extent]) -> ExtentStream:
    for found in lists:
        yield ExtentList.of(found, found[0].start if found else 0)


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ([], []),
        ([[]], []),
        ([[DATA]], [DATA]),
        ([[DATA], [ZEROS]], [DATA, ZEROS]),
        ([[DATA], [Extent(15, 5)], [Extent(20, 7)]], [Extent(10, 17)]),
        ([[DATA, ZEROS], [Extent(20, 1, zero=True), Extent(21, 1)]], [DATA, Extent(15, 6, zero=True), Extent(21, 1)]),
    ],
)
async def test_neighbours_are_joined_across_lists(lists: list[list[Extent]], expected: list[Extent]) -> None:
    assert [extent async for found in merged(stream(*lists)) for extent in found] == expected
