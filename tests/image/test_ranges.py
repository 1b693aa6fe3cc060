# SPDX-License-Identifier: Apache-2.0
import itertools

from hypothesis import given
from hypothesis import strategies as st

from imageio_daemon.image.ranges import RangeSet

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda r: (r[0], r[0] + r[1])), max_size=30)


def test_empty_set_has_no_size() -> None:
    assert RangeSet().size() == 0


def test_touching_ranges_become_one() -> None:
    ranges = RangeSet()
    ranges.add(0, 10)
    ranges.add(20, 30)
    ranges.add(10, 20)
    assert ranges.pieces() == [(0, 30)]


def test_bytes_transferred_twice_count_once() -> None:
    ranges = RangeSet()
    ranges.add(0, 10)
    ranges.add(5, 15)
    assert ranges.size() == 15


def test_empty_range_adds_nothing() -> None:
    ranges = RangeSet()
    ranges.add(5, 5)
    assert ranges.pieces() == []


@given(RANGES)
def test_size_is_that_of_the_union(added: list[tuple[int, int]]) -> None:
    ranges, model = RangeSet(), set[int]()
    for start, end in added:
        ranges.add(start, end)
        model.update(range(start, end))
    assert ranges.size() == len(model)
    assert [b for start, end in ranges.pieces() for b in range(start, end)] == sorted(model)


@given(st.lists(st.tuples(RANGES.map(lambda ranges: ranges[:3]), RANGES.map(lambda ranges: ranges[:3])), max_size=6))
def test_what_is_discarded_is_in_no_range(steps: list[tuple[list[tuple[int, int]], list[tuple[int, int]]]]) -> None:
    ranges, model = RangeSet(), set[int]()
    for added, discarded in steps:
        for start, end in added:
            ranges.add(start, end)
            model.update(range(start, end))
        for start, end in discarded:
            ranges.discard(start, end)
            model.difference_update(range(start, end))
        assert ranges.size() == len(model)
        assert [b for start, end in ranges.pieces() for b in range(start, end)] == sorted(model)


def test_number_of_pieces_is_bounded_when_one_is_cut() -> None:
    ranges = RangeSet(limit=4)
    for start in (0, 1000, 2000, 3000):
        ranges.add(start, start + 100)
    ranges.discard(10, 20)
    assert len(ranges.pieces()) <= 4
    assert ranges.overlaps(15, 16)


@given(RANGES, RANGES)
def test_size_with_running_ranges_is_that_of_the_union(
    done: list[tuple[int, int]], running: list[tuple[int, int]]
) -> None:
    ranges = RangeSet()
    for start, end in done:
        ranges.add(start, end)
    before = ranges.pieces()
    union = {b for start, end in done + running for b in range(start, end)}
    assert ranges.size_with(running) == len(union)
    assert ranges.pieces() == before


def test_number_of_pieces_is_bounded_by_joining_the_closest() -> None:
    ranges = RangeSet(limit=3)
    for start in (0, 10, 100, 200):
        ranges.add(start, start + 5)
    assert ranges.pieces() == [(0, 15), (100, 105), (200, 205)]
    assert ranges.size() == 25


def test_past_the_limit_a_quarter_of_the_pieces_is_joined_at_once() -> None:
    ranges = RangeSet(limit=8)
    for start in (0, 10, 100, 110, 200, 300, 400, 500, 600):
        ranges.add(start, start + 1)
    assert ranges.pieces() == [(0, 111), (200, 201), (300, 301), (400, 401), (500, 501), (600, 601)]
    assert ranges.size() == 111 + 5


def test_overlap_counts_bytes_and_not_touching_ends() -> None:
    ranges = RangeSet()
    ranges.add(10, 20)
    ranges.add(30, 40)
    found = [ranges.overlaps(*each) for each in [(0, 10), (0, 11), (20, 30), (39, 50), (40, 50), (15, 15), (0, 50)]]
    assert found == [False, True, False, True, False, False, True]


@given(RANGES, st.integers(0, 40), st.integers(0, 40))
def test_parts_cut_a_range_at_the_edges_of_the_set(
    given_ranges: list[tuple[int, int]], start: int, length: int
) -> None:
    ranges = RangeSet()
    for piece in given_ranges:
        ranges.add(*piece)
    parts = list(ranges.parts(start, start + length))
    assert [at for first, end, _ in parts for at in range(first, end)] == list(range(start, start + length))
    assert all(ranges.overlaps(at, at + 1) == is_inside for first, end, is_inside in parts for at in range(first, end))
    assert all(before[2] != after[2] for before, after in itertools.pairwise(parts))
