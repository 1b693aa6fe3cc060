# SPDX-License-Identifier: Apache-2.0
"""Who has the record of an image: one ticket at a time, and none while two may write."""

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from imageio_daemon.errors import StorageError
from imageio_daemon.image.blake2 import short_hash
from imageio_daemon.runtime import state
from imageio_daemon.storage.backend import Backend, BackendInfo
from imageio_daemon.storage.durable import NO_RECORD, DurableRecord
from imageio_daemon.transfers import durable_records
from imageio_daemon.transfers.durable_records import DurableRecords, RecordWriter
from imageio_daemon.transfers.ticket import Access, Ticket
from ioutil_ext import lib
from tests.support.backends import MemoryBackend
from tests.support.polling import eventually

SIZE = 1000


class Image(MemoryBackend):
    """An image that has an identity."""

    def __init__(self, name: str = "image", *, can_flush: bool = True) -> None:
        super().__init__(bytes(SIZE))
        self.name = name
        self.can_flush = can_flush

    @property
    def info(self) -> BackendInfo:
        size = len(self.content)
        return BackendInfo(size, 1, True, True, False, can_flush=self.can_flush, identity=self.name, lasting=self.name)


def ticket(ticket_id: str) -> Ticket:
    return Ticket(
        ticket_id=ticket_id, url="file:///disk", size=SIZE, ops=(Access.WRITE,), timeout=300, inactivity_timeout=60
    )


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    return tmp_path / "durable"


@pytest.fixture
def records(tmp_path: Path) -> Iterator[DurableRecords]:
    opened = state.open_state(str(tmp_path))
    assert opened is not None
    yield DurableRecords(opened, wanted=True)
    opened.close()


Open = Callable[..., Awaitable[RecordWriter]]


@pytest.fixture
def open_image(records: DurableRecords) -> Open:
    async def open_one(ticket_id: str, image: Backend | None = None) -> RecordWriter:
        writer = await records.open(ticket(ticket_id), image or Image())
        assert writer is not None
        return writer

    return open_one


def write(writer: RecordWriter, start: int, end: int) -> None:
    """Let a range be durable, and the journal tell it."""
    lib.iou_durable_changed(writer.record.shared, start, end - start, 1)
    writer.record.write()


async def test_record_is_found_again_by_image_and_ticket(records: DurableRecords, open_image: Open) -> None:
    first = await open_image("a")
    write(first, 10, 20)
    await records.close(first)
    second = await open_image("a")
    assert list(second.record.ranges()) == [(10, 20)]
    await records.close(second)
    other = await open_image("b")
    assert list(other.record.ranges()) == []
    await records.close(other)


async def test_image_that_two_tickets_may_write_has_no_journal(
    records: DurableRecords, open_image: Open, journals: Path
) -> None:
    writers = [await open_image("a")]
    write(writers[0], 10, 20)
    writers += [await open_image(name) for name in "bc"]
    assert list(journals.iterdir()) == []
    assert [writer.record.state().bytes for writer in writers] == [0, 0, 0]
    for writer in writers:
        await records.close(writer)


