# SPDX-License-Identifier: Apache-2.0
"""What a benchmark makes of its rounds."""

from pathlib import Path

import pytest

from benchmarks.cases import GOALS, Case, Goal, MiB, all_cases
from benchmarks.errors import BenchmarkError
from benchmarks.nbdcases import copies
from benchmarks.report import DOCUMENT, verdict, write_into
from benchmarks.rounds import Measured, Round
from benchmarks.servers import OURS, THEIRS

STREAM = Case("put", 64 * MiB, "tls", 1, "file")
GOAL = Goal(STREAM, rate=1.3, cpu=1.05)


def a_round(requests: int, *, flush: float = 0.0, cpu: float = 1.0, memory: int = MiB) -> Round:
    return Round(requests, 1.0, flush, cpu, 0.1, 0.001, 0.002, memory)


def measured(ours: list[Round], theirs: list[Round], disk_rate: float | None = None) -> Measured:
    return Measured(STREAM, {OURS.name: ours, THEIRS.name: theirs}, disk_rate)


def test_rows_name_one_connection_or_several() -> None:
    assert [case.name.partition(", ")[2] for case in copies()] == 2 * ["1 connection"] + 2 * ["4 connections"]


def test_the_median_round_counts() -> None:
    result = measured([a_round(10), a_round(30), a_round(1000)], [a_round(20)])
    assert result.ratio(result.rate) == 1.5


def test_the_flush_counts_for_a_stream() -> None:
    result = measured([a_round(20, flush=1.0)], [a_round(20)])
    assert result.ratio(result.rate) == 0.5


def test_processor_time_is_for_the_same_work() -> None:
    result = measured([a_round(20, cpu=1.0)], [a_round(10, cpu=1.0)])
    assert result.ratio(result.cpu) == 0.5


def test_a_goal_is_reached() -> None:
    assert verdict(GOAL, measured([a_round(13)], [a_round(10)])) == "pass"


def test_all_that_is_missed_is_named() -> None:
    assert verdict(GOAL, measured([a_round(10, cpu=2.0)], [a_round(10)])) == "FAIL: rate, CPU"


def test_more_memory_than_the_goal_is_missed() -> None:
    goal = Goal(STREAM, memory=1.5)
    assert verdict(goal, measured([a_round(10, memory=2 * MiB)], [a_round(10)])) == "FAIL: RSS"


def test_parity_is_enough_where_both_servers_are_at_the_disks_rate() -> None:
    result = measured([a_round(96)], [a_round(100)], disk_rate=100 * 64 * MiB)
    assert verdict(GOAL, result) == "pass (at the disk's rate)"


def test_parity_is_not_enough_where_the_disk_is_faster() -> None:
    result = measured([a_round(96)], [a_round(100)], disk_rate=120 * 64 * MiB)
    assert verdict(GOAL, result) == "FAIL: rate"


def test_every_goal_is_among_the_cases_of_a_full_run() -> None:
    assert {goal.case for goal in GOALS} <= set(all_cases())


def test_results_replace_those_of_the_last_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- nbd results -->\nold\n<!-- end of nbd results -->\nafter\n")
    write_into(page, "new", "nbd")
    assert page.read_text() == "before\n<!-- nbd results -->\n\nnew\n\n<!-- end of nbd results -->\nafter\n"


def test_a_page_without_a_place_for_results_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n")
    with pytest.raises(BenchmarkError, match="no place for the results of nbd"):
        write_into(page, "new", "nbd")
    assert page.read_text() == "text\n"


@pytest.mark.parametrize("name", ["http", "nbd", "qcow2", "client"])
def test_the_page_of_results_has_a_place_for_each_benchmark(name: str) -> None:
    page = DOCUMENT.read_text()
    assert page.index(f"<!-- {name} results -->") < page.index(f"<!-- end of {name} results -->")


@pytest.mark.parametrize("case", [Case("zero", MiB, "tls", 1, "file"), Case("put", 4096, "tls", 4, "file")])
def test_small_and_zero_requests_are_counted_without_the_flush(case: Case) -> None:
    result = Measured(case, {OURS.name: [a_round(20, flush=1.0)], THEIRS.name: [a_round(20)]}, None)
    assert result.ratio(result.rate) == 1.0
