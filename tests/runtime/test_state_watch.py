# SPDX-License-Identifier: Apache-2.0
"""A state directory is probed while the daemon runs."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageio_daemon.runtime import state as module
from imageio_daemon.runtime.state import StateDirectory, StateWatch, make_directory, open_state
from tests.support.polling import eventually


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "state"
    assert make_directory(str(made))
    return made


@pytest.fixture
def state(path: Path) -> Iterator[StateDirectory]:
    opened = open_state(str(path))
    yield opened
    opened.close()


def test_directory_that_can_be_written_is_well_and_stays_as_it_is(state: StateDirectory, path: Path) -> None:
    watch = StateWatch(state, "")
    assert watch.why() == ""
    assert watch.close(10)
    assert os.listdir(path) == ["version"]


def test_no_directory_has_the_reason_of_the_start() -> None:
    watch = StateWatch(None, "it is read-only")
    assert watch.why() == "it is read-only"
    assert watch.close(0)


def test_what_changes_is_seen(state: StateDirectory, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_INTERVAL", 0.01)
    watch = StateWatch(state, "")
    path.chmod(0o711)
    eventually(lambda: watch.why() == "expected mode 0700: it is 0711", "the mode is seen")
    path.chmod(0o700)
    eventually(lambda: watch.why() == "", "all is well")
    path.rename(path.with_name("away"))
    eventually(lambda: watch.why() == "No such file or directory", "that it is away is seen")
    path.mkdir(mode=0o700)
    eventually(lambda: watch.why() == "another directory has its path now", "the other one is seen")
    assert watch.close(10)


def test_disk_that_takes_less_than_a_block_is_full(state: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda fd, data: len(data) - 1)
    watch = StateWatch(state, "")
    assert watch.why() == "No space left on device"
    assert watch.close(10)


def test_disk_that_does_not_answer_is_told_and_keeps_nobody(
    state: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROBE_INTERVAL", 0.01)
    monkeypatch.setattr(module, "SILENT", 0.05)
    watch, goes_on = StateWatch(state, ""), threading.Event()
    monkeypatch.setattr(state, "probe", goes_on.wait)
    eventually(lambda: watch.why() == "it does not answer", "the silence is told")
    assert not watch.close(0)
    goes_on.set()
    assert watch.close(10)
    assert watch.why() == ""
