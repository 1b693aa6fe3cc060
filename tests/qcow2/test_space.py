# SPDX-License-Identifier: Apache-2.0
"""Which clusters of the file are taken, when they are free again, and how long the file is."""

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from ioutil_ext import ffi, lib
from tests.support.realstorage import filled, loop_device

from ..ioutil.engine_driver import Failed
from ..ioutil.syscall_table import replaced
from .checker import Checked
from .crash import Recorder, is_block
from .disk import Disk, Judged, Layer, Verdict, checked, content, create, run
from .test_concurrent import together
from .test_create import made
from .test_faults import Fault
from .test_order import CLUSTER, host_of, touches

MIB = 1 << 20


def test_a_file_is_cut_to_its_last_cluster_at_the_close(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "64M")
    with Disk(path) as disk:
        disk.write(0, b"x" * 5 * MIB)
        disk.write(5 * MIB, b"x")
        assert path.stat().st_size > 6 * MIB  # it grows ahead
    data = path.read_bytes()
    image = Checked(data)
    assert image.leaks == 0
    assert len(data) == (max(image.uses) + 1) * CLUSTER
    assert checked(path) == 0


def test_sequential_data_is_contiguous_in_the_file(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "64M")
    with Disk(path) as disk:
        for at in range(0, 32 * MIB, 128 << 10):
            disk.write(at, b"x" * (128 << 10))
    parts = json.loads(run("qemu-img", "map", "--output=json", path).stdout)
    runs = [part["length"] for part in parts if part["data"]]
    assert sum(runs) == 32 * MIB
    assert len(runs) <= 3  # a table of clusters may lie between


def test_without_fallocate_the_file_grows_all_the_same(tmp_path: Path) -> None:
    path = create(tmp_path / "image", 4 * MIB)
    recorder = Recorder(path, path.read_bytes())
    with recorder.installed():
        disk = Disk([Layer(path)], shared=True)
        recorder.fault = Fault("fallocate", errno.EOPNOTSUPP, 0, for_ever=True)
        disk.write(MIB, b"a" * MIB)
        disk.zero(MIB + 5000, 100_000)
        disk.flush()
        disk.write(0, b"b" * 100)
        expected = disk.content()
        disk.close()
    image = Checked(recorder.content)
    assert not image.wrong
    assert image.leaks == 0
    assert image.content() == expected
    assert expected[MIB : 2 * MIB] == b"a" * 5000 + bytes(100_000) + b"a" * (MIB - 105_000)