class Made:
    """Records that wait until the test lets them be made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self._real = DurableRecord.new
        monkeypatch.setattr(DurableRecord, "new", self._new)

    def _new(self, directory: int, name: str, header: str, ranges: Sequence[tuple[int, int]]) -> DurableRecord:
        self.reached.set()
        assert self.go_on.wait(60)
        return self._real(directory, name, header, ranges)


async def test_image_is_not_written_before_the_record_of_another_ticket_is_void(
    records: DurableRecords, open_image: Open, journals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await open_image("a")
    write(before, 10, 20)
    await records.close(before)
    made = Made(monkeypatch)
    opening = [asyncio.ensure_future(open_image("a"))]
    await asyncio.to_thread(made.reached.wait, 60)
    opening += [asyncio.ensure_future(open_image(name)) for name in "bc"]
    done, _ = await asyncio.wait(opening, timeout=0.1)
    assert not done
    made.go_on.set()
    writers = await asyncio.gather(*opening)
    assert list(journals.iterdir()) == []
    for writer in writers:
        await records.close(writer)


async def test_open_that_is_cancelled_leaves_the_image_to_others(
    records: DurableRecords, open_image: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(monkeypatch)
    opening = asyncio.ensure_future(open_image("a"))
    await asyncio.to_thread(made.reached.wait, 60)
    opening.cancel()
    made.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    writer = await open_image("b")
    assert writer.record is not NO_RECORD
    await records.close(writer)


async def test_record_that_could_not_be_removed_is_removed_before_the_next_ticket_writes(
    records: DurableRecords, open_image: Open, journals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await open_image("a")
    write(first, 10, 20)

    def fail(_: DurableRecord) -> None:
        raise StorageError(errno.EROFS, "remove", "journal")

    with monkeypatch.context() as broken:
        broken.setattr(DurableRecord, "void", fail)
        with pytest.raises(StorageError):
            await open_image("b")
    assert len(list(journals.iterdir())) == 1
    second = await open_image("b")
    assert list(journals.iterdir()) == []
    for writer in (first, second):
        await records.close(writer)


async def test_image_that_is_written_without_a_record_has_no_journal(
    records: DurableRecords, open_image: Open, journals: Path
) -> None:
    first = await open_image("a")
    write(first, 10, 20)
    await records.close(first)
    second = await open_image("a", Image(can_flush=False))
    assert second.record is NO_RECORD
    assert list(journals.iterdir()) == []
    await records.close(second)


async def test_journal_that_cannot_be_removed_keeps_the_image_from_being_written(
    records: DurableRecords, open_image: Open, journals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await open_image("a")
    await records.close(first)

    def fail(directory: int, name: str) -> None:
        raise OSError(errno.EROFS, "on purpose")

    with monkeypatch.context() as broken:
        broken.setattr(durable_records, "remove_file", fail)
        with pytest.raises(StorageError):
            await open_image("a", Image(can_flush=False))
    again = await open_image("a")
    assert again.record is not NO_RECORD
    await records.close(again)


async def test_image_whose_record_cannot_be_made_has_no_journal(
    records: DurableRecords, open_image: Open, journals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await open_image("a")
    write(first, 10, 20)
    await records.close(first)

    def fail(*_: object) -> DurableRecord:
        raise StorageError(errno.ENOMEM, "keep", "journal")

    monkeypatch.setattr(DurableRecord, "new", fail)
    assert records.why_not_kept() == ""
    again = await open_image("a")
    assert again.record is NO_RECORD
    assert list(journals.iterdir()) == []
    assert records.why_not_kept() == "the record of an image cannot be made"
    await records.close(again)
    assert records.why_not_kept() == ""


async def test_journal_that_cannot_be_written_is_told_until_the_image_is_closed(
    records: DurableRecords, open_image: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await open_image("a")
    failed = writer.record.state()._replace(error=errno.ENOSPC)
    monkeypatch.setattr(writer.record, "state", lambda: failed)
    assert records.why_not_kept() == "No space left on device"
    monkeypatch.undo()
    await records.close(writer)
    assert records.why_not_kept() == ""


async def test_two_tickets_may_write_an_image_without_records(records: DurableRecords, open_image: Open) -> None:
    writers = [await open_image(name, Image(can_flush=False)) for name in "ab"]
    for writer in writers:
        await records.close(writer)


class Export(Image):
    """An image that another server has, whose size it may change."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.content = bytearray(size)

    @property
    def info(self) -> BackendInfo:
        return replace(super().info, identity=None, can_grow=False)


async def test_export_of_another_size_is_another_image(records: DurableRecords, open_image: Open) -> None:
    first = await open_image("a", Export(SIZE))
    write(first, 10, 20)
    await records.close(first)
    second = await open_image("a", Export(2 * SIZE))
    assert list(second.record.ranges()) == []
    await records.close(second)


async def test_export_that_two_tickets_may_write_is_one_image_whatever_its_size(
    records: DurableRecords, open_image: Open
) -> None:
    writers = [await open_image("a", Export(SIZE)), await open_image("b", Export(2 * SIZE))]
    write(writers[0], 10, 20)
    assert [writer.record.state().bytes for writer in writers] == [0, 0]
    for writer in writers:
        await records.close(writer)


