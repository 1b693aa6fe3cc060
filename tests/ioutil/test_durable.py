# SPDX-License-Identifier: Apache-2.0
"""Records of durable ranges: what a change waits for before it begins."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imageio_daemon.units import KiB, MiB
from ioutil_ext import lib
from tests.support.durable import Record
from tests.support.polling import eventually

from .syscall_table import replaced

PAGE = 4 * KiB
SIZE = 64 * MiB
#: EXACT of ioutil_ext/durable/keeping.c: removals that take out their own range only.
EXACT = 64


@pytest.fixture
def make_record(tmp_path: Path) -> Iterator[Callable[..., Record]]:
    made: list[Record] = []

    def make(*ranges: tuple[int, int]) -> Record:
        made.append(Record(tmp_path, list(ranges)))
        return made[-1]

    yield make
    for record in made:
        record.close()


class Sync:
    """Syncs of the journal that wait until the test lets them go on."""

    def __init__(self) -> None:
        self.holds = False
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def fdatasync(self, fd: int) -> None:
        if self.holds:
            self.reached.set()
            assert self.go_on.wait(60)
        os.fdatasync(fd)


@pytest.fixture
def sync() -> Iterator[Sync]:
    held = Sync()
    with replaced(fdatasync=held.fdatasync):
        yield held
        held.go_on.set()


def changing(record: Record, start: int, end: int, done: list[tuple[int, int]]) -> threading.Thread:
    """Start a change in a thread, which notes its end."""

    def change() -> None:
        assert record.change(start, end) == 0
        done.append((start, end))

    thread = threading.Thread(target=change)
    thread.start()
    return thread


def check_waits(record: Record, sync: Sync, first: tuple[int, int], second: tuple[int, int]) -> None:
    """Check that the second change does not begin before the first has taken both out of the journal durably."""
    done: list[tuple[int, int]] = []
    sync.holds = True
    threads = [changing(record, *first, done)]
    assert sync.reached.wait(60)
    assert lib.iou_durable_waits(record.shared, second[0], second[1] - second[0])
    threads.append(changing(record, *second, done))
    threads[1].join(0.1)
    assert done == []
    sync.go_on.set()
    for thread in threads:
        thread.join()
    assert not any(start < second[1] and second[0] < end for start, end in record.on_disk())


def test_change_waits_for_the_removal_of_more_that_another_one_writes(
    make_record: Callable[..., Record], sync: Sync
) -> None:
    record = make_record((0, SIZE))
    for number in range(EXACT + 8):  # the next one takes out 2 MiB
        assert record.change(2 * number * PAGE, (2 * number + 1) * PAGE) == 0
    offset = 32 * MiB
    check_waits(record, sync, (offset, offset + PAGE), (offset + PAGE, offset + 2 * PAGE))


def test_change_waits_for_a_journal_that_is_written_anew_without_what_the_record_has_lost(
    make_record: Callable[..., Record], sync: Sync
) -> None:
    most = lib.IOU_DURABLE_RANGES
    record = make_record(*((2 * number * PAGE, (2 * number + 1) * PAGE) for number in range(most)))
    end = 2 * most * PAGE
    record.changed(end, end + PAGE, durable=True)  # one more than there is room for
    assert record.info().ranges < most
    assert (0, PAGE) in record.on_disk()
    done: list[tuple[int, int]] = []
    sync.holds = True
    writing = threading.Thread(target=lambda: lib.iou_durable_write(record.shared))
    writing.start()
    assert sync.reached.wait(60)
    change = changing(record, 0, PAGE, done)
    change.join(0.1)
    assert done == []
    sync.go_on.set()
    writing.join()
    change.join()
    assert (0, PAGE) not in record.on_disk()


def test_other_changes_do_not_wait_for_a_removal(make_record: Callable[..., Record], sync: Sync) -> None:
    record = make_record((0, PAGE))
    sync.holds = True
    first = changing(record, 0, PAGE, [])
    assert sync.reached.wait(60)
    assert not lib.iou_durable_waits(record.shared, PAGE, PAGE)
    assert record.change(PAGE, 2 * PAGE) == 0
    sync.go_on.set()
    first.join()


def test_removal_that_cannot_be_written_leaves_no_journal(make_record: Callable[..., Record]) -> None:
    record = make_record((0, SIZE))

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "on purpose")

    with replaced(fdatasync=fail):
        assert record.change(0, PAGE) == 0
    assert not record.path.exists()
    info = record.info()
    assert (info.bytes, info.closed, info.error) == (0, 1, errno.EIO)


def test_record_that_was_made_void_reports_no_failure(make_record: Callable[..., Record]) -> None:
    record = make_record()
    record.changed(0, PAGE, durable=True)
    lib.iou_durable_write(record.shared)
    record.changed(PAGE, 2 * PAGE, durable=True)
    eventually(lambda: bool(lib.iou_durable_is_due(record.shared)), "the journal should be synced")
    assert lib.iou_durable_void(record.shared) == 0
    lib.iou_durable_write(record.shared)
    assert record.info().error == 0
