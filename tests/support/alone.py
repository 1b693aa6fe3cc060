# SPDX-License-Identifier: Apache-2.0
"""Run tests that measure time while no other process runs a test.

A plugin of pytest. Each process of pytest-xdist begins with these tests. Later, each of them would wait for the longest
running test, and no other test could begin during this wait.
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
    """Run one test in the block, either alone or at the same time as tests of other processes.

    This locks two files. The first lock is held during the wait for the second one, so that no new test begins while a
    test waits to be alone.
    """
    with (directory / "alone.py").open() as door, (directory / "__init__.py").open() as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # Processes that a test has forked also have the file open, so closing it here would not unlock it.
            fcntl.flock(room, fcntl.LOCK_UN)


def dealt(alone: Sequence[T], others: Sequence[T], processes: int) -> list[T]:
    """Return all tests in an order in which each process gets its share of both kinds, with the `alone` ones first.

    pytest-xdist gives a process without tests its share of the tests that are left.
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
    """Run no other test at the same time as one that measures time. This hook is first, so no limit counts its wait."""
    with running(alone=_is_alone(item)):
        return (yield)


def _is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None
