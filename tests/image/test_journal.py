# SPDX-License-Identifier: Apache-2.0
"""Journals of durable ranges that C has written, read by Python: whole, cut short, and damaged."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imageio_daemon.image import journal
from imageio_daemon.image.journal import MAX_RANGES, Damaged, read
from ioutil_ext import lib
from tests.support.durable import HEADER, Record

UNIT = 4096


@pytest.fixture
def records() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def found(text: bytes) -> set[int]:
    """Return the units that a journal tells; none if it is damaged."""
    try:
        ranges = read(text, HEADER)
    except Damaged:
        return set()
    assert all(end < start for (_, end), (start, _) in pairwise(ranges))
    return {unit for start, end in ranges for unit in range(start // UNIT, end // UNIT)}


def line(crc: int, sign: str, start: int, end: int) -> tuple[bytes, int]:
    text = f"{sign} {start} {end}".encode()
    crc = crc32(text, crc)
    return b"%b %08x\n" % (text, crc), crc


def written(*lines: tuple[str, int, int], version: int = 1, count: int | None = None) -> bytes:
    """Return a journal as C writes it."""
    head = f"imageio-durable {version} {HEADER}".encode()
    crc = crc32(head)
    number = b"%010d" % (len(lines) if count is None else count)
    text = b"%b %08x\n%b %08x\n" % (head, crc, number, crc32(number))
    for each in lines:
        more, crc = line(crc, *each)
        text += more
    return text


def test_journal_of_c_is_what_this_file_writes(tmp_path: Path, records: ExitStack) -> None:
    record = records.enter_context(Record(tmp_path, [(0, 10), (20, 30)]))
    assert record.path.read_bytes() == written(("+", 0, 10), ("+", 20, 30))
    record.change(5, 25)
    assert record.path.read_bytes() == written(("+", 0, 10), ("+", 20, 30), ("-", 5, 25))
    assert record.on_disk() == [(0, 5), (25, 30)]


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["change", "write", "zero and flush"]), st.integers(0, 20), st.integers(1, 9))
)


@given(STEPS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_journal_that_is_cut_anywhere_tells_nothing_that_is_not_durable(tmp_path: Path, steps: list[Step]) -> None:
    durable: set[int] = set()
    with Record(tmp_path, []) as record:
        for what, start, length in steps:
            units = set(range(start, start + length))
            assert record.change(start * UNIT, (start + length) * UNIT) == 0
            durable -= units
            if what != "change":
                record.changed(start * UNIT, (start + length) * UNIT, durable=what != "write")
                durable |= units if what != "write" else set()
            lib.iou_durable_write(record.shared)
            assert found(record.path.read_bytes()) == durable
        text = record.path.read_bytes()
    for size in range(len(text)):
        assert found(text[:size]) <= durable
    for place in range(len(text)):
        for changed in (text[place] ^ 1, ord("\n"), 0):
            assert found(text[:place] + bytes([changed]) + text[place + 1 :]) <= durable


def test_journal_of_another_image_or_ticket_tells_nothing() -> None:
    assert read(written(("+", 0, 10)), "other") == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "first line"),
        (b"\0" * 100, "first line"),
        (written()[:-1], "second line"),
        (written(version=2), "version 2"),
        (written(("+", 0, 10), count=2), "1 lines of 2"),
        (written(("+", 10, 10)), "0 lines of 1"),
        (written(("+", 0, 2**63)), "0 lines of 1"),
        (written(("+", 0, 10), ("*", 0, 10)), "1 lines of 2"),
    ],
)
def test_journal_that_is_damaged_says_why(text: bytes, why: str) -> None:
    with pytest.raises(Damaged, match=why):
        read(text, HEADER)


def test_lines_behind_a_torn_one_are_not_told() -> None:
    first, crc = line(crc32(f"imageio-durable 1 {HEADER}".encode()), "+", 0, 10)
    second, _ = line(crc, "+", 20, 30)
    text = written(count=0) + first
    assert read(text + second[:-1], HEADER) == [(0, 10)]
    assert read(text + b"garbage\n" + second, HEADER) == [(0, 10)]
    assert read(text + second, HEADER) == [(0, 10), (20, 30)]


def test_most_ranges_are_the_longest_ones() -> None:
    lines = [("+", 100 * number, 100 * number + (50 if number % 2 else 10)) for number in range(2 * MAX_RANGES)]
    ranges = read(written(*lines), HEADER)
    assert len(ranges) == MAX_RANGES
    assert ranges == sorted(ranges)
    assert {end - start for start, end in ranges} == {50}


def test_longest_journal_of_c_can_be_read(tmp_path: Path, records: ExitStack) -> None:
    most = lib.IOU_DURABLE_RANGES
    far = 2**63 - 2**40
    ranges = [(far + 2 * number, far + 2 * number + 1) for number in range(most)]
    record = records.enter_context(Record(tmp_path, ranges))
    assert record.path.stat().st_size <= journal.MAX_JOURNAL
    assert record.on_disk() == ranges


@given(st.lists(st.tuples(st.sampled_from("+-"), st.integers(0, 60), st.integers(1, 20)), max_size=30))
def test_last_line_of_each_byte_says_whether_it_is_durable(changes: list[tuple[str, int, int]]) -> None:
    model = set[int]()
    for sign, start, length in changes:
        (model.update if sign == "+" else model.difference_update)(range(start, start + length))
    ranges = read(written(*((sign, start, start + length) for sign, start, length in changes)), HEADER)
    assert [byte for start, end in ranges for byte in range(start, end)] == sorted(model)
    assert all(end < start for (_, end), (start, _) in pairwise(ranges))
