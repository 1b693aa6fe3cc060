# SPDX-License-Identifier: Apache-2.0
"""Records of durable ranges against a model: any changes, flushes, failures of the journal's storage, and restarts.

What the record tells is what the model has. What its journal tells, now and after a power cut, is a part of that,
wherever the file is cut. IMAGEIO_TEST_LONG=1 runs more.
"""

import errno
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from imageio_daemon.image import journal
from imageio_daemon.storage.durable import DurableRecord
from ioutil_ext import ffi, lib
from tests.ioutil.syscall_table import real_fdatasync, real_ftruncate, real_pwrite, replaced

LONG = os.environ.get("IMAGEIO_TEST_LONG") == "1"
EXAMPLES, STEPS = (3000, 60) if LONG else (60, 40)

pytestmark = pytest.mark.timeout(3600 if LONG else 600)

UNITS = 12
HEADER, NAME = "image ticket", "journal"
#: Those that run at a time and cover something.
MOST_FLUSHES = 8
#: Removals in 10 s that take out no more than they have to.
EXACT = 64
#: Removals in 10 s after which flushes cover nothing.
MOST_REMOVALS = 80

units = st.tuples(st.integers(0, UNITS - 1), st.integers(1, 5)).map(lambda at: set(range(at[0], min(UNITS, sum(at)))))
units_or_none = st.none() | units
whichever = st.integers(0, 99)
failures = st.sampled_from([(), (), ("pwrite",), ("torn",), ("fdatasync",), ("torn", "ftruncate")])


def bounds(chosen: set[int] | None) -> tuple[int, int]:
    """Return offset and length of neighbouring units; of none: 0, 0."""
    return (min(chosen), len(chosen)) if chosen else (0, 0)


def units_of(ranges: list[tuple[int, int]]) -> set[int]:
    return {unit for start, end in ranges for unit in range(start, end)}


