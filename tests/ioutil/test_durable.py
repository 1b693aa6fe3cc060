# SPDX-License-Identifier: Apache-2.0
"""Records of durable ranges: what a change waits for before it begins."""

import errno
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imageio_daemon.units import KiB, MiB
from ioutil_ext import lib
from tests.support.durable import Record
from tests.support.polling import eventually

from .engine_driver import Failed, Image
from .syscall_table import replaced

PAGE = 4 * KiB
SIZE = 64 * MiB
#: Of ioutil_ext/durable: removals in 10 s that take out their own range only, and after which nothing becomes durable.
EXACT, MOST_REMOVALS = 64, 80
#: Writes of ranges to the journal that need not wait, and seconds after which each further one may come.
PROMPT_WRITES, WRITE_INTERVAL = 32, 0.01


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
    assert record.try_change(*second) == -errno.EAGAIN
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
    assert record.try_change(PAGE, 2 * PAGE) == 0
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


class FailingSync:
    """fdatasync that fails so many times, then succeeds, as the kernel does."""

    def __init__(self) -> None:
        self.failures = 0

    def fdatasync(self, fd: int) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EIO, "writeback failed")
        os.fdatasync(fd)


@pytest.fixture
def failing() -> Iterator[FailingSync]:
    failing = FailingSync()
    with replaced(fdatasync=failing.fdatasync):
        yield failing


def test_journal_whose_sync_has_failed_is_replaced_by_a_new_one(
    make_record: Callable[..., Record], failing: FailingSync
) -> None:
    """The next sync succeeds although a page is lost. A removal behind that page is not found."""
    record = make_record((0, PAGE))
    lib.iou_durable_changed(record.shared, PAGE, PAGE, 1)
    lib.iou_durable_write(record.shared)
    before = record.path.stat().st_ino
    eventually(lambda: bool(lib.iou_durable_is_due(record.shared)), "the journal should be synced")
    failing.failures = 1
    lib.iou_durable_write(record.shared)
    assert record.info().error == errno.EIO
    assert record.change(0, PAGE) == 0
    assert record.path.stat().st_ino != before
    assert record.on_disk() == [(PAGE, 2 * PAGE)]


def test_record_that_has_ended_leaves_the_journal_to_the_next_one(make_record: Callable[..., Record]) -> None:
    most = lib.IOU_DURABLE_RANGES
    small = [(MiB + 2 * number * PAGE, MiB + (2 * number + 1) * PAGE) for number in range(1, most)]
    first = make_record((0, MiB), *small)
    lib.iou_durable_changed(first.shared, 0, PAGE, 1)  # there is no room, so its journal has to be written anew
    lib.iou_durable_retain(first.shared)  # as a lane does, whose last operation ends later
    lib.iou_durable_end(first.shared)
    second = make_record((0, PAGE))
    lib.iou_durable_write(first.shared)
    assert first.change(4 * PAGE, 5 * PAGE) < 0
    lib.iou_durable_release(first.shared)
    assert second.change(0, PAGE) == 0
    assert second.path.stat().st_nlink == 1
    assert second.on_disk() == []


def test_end_writes_what_is_durable(make_record: Callable[..., Record]) -> None:
    record = make_record()
    lib.iou_durable_changed(record.shared, 0, PAGE, 1)
    lib.iou_durable_end(record.shared)
    assert record.on_disk() == [(0, PAGE)]


def test_nothing_becomes_durable_after_the_end(make_record: Callable[..., Record]) -> None:
    record = make_record()
    lib.iou_durable_end(record.shared)
    lib.iou_durable_changed(record.shared, 0, PAGE, 1)
    assert record.info().bytes == 0


# The sets


def flush(record: Record) -> None:
    lib.iou_durable_flushed(record.shared, lib.iou_durable_flush(record.shared, 0, 0), 0)


