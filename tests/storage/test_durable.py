# SPDX-License-Identifier: Apache-2.0
"""Records of what is durable, as backends of other servers' images use them."""

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageio_daemon.errors import Canceled, StorageError
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


def on_disk(tmp_path: Path) -> list[tuple[int, int]]:
    return journal.read((tmp_path / "journal").read_bytes(), HEADER)


async def test_flush_makes_durable_what_was_changed_before_it_began(record: DurableRecord, tmp_path: Path) -> None:
    record.changed(200, 100)
    async with record.flushing(0, 0):
        record.changed(400, 100)
    assert list(record.ranges()) == on_disk(tmp_path) == [(0, 100), (200, 300)]
    async with record.flushing(0, 0):
        pass
    assert list(record.ranges()) == [(0, 100), (200, 300), (400, 500)]


async def test_flush_of_a_range_makes_that_range_durable(record: DurableRecord) -> None:
    record.changed(200, 100)
    async with record.flushing(250, 100):
        pass
    assert list(record.ranges()) == [(0, 100), (250, 300)]
    async with record.flushing(0, 0):
        pass
    assert list(record.ranges()) == [(0, 100), (200, 300)]


async def test_change_during_a_flush_is_not_durable_by_it(record: DurableRecord) -> None:
    record.changed(200, 100)
    async with record.flushing(0, 0):
        await record.changing(250, 10)
        record.changed(250, 10)
    assert list(record.ranges()) == [(0, 100), (200, 250), (260, 300)]


async def test_flushes_that_overlap_cover_what_was_changed_before_each(record: DurableRecord) -> None:
    record.changed(200, 10)
    async with record.flushing(0, 0):
        record.changed(300, 10)
        async with record.flushing(0, 0):
            pass
        assert list(record.ranges()) == [(0, 100), (300, 310)]
    assert list(record.ranges()) == [(0, 100), (200, 210), (300, 310)]


@pytest.mark.parametrize("error", [StorageError(errno.EIO, "flush", "nbd"), RuntimeError(), asyncio.CancelledError()])
async def test_flush_of_which_nobody_knows_whether_it_failed_closes_the_record(
    record: DurableRecord, error: BaseException
) -> None:
    record.changed(200, 100)
    with pytest.raises(type(error)):
        async with record.flushing(0, 0):
            raise error
    assert record.state().closed
    async with record.flushing(0, 0):
        pass
    record.changed(400, 100, durable=True)
    assert list(record.ranges()) == [(0, 100)]


async def test_flush_that_was_cancelled_before_it_began_leaves_its_ranges_to_the_next_one(
    record: DurableRecord,
) -> None:
    record.changed(200, 100)

    async def cancelled() -> None:
        async with record.flushing(0, 0):
            await record.changing(200, 10)
            raise Canceled

    with pytest.raises(Canceled):
        await cancelled()
    async with record.flushing(0, 0):
        pass
    assert list(record.ranges()) == [(0, 100), (210, 300)]


async def test_removal_is_on_disk_before_a_change_begins(record: DurableRecord, tmp_path: Path) -> None:
    synced = []

    def sync(fd: int) -> None:
        os.fdatasync(fd)
        synced.append(on_disk(tmp_path))

    with replaced(fdatasync=sync):
        await record.changing(50, 10)
    assert synced == [[(0, 50), (60, 100)]]


async def test_loop_goes_on_while_a_removal_is_written(record: DurableRecord) -> None:
    go_on = threading.Event()

    def sync(fd: int) -> None:
        assert go_on.wait(60)
        os.fdatasync(fd)

    with replaced(fdatasync=sync):
        waiting = [asyncio.ensure_future(record.changing(place, 10)) for place in (50, 55)]
        await asyncio.sleep(0)
        await record.changing(200, 10)
        assert list(record.ranges(100)) == []
        record.state()
        go_on.set()
        await asyncio.gather(*waiting)


async def test_change_is_refused_if_the_journal_can_neither_be_written_nor_removed(
    record: DurableRecord, tmp_path: Path
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EROFS, "on purpose")

    path, kept = tmp_path / "journal", tmp_path / "kept"
    path.rename(kept)
    path.mkdir()  # which unlink(2) does not remove
    with replaced(pwrite=fail), pytest.raises(StorageError, match="out of what is durable"):
        await record.changing(50, 10)
    assert list(record.ranges()) == [(0, 100)]
    path.rmdir()
    await record.changing(50, 10)  # there is nothing to tell it any more
    assert list(record.ranges()) == []


async def test_ranges_that_grow_while_they_are_told_are_told_once(
    record: DurableRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "BATCH", 1)
    ranges = record.ranges()
    assert next(ranges) == (0, 100)
    record.changed(100, 50, durable=True)
    assert list(ranges) == [(100, 150)]


async def test_record_can_be_used_by_others_after_its_end(directory: int) -> None:
    record = DurableRecord.new(directory, "journal", HEADER, [(0, 100)])
    flushing = record.flushing(0, 0)
    async with flushing:
        record.end()
    record.write()
    assert list(record.ranges()) == [(0, 100)]
    assert not record.is_due
    with pytest.raises(StorageError):
        await record.changing(0, 10)


async def test_no_record_takes_all_calls() -> None:
    await NO_RECORD.changing(0, 10)
    NO_RECORD.changed(0, 10, durable=True)
    async with NO_RECORD.flushing(0, 0):
        pass
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
