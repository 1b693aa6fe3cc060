# SPDX-License-Identifier: Apache-2.0
"""Which calls requests make, and in which order: recorded, one after the other."""

import errno
import mmap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ioutil_ext import ffi, lib

from ..ioutil.engine_driver import Failed
from .checker import OFFSET, Checked, u64s
from .crash import Barrier, Change, Recorder
from .disk import Disk, Layer, create, run

CLUSTER = 65536


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    path = create(tmp_path / "image", "16M")
    made = Recorder(path, path.read_bytes())
    with made.installed():
        yield made


@pytest.fixture
def disk(recorder: Recorder) -> Iterator[Disk]:
    with Disk([Layer(Path(recorder.path))], shared=True) as disk:
        yield disk


def host_of(recorder: Recorder, number: int) -> int:
    """Return where a flushed guest cluster is."""
    image = Checked(recorder.content)
    return u64s(recorder.content, (image.l1[0] & OFFSET) + 8 * number, 1)[0] & OFFSET


def touches(recorder: Recorder, since: int, start: int) -> list[int]:
    """Return the events since one that change a cluster of the file."""
    found = []
    for number, event in enumerate(recorder.events[since:], since):
        if isinstance(event, Change):
            end = event.offset + len(event.data) if event.data is not None else 1 << 60
            if event.offset < start + CLUSTER and start < end:
                found.append(number)
    return found


def barriers(recorder: Recorder, since: int) -> list[int]:
    return [n for n, event in enumerate(recorder.events[since:], since) if isinstance(event, Barrier)]


def written(recorder: Recorder, since: int) -> list[int]:
    """Return the lengths of what was written since an event."""
    return [len(e.data) for e in recorder.events[since:] if isinstance(e, Change) and e.data is not None]


def test_first_write_copies_nothing(recorder: Recorder, disk: Disk) -> None:
    disk.write(0, b"a" * 4096)  # the file grows, and there is a table
    since = recorder.now
    disk.write(5 * CLUSTER + 8192, b"b" * 4096)
    assert written(recorder, since) == [4096]
    assert disk.read(5 * CLUSTER, CLUSTER) == bytes(8192) + b"b" * 4096 + bytes(CLUSTER - 12288)


def test_write_in_place_changes_no_table(recorder: Recorder, disk: Disk) -> None:
    disk.write(0, b"a" * CLUSTER)
    disk.flush()
    since = recorder.now
    disk.write(4096, b"b" * 4096)
    disk.flush()
    assert written(recorder, since) == [4096]
    assert len(barriers(recorder, since)) == 1


def test_barriers_of_a_flush(recorder: Recorder, disk: Disk) -> None:
    disk.write(0, b"a" * 4096)
    since = recorder.now
    disk.flush()
    first, second = barriers(recorder, since)
    tables = [e.offset for e in recorder.events[first:second] if isinstance(e, Change)]
    counts = [e.offset for e in recorder.events[since:first] if isinstance(e, Change)]
    assert counts == [2 * CLUSTER]  # the block
    image = Checked(recorder.content)
    assert sorted(tables) == [3 * CLUSTER, image.l1[0] & OFFSET]


def test_contiguous_data_is_read_at_once(recorder: Recorder, disk: Disk) -> None:
    disk.write(0, b"a" * (4 << 20))
    calls: list[tuple[int, int]] = []
    recorder.reads = lambda offset, length: calls.append((offset, length))
    # One byte past a page: memory that is not aligned is filled by way of 1 MiB that is, as for a raw file.
    buffer = memoryview(mmap.mmap(-1, (4 << 20) + mmap.PAGESIZE))[1 : (4 << 20) + 1]
    disk.run(lib.IOU_READ, 0, 4 << 20, buffer=ffi.from_buffer(buffer))
    assert buffer == b"a" * (4 << 20)
    assert [length for _, length in calls] == [1 << 20] * 4
    assert [offset - calls[0][0] for offset, _ in calls] == [0, 1 << 20, 2 << 20, 3 << 20]