@pytest.mark.parametrize("count", [3, 17, 5000])
def test_flush_adds_ranges_between_those_that_are_durable(make_record: Callable[..., Record], count: int) -> None:
    durable = [(4 * number * PAGE, (4 * number + 1) * PAGE) for number in range(count)]
    added = [(start + 2 * PAGE, end + 2 * PAGE) for start, end in durable]
    record = make_record(*durable)
    for start, end in added:
        lib.iou_durable_changed(record.shared, start, end - start, 0)
    flush(record)
    assert record.ranges() == sorted(durable + added)
    lib.iou_durable_write(record.shared)
    assert record.on_disk() == sorted(durable + added)


def test_flush_joins_ranges_that_touch(make_record: Callable[..., Record]) -> None:
    durable = [(2 * number * PAGE, (2 * number + 1) * PAGE) for number in range(100)]
    record = make_record(*durable)
    for start, end in durable:
        lib.iou_durable_changed(record.shared, end, end - start, 0)
    flush(record)
    assert record.ranges() == [(0, 200 * PAGE)]


def ranges_of(units: bytearray) -> list[tuple[int, int]]:
    return [(found.start() * PAGE, found.end() * PAGE) for found in re.finditer(b"\x01+", units)]


@pytest.mark.parametrize("longest", [1, 3, 2000])
def test_set_has_what_was_added_and_not_taken_away(make_record: Callable[..., Record], longest: int) -> None:
    """Some 6,000 ranges with longest 1, and a few with 2,000, which take many ranges away at once."""
    choose = random.Random(longest)
    units = bytearray(24000)
    record = make_record()
    for _ in range(60000):
        count = min(choose.randint(1, longest), choose.randint(1, longest))
        start = choose.randrange(len(units) - count)
        added = choose.random() < 0.5
        units[start : start + count] = (b"\x01" if added else b"\0") * count
        if added:
            record.changed(start * PAGE, (start + count) * PAGE, durable=False)
        else:
            assert record.try_change(start * PAGE, (start + count) * PAGE) == 0
    flush(record)
    assert record.ranges() == ranges_of(units)


def test_set_loses_nothing_as_long_as_its_ranges_have_room(make_record: Callable[..., Record]) -> None:
    """Most ranges are taken away from all over the set, and as many are added in one place."""
    choose = random.Random(1)
    record = make_record()
    left, added = ([2 * (first + number) for number in range(15000)] for first in (0, 15000))
    for units in (left, added):
        choose.shuffle(units)
    for unit in left:
        record.changed(unit * PAGE, (unit + 1) * PAGE, durable=False)
    for unit in left[1000:]:
        assert record.try_change(unit * PAGE, (unit + 1) * PAGE) == 0
    for unit in added:
        record.changed(unit * PAGE, (unit + 1) * PAGE, durable=False)
    flush(record)
    assert record.ranges() == [(unit * PAGE, (unit + 1) * PAGE) for unit in sorted(left[:1000] + added)]


@pytest.fixture
def full_record(make_record: Callable[..., Record]) -> Record:
    """A record that was full of ranges of 4 KiB, and has lost them because one of 8 KiB was added before them."""
    most = lib.IOU_DURABLE_RANGES
    record = make_record(*((4 * number * PAGE, (4 * number + 1) * PAGE) for number in range(1, most + 1)))
    record.changed(0, 2 * PAGE, durable=True)
    lib.iou_durable_write(record.shared)
    assert record.ranges() == record.on_disk() == [(0, 2 * PAGE)]
    return record


def test_set_that_was_full_gets_small_ranges_only_where_they_touch(full_record: Record) -> None:
    full_record.changed(MiB, MiB + PAGE, durable=True)
    full_record.changed(2 * PAGE, 3 * PAGE, durable=True)
    full_record.changed(2 * MiB - PAGE, 2 * MiB + 3 * PAGE, durable=True)
    lib.iou_durable_write(full_record.shared)
    assert full_record.ranges() == full_record.on_disk() == [(0, 3 * PAGE), (2 * MiB, 2 * MiB + 2 * PAGE)]


def test_set_that_was_full_gets_small_ranges_again_when_it_is_empty(full_record: Record) -> None:
    assert full_record.change(0, PAGE) == full_record.change(PAGE, 2 * PAGE) == 0
    full_record.changed(MiB, MiB + PAGE, durable=True)
    assert full_record.ranges() == [(MiB, MiB + PAGE)]


