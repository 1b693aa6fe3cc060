# SPDX-License-Identifier: Apache-2.0
"""Tests of alone.py: which tests run at the same time."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support import alone
from tests.support.polling import eventually

PROJECT = Path(__file__).resolve().parents[2]
#: A program that prints when its test runs, and goes on until its input ends.
OTHER = """
import sys
from pathlib import Path
from tests.support import alone
with alone.running(Path(sys.argv[1]), alone=sys.argv[2] == "alone"):
    print("runs", flush=True)
    sys.stdin.read()
print("ended", flush=True)
"""


class Other:
    """A test in another process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def wait_for(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == word + "\n"

    @property
    def waits(self) -> bool:
        """Return whether it waits for a lock. Waiting processes have an arrow (proc_locks(5))."""
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        return any(words[1] == "->" and str(self._process.pid) == words[5] for words in lines)

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.wait_for("ended")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in ("alone.py", "__init__.py"):
        (tmp_path / name).touch()
    return tmp_path


@contextmanager
def start(directory: Path, how: str) -> Iterator[Other]:
    command = [sys.executable, "-c", OTHER, str(directory), how]
    with subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Other(process)
        finally:
            process.kill()


def test_tests_of_two_processes_run_at_the_same_time(directory: Path) -> None:
    with alone.running(directory, alone=False), start(directory, "beside") as other:
        other.wait_for("runs")


@pytest.mark.parametrize(("mine", "its"), [(True, "beside"), (False, "alone"), (True, "alone")])
def test_a_test_that_is_to_be_alone_is(directory: Path, mine: bool, its: str) -> None:
    with ExitStack() as cleanup:
        with alone.running(directory, alone=mine):
            other = cleanup.enter_context(start(directory, its))
            eventually(lambda: other.waits, "it waits")
        other.wait_for("runs")


def test_no_test_starts_while_one_waits_to_be_alone(directory: Path) -> None:
    with ExitStack() as cleanup:
        with alone.running(directory, alone=False):
            first = cleanup.enter_context(start(directory, "alone"))
            eventually(lambda: first.waits, "it waits")
            second = cleanup.enter_context(start(directory, "beside"))
            eventually(lambda: second.waits, "it waits, too")
        first.wait_for("runs")
        eventually(lambda: second.waits, "it waits for the one that is alone")
        first.end()
        second.wait_for("runs")


@pytest.mark.parametrize("processes", [1, 2, 3, 6])
@pytest.mark.parametrize(("alone_ones", "others"), [(0, 20), (7, 100), (20, 27)])
def test_each_process_begins_with_those_that_are_alone(processes: int, alone_ones: int, others: int) -> None:
    first, later = list(range(alone_ones)), list(range(100, 100 + others))
    order = alone.dealt(first, later, processes)
    assert sorted(order) == first + later
    for number in range(processes):  # as pytest-xdist does
        size = len(order) // (processes - number)
        part, order = order[:size], order[size:]
        assert (
            [test for test in part if test < 100] == part[: len(first[number::processes])] == first[number::processes]
        )


def test_no_test_is_lost_where_there_are_more_processes() -> None:
    assert sorted(alone.dealt([1, 2, 3], [4], 40)) == sorted(alone.dealt([1, 2, 3, 4], [], 3)) == [1, 2, 3, 4]