def test_freed_cluster_is_left_alone_until_its_entry_is_gone(recorder: Recorder, disk: Disk) -> None:
    disk.write(0, b"a" * CLUSTER)
    disk.flush()
    host, since = host_of(recorder, 0), recorder.now
    disk.zero(0, CLUSTER)
    for number in range(10, 60):
        disk.write(number * CLUSTER, b"b" * 4096)
    assert not touches(recorder, since, host)
    since = recorder.now
    disk.flush()
    (punch,) = touches(recorder, since, host)
    assert len([barrier for barrier in barriers(recorder, since) if barrier < punch]) == 2
    disk.write(100 * CLUSTER, b"c" * CLUSTER)
    disk.flush()
    assert host_of(recorder, 100) == host


def test_freed_cluster_is_left_alone_until_its_readers_have_ended(recorder: Recorder, disk: Disk) -> None:
    disk.write(0, b"a" * CLUSTER)
    disk.flush()
    host, since = host_of(recorder, 0), recorder.now
    reading, go_on = threading.Event(), threading.Event()

    def hold(offset: int, length: int) -> None:
        if offset == host:
            reading.set()
            assert go_on.wait(20)

    recorder.reads = hold
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(disk.read(0, CLUSTER)))
    reader.start()
    assert reading.wait(20)
    disk.zero(0, CLUSTER)
    for number in range(10, 13):
        disk.write(number * CLUSTER, b"b" * CLUSTER)
        disk.flush()
    assert not touches(recorder, since, host)
    go_on.set()
    reader.join()
    assert found == [b"a" * CLUSTER]
    disk.flush()
    assert touches(recorder, since, host)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[tuple[Recorder, Disk]]:
    """A disk of 1 MiB whose clusters are compressed: a write takes a new one, and shares the old one until then."""
    (tmp_path / "source").write_bytes(b"".join(b"%07d\n" % n for n in range(1 << 17)))
    path = tmp_path / "image"
    run("qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2", tmp_path / "source", path)
    recorder = Recorder(path, path.read_bytes())
    with recorder.installed(), Disk([Layer(path)], shared=True) as disk:
        disk.read(0, 512)  # the table is in memory
        disk.write(15 * CLUSTER, b"x" * CLUSTER)  # the file has grown
        yield recorder, disk


def test_a_whole_cluster_reads_nothing_of_what_was_there(shared: tuple[Recorder, Disk]) -> None:
    recorder, disk = shared
    reads: list[tuple[int, int]] = []
    recorder.reads = lambda offset, length: reads.append((offset, length))
    since = recorder.now
    disk.write(CLUSTER, b"n" * 3 * CLUSTER)
    assert reads == []
    assert sum(written(recorder, since)) == 3 * CLUSTER


def test_a_part_of_a_cluster_is_written_with_the_rest_by_one_call(shared: tuple[Recorder, Disk]) -> None:
    recorder, disk = shared
    before, since = disk.read(CLUSTER, CLUSTER), recorder.now
    disk.write(CLUSTER + 5000, b"n" * 100)
    assert written(recorder, since) == [CLUSTER]
    assert disk.read(CLUSTER, CLUSTER) == before[:5000] + b"n" * 100 + before[5100:]


def test_data_that_was_moved_is_durable_before_its_entry(shared: tuple[Recorder, Disk]) -> None:
    recorder, disk = shared
    disk.flush()
    since = recorder.now
    disk.write(2 * CLUSTER, b"n" * CLUSTER)
    disk.flush()
    host, table = host_of(recorder, 2), (Checked(recorder.content).l1[0] & OFFSET)
    (data,), entry = touches(recorder, since, host), touches(recorder, since, table)
    assert entry
    assert any(data < barrier < entry[0] for barrier in barriers(recorder, since))


def test_open_for_writing_that_is_cancelled_reads_no_more_tables(recorder: Recorder, disk: Disk) -> None:
    disk.write(0, b"a" * CLUSTER)
    disk.close()
    table, before = Checked(recorder.content).l1[0] & OFFSET, recorder.now
    control, reads = ffi.new("iou_control *"), list[int]()

    def look(offset: int, length: int) -> None:
        reads.append(offset)
        control.canceled = cancels

    recorder.reads, cancels = look, False
    Disk([Layer(Path(recorder.path))], shared=True, control=control).close()
    assert table in reads
    reads.clear()
    cancels = True
    with pytest.raises(Failed) as caught:
        Disk([Layer(Path(recorder.path))], shared=True, control=control)
    assert caught.value.errno == errno.ECANCELED
    assert table not in reads
    assert recorder.now == before