def test_a_file_stays_as_long_however_often_it_is_written(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "2M", "cluster_size=4k")
    with Disk(path) as disk:
        disk.write(0, b"x" * 2 * MIB)
        disk.flush()
    first = path.stat().st_size
    for _ in range(20):
        with Disk(path) as disk:
            disk.trim(0, 2 * MIB)
            disk.flush()
            disk.write(0, b"y" * 2 * MIB)
    assert path.stat().st_size <= 1.1 * first
    with Disk(path) as disk:
        for turn in range(200):
            disk.zero((turn % 4) * MIB // 2, MIB // 2)
            disk.write((turn % 4) * MIB // 2, bytes([turn % 250 + 1]) * (MIB // 2))
            if turn % 2:
                disk.flush()
    assert path.stat().st_size <= 1.5 * first  # what is not flushed cannot be taken again
    assert checked(path) == 0


@pytest.mark.parametrize("cluster", ["512", "4k", "64k"])
def test_a_file_stays_as_long_however_often_parts_of_clusters_are_written(tmp_path: Path, cluster: str) -> None:
    """Sessions that take new clusters for less than one, and free what they have at their end."""
    path = create(tmp_path / "image", "8M", f"cluster_size={cluster}")
    longest = []
    for turn in range(30):
        with Disk(path) as disk:
            for at in range(turn * 300, 8 * MIB - 300, 7000):
                disk.write(at, b"part" * 70)
            disk.flush()
            disk.zero(0, 8 * MIB)
        longest.append(path.stat().st_size)
    assert max(longest[10:]) <= max(longest[:10]) + MIB
    assert checked(path) == 0


def test_free_holes_of_the_file_are_taken_as_zeros(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "8M")
    with Disk(path) as disk:
        disk.write(0, b"x" * 4 * MIB)
        disk.flush()
        disk.zero(0, 2 * MIB)
    size = path.stat().st_size
    with Disk(path) as disk:
        disk.write(5 * MIB + 5000, b"y" * 100)
        assert disk.counts.copied == 0  # nothing around the bytes was written
        disk.flush()
    assert path.stat().st_size == size
    assert content(path)[5 * MIB : 5 * MIB + 6000] == bytes(5000) + b"y" * 100 + bytes(900)


def test_image_whose_counts_would_not_suffice_is_left_to_qemu(tmp_path: Path) -> None:
    """A range of 64 clusters of 512 bytes has a block: a row for their table is at most 63 long."""
    path = create(tmp_path / "image", "128M", "cluster_size=512", "refcount_bits=64")
    with pytest.raises(Judged) as caught:
        Disk(path)
    assert caught.value.verdict == Verdict("fallback", "its reference counts may not suffice for all of the disk")
    Disk(path, writable=False).close()


def test_a_client_that_never_flushes_does_not_hold_back_all_that_it_frees(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "48M", "cluster_size=512")
    with Disk(path) as disk:
        for _ in range(2):
            disk.write(0, b"x" * 40 * MIB)
            disk.zero(0, 40 * MIB)
        assert disk.counts.flushes > 0
        assert disk.counts.frees_waiting <= 65536 + 8192
        assert disk.counts.freed > 40 * MIB // 512
    assert checked(path) == 0


def test_a_request_that_failed_leaves_its_clusters_to_the_next(tmp_path: Path) -> None:
    path = create(tmp_path / "image", 4 * MIB)
    recorder = Recorder(path, path.read_bytes())
    with recorder.installed():
        disk = Disk([Layer(path)], shared=True)
        disk.write(0, b"a" * 100)
        disk.flush()
        end = len(recorder.content)
        recorder.fault = Fault("pwrite", errno.EIO, 0, for_ever=True)
        for _ in range(100):
            with pytest.raises(Failed):
                disk.write(MIB, b"b" * CLUSTER)
        recorder.fault = lambda name: None
        disk.write(MIB, b"c" * CLUSTER)
        disk.flush()
        assert len(recorder.content) == end
        disk.close()
    image = Checked(recorder.content)
    assert not image.wrong
    assert image.leaks == 0


@contextmanager
def full_device(tmp_path: Path) -> Iterator[tuple[Recorder, Disk, int]]:
    """An image in a block device of 2 MiB, and the bytes that were written until that was full."""
    device = next((path for path in Path("/dev").iterdir() if is_block(path)), None)
    if device is None:
        pytest.skip("no block device has a name here")
    path = create(tmp_path / "image", 4 * MIB)
    recorder = Recorder(path, path.read_bytes().ljust(2 * MIB, b"\xaa"), device)
    with recorder.installed():
        disk = Disk([Layer(path)], shared=True)
        data = ffi.from_buffer(b"d" * CLUSTER)
        places = range(0, 4 * MIB, CLUSTER)
        errors = [disk.attempt(lib.IOU_WRITE, at, CLUSTER, buffer=data).error for at in places]
        assert set(errors[errors.count(0) :]) == {errno.ENOSPC}
        yield recorder, disk, CLUSTER * errors.count(0)
        disk.close()
    assert len(recorder.content) == 2 * MIB
    assert not Checked(recorder.content).wrong


def test_the_end_of_a_device_is_that_of_its_space(tmp_path: Path) -> None:
    with full_device(tmp_path) as (_, disk, written):
        assert MIB < written < 2 * MIB
        disk.zero(0, CLUSTER)
        disk.flush()
        disk.write(3 * MIB, b"e" * CLUSTER)  # in its place
        assert disk.read(CLUSTER, written - CLUSTER) == b"d" * (written - CLUSTER)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_file_that_may_not_grow_has_the_space_that_it_has_freed(tmp_path: Path, code: int) -> None:
    path = create(tmp_path / "image", 4 * MIB)
    recorder = Recorder(path, path.read_bytes())
    with recorder.installed():
        disk = Disk([Layer(path)], shared=True)
        disk.write(0, b"a" * MIB)
        recorder.fault = Fault("fallocate", code, 0, for_ever=True)
        data = ffi.from_buffer(b"d" * CLUSTER)
        places = range(MIB, 3 * MIB, CLUSTER)
        errors = [disk.attempt(lib.IOU_WRITE, at, CLUSTER, buffer=data).error for at in places]
        assert set(errors[errors.count(0) :]) == {code}
        disk.zero(0, CLUSTER)
        disk.write(3 * MIB, b"e" * CLUSTER)
        expected = disk.content()
        disk.close()
    image = Checked(recorder.content)
    assert not image.wrong
    assert image.content() == expected


def test_on_a_full_device_a_write_waits_for_readers_of_what_was_freed(tmp_path: Path) -> None:
    with full_device(tmp_path) as (_, disk, written):
        ended = threading.Event()

        def read() -> None:
            while not ended.is_set():
                disk.read(0, written)

        def change() -> None:
            try:
                for turn in range(1, 200):
                    disk.zero((turn - 1) * CLUSTER % written, CLUSTER)
                    disk.write((turn - 1) * CLUSTER % written, bytes([turn]) * CLUSTER)
            finally:
                ended.set()

        together(read, read, change)


def test_on_a_full_device_a_write_fails_if_the_flush_that_would_free_clusters_fails(tmp_path: Path) -> None:
    with full_device(tmp_path) as (recorder, disk, _):
        disk.zero(0, CLUSTER)
        recorder.fault = Fault("fdatasync", errno.EIO, 0, for_ever=True)
        with pytest.raises(Failed, match="No space left"):
            disk.write(3 * MIB, b"e" * CLUSTER)


def test_what_was_written_before_the_file_system_was_full_can_be_flushed(small_filesystem: Path) -> None:
    """The L1 table of a new image is a hole."""
    path = made(small_filesystem / "image", 64 * MIB)
    with Disk(path) as disk:
        data = ffi.from_buffer(b"d" * CLUSTER)
        errors = [disk.attempt(lib.IOU_WRITE, at, CLUSTER, buffer=data).error for at in range(0, 8 * MIB, CLUSTER)]
        written = CLUSTER * errors.count(0)
        assert MIB < written < 4 * MIB
        disk.flush()
    assert checked(path) == 0
    with Disk(path, writable=False) as disk:
        assert disk.read(0, written) == b"d" * written


@pytest.mark.parametrize("make", [create, made])
def test_without_fallocate_too_what_was_written_can_be_flushed(
    make: Callable[[Path, int], Path], small_filesystem: Path
) -> None:
    """NFS before version 4.2: the file grows by a hole."""

    def unsupported(*_: int) -> int:
        raise OSError(errno.EOPNOTSUPP, "fallocate")

    path = make(small_filesystem / "image", 64 * MIB)
    with replaced(fallocate=unsupported), Disk(path) as disk:
        data = ffi.from_buffer(b"d" * CLUSTER)
        errors = [disk.attempt(lib.IOU_WRITE, at, CLUSTER, buffer=data).error for at in range(0, 8 * MIB, CLUSTER)]
        written = CLUSTER * errors.count(0)
        assert MIB < written < 4 * MIB
        disk.flush()
        assert disk.read(0, written) == b"d" * written
    assert checked(path) == 0


def test_tables_have_space_before_a_flush_writes_them(tmp_path: Path, small_filesystem: Path) -> None:
    """The free clusters are holes of the file. A flush that cannot write to one would fail all later ones."""
    below = create(tmp_path / "below", "64M")
    path = create(small_filesystem / "image", "64M", "cluster_size=4k", backing=below)
    with Disk([Layer(path, str(below)), Layer(below)]) as disk:
        disk.write(0, b"x" * MIB)
        disk.flush()
        disk.zero(0, MIB)
        disk.flush()
        with filled(small_filesystem):
            tables = [disk.attempt(lib.IOU_ZERO, at, 4096).error for at in range(8 * MIB, 20 * MIB, 2 * MIB)]
            assert set(tables) == {errno.ENOSPC}
            disk.flush()
        disk.zero(8 * MIB, 4096)
        disk.flush()
    assert checked(path) == 0


def test_a_longer_table_of_counts_that_has_no_space_fails_its_flush_alone(tmp_path: Path) -> None:
    """Free clusters that do not follow each other are no place for it."""
    path = create(tmp_path / "image", "8M", "cluster_size=512", "refcount_bits=64")
    recorder = Recorder(path, path.read_bytes())
    with recorder.installed():
        disk = Disk([Layer(path)], shared=True)
        disk.write(0, b"a" * MIB)
        disk.flush()
        recorder.fault = Fault("fallocate", errno.EOPNOTSUPP, 0, for_ever=True)  # what is freed is not punched
        for at in range(0, MIB, 1024):
            disk.zero(at, 512)
        disk.flush()
        recorder.fault = lambda name: None
        disk.write(MIB, b"b" * MIB)
        recorder.fault = Fault("fallocate", errno.ENOSPC, 0, for_ever=True)
        offsets = iter(range(2 * MIB, 8 * MIB, 512))
        while not recorder.fault.happened:
            disk.write(next(offsets), b"c" * 100)
        with pytest.raises(Failed, match="No space left"):
            disk.flush()
        recorder.fault = lambda name: None
        disk.flush()
        expected = disk.content()
        disk.close()
    image = Checked(recorder.content)
    assert not image.wrong
    assert image.content() == expected


def test_a_cluster_is_not_taken_before_its_punch_has_returned(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "16M")
    recorder = Recorder(path, path.read_bytes())
    punching, go_on = threading.Event(), threading.Event()
    with recorder.installed():
        disk = Disk([Layer(path)], shared=True)
        disk.write(0, b"a" * CLUSTER)
        disk.flush()
        host = host_of(recorder, 0)

        def hold(offset: int, length: int) -> None:
            if offset <= host < offset + length:
                punching.set()
                assert go_on.wait(60)

        recorder.punches = hold
        disk.zero(0, CLUSTER)
        flushing = threading.Thread(target=disk.flush)
        flushing.start()
        assert punching.wait(60)
        since = recorder.now
        for number in range(10, 60):
            disk.write(number * CLUSTER, b"b" * 4096)
        assert not touches(recorder, since, host)
        go_on.set()
        flushing.join()
        expected = disk.content()
        disk.close()
    image = Checked(recorder.content)
    assert not image.wrong
    assert image.leaks == 0
    assert image.content() == expected


def test_leaks_of_a_crash_are_repaired_by_qemu(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "4M", "cluster_size=4k")
    recorder = Recorder(path, path.read_bytes())
    with recorder.installed():
        disk = Disk([Layer(path)], shared=True)
        disk.write(0, b"a" * MIB)
        disk.flush()
        disk.zero(0, MIB // 2)
        disk.write(2 * MIB, b"b" * MIB)
        syncs = [0]

        def fail(name: str) -> None:
            syncs[0] += name == "fdatasync"
            if name == "fdatasync" and syncs[0] == 2:
                raise OSError(errno.EIO, "fault")

        recorder.fault = fail
        with pytest.raises(Failed):
            disk.flush()
        left = bytes(recorder.content)
        disk.close()
    path.write_bytes(left)
    assert checked(path) in (0, 3)
    before = content(path)
    with Disk(path, writable=True) as disk:
        assert disk.content() == before
        leaked = disk.counts.leaked
    assert (leaked > 0) == (checked(path) == 3)
    run("qemu-img", "check", "-r", "leaks", path, check=False)
    assert checked(path) == 0
    assert content(path) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for loop devices")
def test_clusters_that_are_smaller_than_a_block_of_the_device(tmp_path: Path) -> None:
    """Writers of neighbours in one block of 4 KiB lose nothing of each other."""
    made = create(tmp_path / "image", "256k", "cluster_size=512")
    backing = tmp_path / "device"
    backing.write_bytes(made.read_bytes().ljust(MIB, b"\xaa"))
    with loop_device(backing, sector_size=4096) as device, Disk([Layer(device)], shared=True) as disk:
        assert disk.info.block_size == 4096

        def write(own: int) -> None:
            for number in range(own, 512, 8):
                disk.write(number * 512, bytes([own + 1]) * 512)
                if number % 64 == own:
                    disk.flush()

        together(*(partial(write, own) for own in range(8)))
        disk.flush()
        assert disk.content() == 64 * b"".join(bytes([own + 1]) * 512 for own in range(8))
    image = Checked(backing.read_bytes())
    assert not image.wrong
    assert image.content() == 64 * b"".join(bytes([own + 1]) * 512 for own in range(8))
