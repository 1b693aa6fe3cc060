# SPDX-License-Identifier: Apache-2.0
"""Tests that measure time wait for the tests of other processes, and those wait for them.

A plugin of pytest. Each process of pytest-xdist begins with tests that want to be alone: later, each of them would wait
for the longest of the tests that run, while nothing else begins.
"""

import fcntl
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

DIRECTORY = Path(__file__).parent


@contextmanager
def running(directory: Path = DIRECTORY, *, alone: bool) -> Iterator[None]:
    """Run one test: beside tests of other processes, or alone.

    Two locks, of files that are there already. The first is held while one waits for the second: a test that wants to
    be alone keeps new ones from starting meanwhile.
    """
    with (directory / "alone.py").open() as door, (directory / "__init__.py").open() as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # Processes that a test has forked have the file open, too: closing it here would not unlock it.
            fcntl.flock(room, fcntl.LOCK_UN)


def dealt(alone: Sequence[T], others: Sequence[T], processes: int) -> list[T]:
    """Return all tests in an order in which each process has its part of both, those that are alone first.

    pytest-xdist gives each process so many of those that are left: one part for each process without any.
    """
    left = iter(others)
    order: list[T] = []
    for number in range(processes):
        part = (len(alone) + len(others) - len(order)) // (processes - number)
        mine = alone[number::processes]
        order += [*mine, *islice(left, max(0, part - len(mine)))]
    return [*order, *left]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes > 1:
        alone = [item for item in items if _is_alone(item)]
        items[:] = dealt(alone, [item for item in items if not _is_alone(item)], processes)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let no other test run beside one that measures time. First: its time limit begins when it runs."""
    with running(alone=_is_alone(item)):
        return (yield)


def _is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None