async def old_journal(records: DurableRecords, open_image: Open, journals: Path) -> Path:
    """Make a journal that is not in use, and as old as can be."""
    await records.close(await open_image("a"))
    (journal,) = journals.iterdir()
    os.utime(journal, (0, 0))
    return journal


async def test_old_journals_are_removed_while_the_daemon_runs(
    records: DurableRecords, open_image: Open, journals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_records, "TIDY_INTERVAL", 0)
    for name in ("old", "new"):
        await records.close(await open_image("a", Image(name)))
    used = await open_image("a", Image("used"))
    for path in journals.iterdir():
        if path.name != short_hash("new"):
            os.utime(path, (0, 0))
    records.watch()
    expected = {short_hash(name) for name in ("new", "used")}
    eventually(lambda: {path.name for path in journals.iterdir()} == expected, "the old one is removed")
    await records.close(used)


async def test_old_journal_whose_record_is_opened_while_it_is_removed_stays(
    records: DurableRecords, open_image: Open, journals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = await old_journal(records, open_image, journals)
    monkeypatch.setattr(durable_records, "TIDY_INTERVAL", 0)
    found, go_on, tidy = threading.Event(), threading.Event(), durable_records._tidy

    def tidy_slowly(directory: int, remove: durable_records.Remove) -> None:
        def remove_later(*journal: Any) -> None:
            found.set()
            go_on.wait(60)
            remove(*journal)

        tidy(directory, remove_later)

    monkeypatch.setattr(durable_records, "_tidy", tidy_slowly)
    records.watch()
    assert await asyncio.to_thread(found.wait, 60)
    writer = await open_image("a")
    go_on.set()
    eventually(lambda: not records.working, "the removal has ended")
    assert journal.exists()
    await records.close(writer)


async def test_too_many_journals_are_removed(
    records: DurableRecords, open_image: Open, journals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_records, "TIDY_INTERVAL", 0)
    monkeypatch.setattr(durable_records, "MOST_JOURNALS", 2)
    for name in "abcd":
        await records.close(await open_image("a", Image(name)))
    records.watch()
    eventually(lambda: len(list(journals.iterdir())) == 2, "the oldest are removed")


async def test_journals_that_cannot_be_removed_are_told(
    records: DurableRecords, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "on purpose")

    monkeypatch.setattr(durable_records, "TIDY_INTERVAL", 0)
    monkeypatch.setattr(durable_records, "_tidy", fail)
    records.watch()
    eventually(lambda: "cannot be removed" in caplog.text, "it is logged")


async def test_watch_goes_on_after_a_time_without_threads(
    records: DurableRecords, open_image: Open, journals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = await old_journal(records, open_image, journals)
    monkeypatch.setattr(durable_records, "TIDY_INTERVAL", 0)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        records.watch()
    assert journal.exists()
    records.watch()
    eventually(lambda: not journal.exists(), "it is removed")


async def test_image_is_left_to_others_after_a_time_without_threads(records: DurableRecords, open_image: Open) -> None:
    writer = await open_image("a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        closing = asyncio.create_task(records.close(writer))
        await asyncio.wait([closing], timeout=0.01)
    await asyncio.wait_for(closing, 10)
    second = await open_image("b")
    assert not second.shared
    await records.close(second)


async def test_watch_does_not_wait_for_a_disk_that_hangs(
    records: DurableRecords, open_image: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, calls = threading.Event(), []

    def write_slowly(record: DurableRecord) -> None:
        calls.append(record)
        hanging.wait(60)

    monkeypatch.setattr(DurableRecord, "is_due", True)
    monkeypatch.setattr(DurableRecord, "write", write_slowly)
    writer = await open_image("a")
    for _ in range(3):
        records.watch()
    eventually(lambda: len(calls) == 1, "it is written")
    hanging.set()

    def is_written_again() -> bool:
        records.watch()
        return len(calls) > 1

    eventually(is_written_again, "it is written again")
    await records.close(writer)
