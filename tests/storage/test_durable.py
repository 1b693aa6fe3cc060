# SPDX-License-Identifier: Apache-2.0
"""Records of what is durable, as the daemon has them; C tells them of changes and flushes."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from imageio_daemon.errors import StorageError
from imageio_daemon.image import journal
from imageio_daemon.storage import durable
from imageio_daemon.storage.durable import NO_RECORD, DurableRecord
from ioutil_ext import lib
from tests.ioutil.syscall_table import replaced

HEADER = "image ticket"


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture
def record(directory: int) -> Iterator[DurableRecord]:
    """A record of which 0..100 is durable."""
    made = DurableRecord.new(directory, "journal", HEADER, [(0, 100)])
    yield made
    made.end()


def change(record: DurableRecord, offset: int, length: int) -> int:
    """Take a range out before its change; return 0 or a negative errno."""
    return int(lib.iou_durable_change(record.shared, offset, length))


def changed(record: DurableRecord, offset: int, length: int, *, durable: bool = False) -> None:
    lib.iou_durable_changed(record.shared, offset, length, durable)


@contextmanager
def flushing(record: DurableRecord, offset: int = 0, length: int = 0, *, error: int = 0) -> Iterator[None]:
    """Run the block during a flush that ends with an errno, and write the record."""
    covered = lib.iou_durable_flush(record.shared, offset, length)
    yield
    lib.iou_durable_flushed(record.shared, covered, error)
    record.write()


def on_disk(tmp_path: Path) -> list[tuple[int, int]]:
    return journal.read((tmp_path / "journal").read_bytes(), HEADER)


def test_flush_makes_durable_what_was_changed_before_it_began(record: DurableRecord, tmp_path: Path) -> None:
    changed(record, 200, 100)
    with flushing(record):
        changed(record, 400, 100)
    assert list(record.ranges()) == on_disk(tmp_path) == [(0, 100), (200, 300)]
    with flushing(record):
        pass
    assert list(record.ranges()) == [(0, 100), (200, 300), (400, 500)]


def test_flush_of_a_range_makes_that_range_durable(record: DurableRecord) -> None:
    changed(record, 200, 100)
    with flushing(record, 250, 100):
        pass
    assert list(record.ranges()) == [(0, 100), (250, 300)]
    with flushing(record):
        pass
    assert list(record.ranges()) == [(0, 100), (200, 300)]


def test_change_during_a_flush_is_not_durable_by_it(record: DurableRecord) -> None:
    changed(record, 200, 100)
    with flushing(record):
        assert change(record, 250, 10) == 0
        changed(record, 250, 10)
    assert list(record.ranges()) == [(0, 100), (200, 250), (260, 300)]


def test_flushes_that_overlap_cover_what_was_changed_before_each(record: DurableRecord) -> None:
    changed(record, 200, 10)
    with flushing(record):
        changed(record, 300, 10)
        with flushing(record):
            pass
        assert list(record.ranges()) == [(0, 100), (300, 310)]
    assert list(record.ranges()) == [(0, 100), (200, 210), (300, 310)]


def test_flush_of_which_nobody_knows_whether_it_failed_closes_the_record(record: DurableRecord) -> None:
    changed(record, 200, 100)
    with flushing(record, error=errno.EIO):
        pass
    assert record.state().closed
    with flushing(record):
        pass
    changed(record, 400, 100, durable=True)
    assert list(record.ranges()) == [(0, 100)]


def test_flush_that_was_cancelled_before_it_began_leaves_its_ranges_to_the_next_one(record: DurableRecord) -> None:
    changed(record, 200, 100)
    with flushing(record, error=errno.ECANCELED):
        assert change(record, 200, 10) == 0
    with flushing(record):
        pass
    assert list(record.ranges()) == [(0, 100), (210, 300)]


def test_removal_is_on_disk_before_a_change_begins(record: DurableRecord, tmp_path: Path) -> None:
    synced = []

    def sync(fd: int) -> None:
        os.fdatasync(fd)
        synced.append(on_disk(tmp_path))

    with replaced(fdatasync=sync):
        assert change(record, 50, 10) == 0
    assert synced == [[(0, 50), (60, 100)]]


def test_change_is_refused_if_the_journal_can_neither_be_written_nor_removed(
    record: DurableRecord, tmp_path: Path
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EROFS, "on purpose")

    path, kept = tmp_path / "journal", tmp_path / "kept"
    path.rename(kept)
    path.mkdir()  # which unlink(2) does not remove
    with replaced(pwrite=fail):
        assert change(record, 50, 10) < 0
    assert list(record.ranges()) == [(0, 100)]
    path.rmdir()
    assert change(record, 50, 10) == 0  # there is nothing to tell it any more
    assert list(record.ranges()) == []


def test_ranges_that_grow_while_they_are_told_are_told_once(
    record: DurableRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "BATCH", 1)
    ranges = record.ranges()
    assert next(ranges) == (0, 100)
    changed(record, 100, 50, durable=True)
    assert list(ranges) == [(100, 150)]


def test_record_can_be_used_by_others_after_its_end(directory: int) -> None:
    record = DurableRecord.new(directory, "journal", HEADER, [(0, 100)])
    with flushing(record):
        record.end()
    assert list(record.ranges()) == [(0, 100)]
    assert not record.is_due
    assert change(record, 0, 10) < 0


def test_no_record_takes_all_calls() -> None:
    NO_RECORD.write()
    NO_RECORD.void()
    NO_RECORD.end()
    assert not NO_RECORD.is_due
    assert list(NO_RECORD.ranges()) == []
    assert NO_RECORD.state().bytes == 0


def test_void_record_has_no_journal(record: DurableRecord, tmp_path: Path) -> None:
    record.void()
    assert not (tmp_path / "journal").exists()
    assert record.state() == (0, 0, True, 0)
    record.void()


@pytest.mark.parametrize(
    ("name", "header", "ranges"),
    [
        ("", HEADER, []),
        (".hidden", HEADER, []),
        ("a/b", HEADER, []),
        ("x" * 255, HEADER, []),
        ("journal", "", []),
        ("journal", "two\nlines", []),
        ("journal", "x" * 256, []),
        ("journal", HEADER, [(10, 10)]),
        ("journal", HEADER, [(0, 2**63)]),
        ("journal", HEADER, [(0, 10), (10, 20)]),
        ("journal", HEADER, [(20, 30), (0, 10)]),
        ("journal", HEADER, [(2 * n, 2 * n + 1) for n in range(lib.IOU_DURABLE_RANGES + 1)]),
    ],
)
def test_bad_arguments_are_refused(directory: int, name: str, header: str, ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(StorageError) as refused:
        DurableRecord.new(directory, name, header, ranges)
    assert refused.value.errno == errno.EINVAL
    assert os.listdir(directory) == []