class Disk:
    """The journal's storage: it fails when it is told to, and knows what is durable of each file."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        self._synced: dict[int, bytes] = {}

    def pwrite(self, fd: int, buffer: memoryview, offset: int) -> int:
        if "torn" in self.failing and len(buffer) > 1:
            real_pwrite(fd, buffer[: len(buffer) // 2], offset)
        self._fail("pwrite", "torn")
        return real_pwrite(fd, buffer, offset)

    def fdatasync(self, fd: int) -> None:
        self._fail("fdatasync")
        real_fdatasync(fd)
        self._synced[os.fstat(fd).st_ino] = os.pread(fd, journal.MAX_JOURNAL, 0)

    def ftruncate(self, fd: int, length: int) -> None:
        self._fail("ftruncate")
        real_ftruncate(fd, length)

    def _fail(self, *names: str) -> None:
        if self.failing.intersection(names):
            raise OSError(errno.ENOSPC, "full")

    def possible(self, path: Path) -> list[bytes]:
        """Return what a file may hold after a power cut."""
        try:
            now = path.read_bytes()
        except FileNotFoundError:
            return []
        synced = self._synced.get(path.stat().st_ino, b"")
        # One that is cut shorter than what was synced tells nothing: it counts its lines.
        return [synced, *(now[:length] for length in range(len(now) + 1))]


def told_by(text: bytes) -> set[int]:
    """Return what a journal tells; nothing, if it is damaged."""
    try:
        return units_of(journal.read(text, HEADER))
    except journal.Damaged:
        return set()


class Record(RuleBasedStateMachine):
    """A record and its model. Units of one byte."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = Disk()
        self.cleanup = ExitStack()
        disk = self.disk
        self.cleanup.enter_context(replaced(pwrite=disk.pwrite, fdatasync=disk.fdatasync, ftruncate=disk.ftruncate))
        self.directory = Path(tempfile.mkdtemp(prefix="durable-"))
        self.fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        self.path = self.directory / NAME
        self.changing: list[set[int]] = []
        self.changed: set[int] = set()
        self.flushes: list[tuple[Any, set[int]]] = []
        self.durable: set[int] = set()
        self.closed = False
        self.removals = 0
        self.failed = False  # the journal has lost something

    @initialize()
    def begin(self) -> None:
        self.record = DurableRecord.new(self.fd, NAME, HEADER, [])

    def teardown(self) -> None:
        self.disk.failing = set()
        for covered, _ in self.flushes:
            lib.iou_durable_flushed(self.record.shared, covered, errno.ECANCELED)
        self.record.end()
        self.cleanup.close()
        os.close(self.fd)
        shutil.rmtree(self.directory)

    # Changes

    @rule(chosen=units)
    def begin_change(self, chosen: set[int]) -> None:
        """Begin a change of what no other one changes. If the record refuses, nothing is changed."""
        chosen = _neighbours(chosen.difference(*self.changing))
        if not chosen:
            return
        self.removals += bool(chosen & self.durable)
        refused = lib.iou_durable_change(self.record.shared, *bounds(chosen)) != 0
        assert not refused or self.disk.failing
        self._forget(chosen, refused=refused)
        self._note_failure()
        if not refused:
            self.changing.append(chosen)
            assert not self._on_disk() & chosen, "a range is changed that the journal tells"

    def _forget(self, chosen: set[int], *, refused: bool = False) -> None:
        self.changed -= chosen
        for _, covered in self.flushes:
            covered.difference_update(chosen)
        if not refused:
            self.durable -= chosen

    @precondition(lambda self: self.changing)
    @rule(which=whichever, ends=st.sampled_from(["well", "well", "with FUA", "failed", "trim"]))
    def end_change(self, which: int, ends: str) -> None:
        chosen = self.changing.pop(which % len(self.changing))
        if ends in ("well", "with FUA"):
            lib.iou_durable_changed(self.record.shared, *bounds(chosen), ends == "with FUA")
        if ends == "with FUA" and not self.closed:
            self.durable |= chosen
        elif ends == "well" and not self.closed:
            self.changed |= chosen

    @precondition(lambda self: not self.changing)
    @rule(chosen=units)
    def make_durable(self, chosen: set[int]) -> None:
        """Change and flush, as uploads do."""
        self.begin_change(chosen)
        if self.changing:
            self.end_change(0, "well")
            self.flush(None)
            self.write()

    # Flushes

    @rule(chosen=units_or_none)
    def begin_flush(self, chosen: set[int] | None) -> None:
        covered = lib.iou_durable_flush(self.record.shared, *bounds(chosen))
        if covered == ffi.NULL:
            assert self.closed or len(self.flushes) == MOST_FLUSHES or self.removals >= MOST_REMOVALS
            return
        taken = self.changed & chosen if chosen else set(self.changed)
        self.changed -= taken
        self.flushes.append((covered, taken))

    @precondition(lambda self: self.flushes)
    @rule(which=whichever, error=st.sampled_from([0, 0, 0, 0, errno.ECANCELED, errno.EIO]))
    def end_flush(self, which: int, error: int) -> None:
        covered, taken = self.flushes.pop(which % len(self.flushes))
        lib.iou_durable_flushed(self.record.shared, covered, error)
        if error == errno.EIO:
            self._close()
        elif error == 0 and not self.closed:
            self.durable |= taken
        elif error:
            self.changed |= taken
        if self.closed:
            self.changed = set()

    @precondition(lambda self: not self.flushes)
    @rule(chosen=units_or_none)
    def flush(self, chosen: set[int] | None) -> None:
        self.begin_flush(chosen)
        if self.flushes:
            self.end_flush(0, 0)

    def _close(self) -> None:
        self.closed = True
        self.changed = set()

    # The journal

    @rule()
    def write(self) -> None:
        self.record.write()
        self._note_failure()

    @rule(failing=failures)
    def change_disk(self, failing: tuple[str, ...]) -> None:
        """Let the journal's storage fail, or work again."""
        self.disk.failing = set(failing)

    def _note_failure(self) -> None:
        """Follow a record that gave up: it may be empty for good then."""
        state = self.record.state()
        if state.error:
            self.failed = True
        if state.closed and not self.closed:
            assert self.failed
            self._close()
        if self.closed and self.failed and not state.ranges:
            self.durable = set()

    @rule(cut=st.none() | st.integers(0, 10**4))
    def restart(self, cut: int | None) -> None:
        """Die, or end in order (None), and begin with what is on the disk."""
        complete = cut is None and not self.disk.failing and not self.failed
        for covered, _ in self.flushes:
            lib.iou_durable_flushed(self.record.shared, covered, errno.ECANCELED)
        possible = self.disk.possible(self.path)
        self.record.end()
        if cut is None:
            possible = self.disk.possible(self.path)[-1:]
        told = told_by(possible[cut % len(possible) if cut is not None else 0]) if possible else set()
        assert told <= self.durable
        assert told == self.durable or not complete or self.removals > EXACT
        self.disk.failing = set()
        self.flushes, self.changed, self.changing = [], set(), []
        self.durable, self.closed, self.failed, self.removals = told, False, False, 0
        self.record = DurableRecord.new(self.fd, NAME, HEADER, _ranges(told))

    # What is told

    @invariant()
    def tells_what_is_durable(self) -> None:
        if not hasattr(self, "record"):
            return
        told = units_of(list(self.record.ranges()))
        assert told <= self.durable
        assert told == self.durable or self.removals > EXACT or self.failed

    @invariant()
    def journal_tells_no_more(self) -> None:
        assert self._on_disk() <= self.durable

    def _on_disk(self) -> set[int]:
        """Return all that the journal may tell after a power cut now."""
        return {unit for text in self.disk.possible(self.path) for unit in told_by(text)}


def _neighbours(chosen: set[int]) -> set[int]:
    """Return the first of them without a gap."""
    first = min(chosen, default=0)
    return {unit for unit in chosen if chosen >= set(range(first, unit))}


def _ranges(chosen: set[int]) -> list[tuple[int, int]]:
    starts = sorted(unit for unit in chosen if unit - 1 not in chosen)
    ends = sorted(unit + 1 for unit in chosen if unit + 1 not in chosen)
    return list(zip(starts, ends, strict=True))


def test_record_and_journal_tell_what_the_model_has() -> None:
    run_state_machine_as_test(
        Record, settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None)
    )
