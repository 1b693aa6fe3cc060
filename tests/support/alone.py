# SPDX-License-Identifier: Apache-2.0
"""Tests that measure time wait for the tests of other processes, and those wait for them."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
