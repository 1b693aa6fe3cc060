# SPDX-License-Identifier: Apache-2.0
"""Files that a thread keeps as they were last wanted."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageio_daemon.runtime import state
from imageio_daemon.runtime.file_writer import THREADS, FileWriter
from tests.support.polling import eventually

#: Seconds that nothing here takes.
SOON = 20.0


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    """The descriptor of the directory, which is the test's own."""
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture
def keeper(directory: int) -> Iterator[FileWriter]:
    made = FileWriter(directory, "things")
    yield made
    assert made.close(SOON)


class Disk:
    """A disk that works when told, in place of the system calls of the keeper. The file "first" is told on its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = state.write_file
        self.working = threading.Event()
        self.first = threading.Event()
        self.asked = threading.Event()
        self.calls = 0
        self.written: list[str] = []
        self.error: OSError | None = None
        monkeypatch.setattr("imageio_daemon.runtime.file_writer.write_file", self._write)

    def _write(self, directory: int, name: str, data: bytes) -> None:
        self.calls += 1
        self.asked.set()
        assert (self.first if name == "first" else self.working).wait(SOON)
        if self.error is not None:
            raise self.error
        self.written.append(data.decode())
        self._real(directory, name, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_file_is_written_and_removed(keeper: FileWriter, tmp_path: Path) -> None:
    assert keeper.write("a", b"1").result(SOON)
    assert (tmp_path / "a").read_bytes() == b"1"
    assert keeper.remove("a").result(SOON)
    assert os.listdir(tmp_path) == []


def test_removing_a_missing_file_is_done(keeper: FileWriter) -> None:
    assert keeper.remove("a").result(SOON)


def test_last_wish_counts_and_earlier_ones_wait_for_it(keeper: FileWriter, disk: Disk, tmp_path: Path) -> None:
    first = keeper.write("a", b"1")
    assert disk.asked.wait(SOON)
    later = [keeper.write("a", b"2"), keeper.remove("a"), keeper.write("a", b"3")]
    disk.working.set()
    assert all(done.result(SOON) for done in [first, *later])
    assert disk.written == ["1", "3"]
    assert (tmp_path / "a").read_bytes() == b"3"


def test_removal_after_a_write_that_is_under_way_wins(keeper: FileWriter, disk: Disk, tmp_path: Path) -> None:
    keeper.write("a", b"1")
    assert disk.asked.wait(SOON)
    removed = keeper.remove("a")
    disk.working.set()
    assert removed.result(SOON)
    assert os.listdir(tmp_path) == []


def test_file_that_cannot_be_written_leaves_no_older_one(
    keeper: FileWriter, disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk.working.set()
    keeper.write("a", b"old").result(SOON)
    disk.error = OSError(errno.ENOSPC, "No space left on device")
    assert not keeper.write("a", b"new").result(SOON)
    assert not keeper.write("b", b"new").result(SOON)
    assert os.listdir(tmp_path) == []
    assert caplog.messages == ["things cannot be kept in the state directory: No space left on device"]


def test_failures_after_a_success_are_told_again(
    keeper: FileWriter, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.working.set()
    for _ in range(2):
        disk.error = OSError(errno.ENOSPC, "No space left on device")
        keeper.write("a", b"new").result(SOON)
        disk.error = None
        keeper.write("a", b"new").result(SOON)
    assert len(caplog.messages) == 2


def test_file_that_cannot_be_removed_is_an_error(keeper: FileWriter, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for done in (keeper.remove("a"), keeper.write("a", b"")):
        with pytest.raises(OSError, match="directory"):
            done.result(SOON)


def test_directory_that_cannot_be_flushed_is_an_error(
    directory: int, keeper: FileWriter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = os.fsync

    def fsync(fd: int) -> None:
        if fd == directory:
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output error"):
        keeper.remove("a").result(SOON)
    assert "power cut" in caplog.text


def test_wish_whose_waiter_has_gone_is_done_all_the_same(keeper: FileWriter, disk: Disk, tmp_path: Path) -> None:
    keeper.write("a", b"1")
    assert disk.asked.wait(SOON)
    keeper.write("a", b"2").cancel()
    last = keeper.write("a", b"3")
    disk.working.set()
    assert last.result(SOON)
    assert (tmp_path / "a").read_bytes() == b"3"


def test_removal_does_not_wait_for_all_that_is_to_be_written(keeper: FileWriter, disk: Disk) -> None:
    keeper.write("first", b"")
    for number in range(THREADS - 1):
        keeper.write(f"slow-{number}", b"")
    eventually(lambda: disk.calls == THREADS, "each thread writes a file")
    waiting = [keeper.write(f"more-{number}", b"") for number in range(9)]
    removed = keeper.remove("a")
    disk.first.set()
    assert removed.result(SOON)
    disk.working.set()
    assert all(done.result(SOON) for done in waiting)


def test_close_does_what_is_wanted(directory: int, tmp_path: Path) -> None:
    made = FileWriter(directory, "things")
    made.write("a", b"")
    assert made.close(SOON)
    assert (tmp_path / "a").exists()


def test_close_does_not_wait_for_a_disk_that_hangs(directory: int, disk: Disk) -> None:
    made = FileWriter(directory, "things")
    made.write("a", b"")
    assert disk.asked.wait(SOON)
    assert not made.close(0.0)
    disk.working.set()
    assert made.close(SOON)