# Disks in use


def test_flush_covers_nothing_for_10_seconds_while_durable_bytes_change_all_the_time(
    make_record: Callable[..., Record],
) -> None:
    record = make_record()
    for _ in range(MOST_REMOVALS):
        record.changed(0, PAGE, durable=True)
        assert record.change(0, PAGE) == 0
    record.changed(0, PAGE, durable=True)
    record.changed(MiB, 2 * MiB, durable=False)
    flush(record)
    assert record.ranges() == record.on_disk() == []

    def is_added_by_a_flush() -> bool:
        flush(record)
        return record.ranges() == [(0, PAGE), (MiB, 2 * MiB)]

    eventually(is_added_by_a_flush, "10 seconds pass")


def test_many_flushes_share_a_write_of_the_journal(make_record: Callable[..., Record]) -> None:
    record, written, started = make_record(), 0, time.monotonic()
    for number in range(1000):
        record.changed(number * PAGE, (number + 1) * PAGE, durable=True)
        if lib.iou_durable_is_due(record.shared):
            lib.iou_durable_write(record.shared)
            written += 1
    assert PROMPT_WRITES <= written <= PROMPT_WRITES + 1 + (time.monotonic() - started) / WRITE_INTERVAL


# Operations on files


@pytest.fixture
def recorded(tmp_path: Path, make_record: Callable[..., Record]) -> Iterator[tuple[Image, Record]]:
    """A file that keeps a record."""
    path = tmp_path / "image"
    path.write_bytes(bytes(MiB))
    record = make_record()
    with Image(path) as image:
        assert lib.iou_handle_durable(image.handle, record.shared) == 0
        yield image, record


def test_failed_fua_closes_the_record(recorded: tuple[Image, Record], failing: FailingSync) -> None:
    image, record = recorded
    image.write(0, bytes(PAGE), lib.IOU_FUA)
    failing.failures = 1
    with pytest.raises(Failed):
        image.write(PAGE, bytes(PAGE), lib.IOU_FUA)
    assert record.info().closed
    assert record.ranges() == [(0, PAGE)]


def test_what_was_written_without_a_sync_is_synced_a_second_later(
    make_record: Callable[..., Record], sync: Sync
) -> None:
    record = make_record()  # its journal was synced
    record.changed(0, PAGE, durable=True)
    lib.iou_durable_write(record.shared)
    assert record.on_disk() == [(0, PAGE)]
    assert not sync.reached.is_set()
    sync.holds = True
    sync.go_on.set()
    eventually(lambda: bool(lib.iou_durable_is_due(record.shared)), "the journal should be synced")
    lib.iou_durable_write(record.shared)
    assert sync.reached.is_set()
    assert not lib.iou_durable_is_due(record.shared)


def test_removal_syncs_what_was_written_before_it(make_record: Callable[..., Record]) -> None:
    record = make_record((0, PAGE))
    record.changed(PAGE, 2 * PAGE, durable=True)
    lib.iou_durable_write(record.shared)
    eventually(lambda: bool(lib.iou_durable_is_due(record.shared)), "the journal should be synced")
    assert record.change(0, PAGE) == 0
    assert not lib.iou_durable_is_due(record.shared)


def test_what_becomes_durable_during_a_sync_waits_a_second_for_the_next_one(
    make_record: Callable[..., Record], sync: Sync
) -> None:
    record = make_record()
    record.changed(0, PAGE, durable=True)
    lib.iou_durable_write(record.shared)
    eventually(lambda: bool(lib.iou_durable_is_due(record.shared)), "the journal should be synced")
    sync.holds = True
    writing = threading.Thread(target=lambda: lib.iou_durable_write(record.shared))
    writing.start()
    assert sync.reached.wait(60)
    record.changed(PAGE, 2 * PAGE, durable=True)
    sync.go_on.set()
    writing.join()
    lib.iou_durable_write(record.shared)
    assert record.on_disk() == [(0, 2 * PAGE)]
    assert not lib.iou_durable_is_due(record.shared)
