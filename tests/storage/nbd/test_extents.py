# SPDX-License-Identifier: Apache-2.0
"""Answers to BLOCK_STATUS as extents."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imageio_daemon.image.extents import Extent
from imageio_daemon.nbdproto.client.negotiation import Agreed
from imageio_daemon.nbdproto.messages import pack_extents
from imageio_daemon.storage.backend import Context
from imageio_daemon.storage.nbd.extents import MAX_LOOKED_AT, extents, wanted_contexts

BASE, DEPTH, MAP, OTHER = "base:allocation", "qemu:allocation-depth", "qemu:dirty-bitmap:a", "qemu:dirty-bitmap:b"

Told = Sequence[tuple[int, int]]


def found(told: Mapping[str, Told], offset: int, end: int, *, extended: bool = True) -> list[Extent]:
    contexts = dict(enumerate(told))
    statuses = {i: pack_extents(i, *zip(*told[name], strict=True), extended=extended) for i, name in contexts.items()}
    return list(extents(statuses, contexts, offset, end, extended=extended))


@pytest.mark.parametrize("extended", [False, True])
def test_bits_of_the_allocation(extended: bool) -> None:
    told = [(10, 0), (10, 1), (10, 2), (10, 3), (10, 0xFFFFFFF0)]
    zeros = [(e.length, e.zero) for e in found({BASE: told}, 0, 50, extended=extended)]
    assert zeros == [(20, False), (20, True), (10, False)]


def test_depth_0_is_a_hole_that_shows_the_backing_file() -> None:
    told: dict[str, Told] = {BASE: [(30, 0), (10, 3)], DEPTH: [(10, 1), (10, 2), (20, 0)]}
    assert found(told, 100, 140) == [
        Extent(100, 20),
        Extent(120, 10, hole=True),
        Extent(130, 10, zero=True, hole=True),
    ]


def test_what_any_bitmap_marks_is_dirty() -> None:
    told: dict[str, Told] = {BASE: [(40, 2)], MAP: [(10, 1), (30, 0)], OTHER: [(20, 0), (10, 1), (10, 0)]}
    assert [(e.start, e.dirty, e.zero) for e in found(told, 0, 40)] == [
        (0, True, True),
        (10, False, True),
        (20, True, True),
        (30, False, True),
    ]


def test_more_than_32_bits() -> None:
    assert found({BASE: [(2**40, 3), (2**41, 0)]}, 0, 2**41) == [
        Extent(0, 2**40, zero=True),
        Extent(2**40, 2**40),
    ]


def test_answers_that_go_past_the_end_are_cut() -> None:
    assert found({BASE: [(10, 0), (1000, 3), (5, 0)]}, 0, 20) == [Extent(0, 10), Extent(10, 10, zero=True)]


def test_what_not_all_contexts_tell_is_left_for_the_next_question() -> None:
    told: dict[str, Told] = {BASE: [(100, 0)], DEPTH: [(10, 1), (20, 1)]}
    assert found(told, 0, 100) == [Extent(0, 30)]


def test_of_a_very_long_answer_the_first_part_is_looked_at() -> None:
    told: dict[str, Told] = {BASE: [(1, 0), (1, 3)] * MAX_LOOKED_AT, DEPTH: [(4 * MAX_LOOKED_AT, 1)]}
    part = found(told, 0, 4 * MAX_LOOKED_AT)
    assert len(part) == part[-1].end == MAX_LOOKED_AT // 2


@pytest.mark.parametrize(
    ("offset", "left"), [(100, [(100, 20), (120, 10)]), (105, [(105, 15), (120, 10)]), (120, [(120, 10)]), (130, [])]
)
def test_what_is_before_an_offset_is_dropped(offset: int, left: list[tuple[int, int]]) -> None:
    told = extents({1: pack_extents(1, (20, 10), (0, 3), extended=False)}, {1: BASE}, 100, 999, extended=False)
    told.drop(offset)
    assert [(e.start, e.length) for e in told] == left
    assert told.end == max(offset, 130)


@given(
    st.dictionaries(
        st.sampled_from([BASE, DEPTH, MAP]),
        st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=9),
        min_size=1,
    ),
    st.integers(1, 60),
)
def test_each_byte_is_what_all_contexts_say(told: dict[str, list[tuple[int, int]]], end: int) -> None:
    each = {name: [status for length, status in extents for _ in range(length)] for name, extents in told.items()}
    known = min(end, *map(len, each.values()))
    expected = [
        (
            any(status[i] & 2 for name, status in each.items() if name == BASE),
            any(status[i] == 0 for name, status in each.items() if name == DEPTH),
            any(status[i] & 1 for name, status in each.items() if name == MAP),
            False,
        )
        for i in range(known)
    ]
    assert [flags for _, length, *flags in found(told, 0, end) for _ in range(length)] == [list(e) for e in expected]


def test_a_context_without_an_answer_is_an_error() -> None:
    with pytest.raises(ValueError, match="no status"):
        list(extents({}, {1: BASE}, 0, 10, extended=False))


@pytest.mark.parametrize("told", [[(0, 0)], [(5, 0), (0, 3)]])
def test_an_empty_extent_is_an_error(told: Told) -> None:
    with pytest.raises(ValueError, match="empty extent"):
        found({BASE: told}, 0, 10)


@pytest.mark.parametrize("payload", [b"\0\0\0\1", b"\0\0\0\1\0\0\0\1", b"\0\0\0\1" + bytes(9)])
def test_a_broken_payload_is_an_error(payload: bytes) -> None:
    with pytest.raises(ValueError, match="status chunk"):
        list(extents({1: payload}, {1: BASE}, 0, 10, extended=False))


def test_each_question_needs_its_contexts_only() -> None:
    agreed = Agreed(1, 1, contexts={1: BASE, 2: DEPTH, 3: MAP, 4: OTHER})
    assert set(wanted_contexts(agreed, Context.ZERO).values()) == {BASE, DEPTH}
    assert set(wanted_contexts(agreed, Context.DIRTY).values()) == {BASE, MAP, OTHER}
