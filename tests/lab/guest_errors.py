# SPDX-License-Identifier: Apache-2.0
"""Storage that fails: the error is told, never swallowed."""

import errno
from collections.abc import Iterator

import pytest

from ioutil_ext import lib
from tests.ioutil.disk import fill, on_disk
from tests.ioutil.engine_driver import Failed, Image

from .kernel_storage import (
    FlakyDisk,
    MiB,
    ScsiDisk,
    flaky_disk,
    mounted,
    null_disk,
    run,
    scsi_disk,
)

READ, WRITE, SYNCHRONIZE_CACHE, UNMAP, WRITE_SAME_10, WRITE_SAME = 0x28, 0x2A, 0x35, 0x42, 0x41, 0x93
#: Sense key, ASC, ASCQ.
MEDIUM_ERROR, HARDWARE_ERROR, INVALID_COMMAND = "0x3 0xc 0x0", "0x4 0x44 0x0", "0x5 0x20 0x0"
#: What the kernel makes of medium and other errors.
LOST = (errno.EIO, errno.ENODATA, errno.EREMOTEIO)


@pytest.fixture
def disk() -> Iterator[ScsiDisk]:
    with scsi_disk("lbpu=1", "lbpws=1") as disk:
        fill(disk.path, MiB, seed=1)
        yield disk


def test_medium_error_of_a_read_is_told(disk: ScsiDisk) -> None:
    disk.fail(READ, MEDIUM_ERROR)
    with Image(disk.path) as image, pytest.raises(Failed) as failed:
        image.read(8192, 4096)
    assert failed.value.errno in LOST


def test_medium_error_of_a_write_is_told(disk: ScsiDisk) -> None:
    with Image(disk.path) as image:
        disk.fail(WRITE, MEDIUM_ERROR)
        with pytest.raises(Failed) as failed:
            image.write(8192, bytes(4096))
    assert failed.value.errno in LOST


def test_failed_flush_is_told_for_ever(disk: ScsiDisk) -> None:
    with Image(disk.path) as image:
        image.write(0, bytes(4096))
        disk.fail(SYNCHRONIZE_CACHE, HARDWARE_ERROR)
        with pytest.raises(Failed) as failed:
            image.flush()
        assert failed.value.errno in LOST
        disk.heal(SYNCHRONIZE_CACHE)
        with pytest.raises(Failed):
            image.flush()


@pytest.mark.parametrize("flags", [0, lib.IOU_ALLOCATE])
def test_zeroing_that_the_disk_refuses_after_all_is_done_another_way(disk: ScsiDisk, flags: int) -> None:
    for command in (WRITE_SAME, WRITE_SAME_10, UNMAP):
        disk.fail(command, INVALID_COMMAND)
    with Image(disk.path) as image:
        image.zero(4096, 512 * 1024, flags)
        image.flush()
    assert on_disk(disk.path)[4096 : 4096 + 512 * 1024] == bytes(512 * 1024)


def test_fast_zeroing_that_the_disk_refuses_does_not_promise_that_nothing_changed(disk: ScsiDisk) -> None:
    disk.fail(WRITE_SAME, HARDWARE_ERROR)
    with Image(disk.path) as image:
        assert image.attempt(lib.IOU_ZERO, 4096, 512 * 1024, lib.IOU_FAST_ONLY).error == errno.EREMOTEIO


@pytest.mark.parametrize("flags", [0, lib.IOU_ALLOCATE])
def test_zeroing_on_a_disk_that_cannot_write_fails(disk: ScsiDisk, flags: int) -> None:
    with Image(disk.path) as image:
        for command in (WRITE, WRITE_SAME, WRITE_SAME_10, UNMAP):
            disk.fail(command, HARDWARE_ERROR)
        assert image.attempt(lib.IOU_ZERO, 4096, 512 * 1024, flags).error in LOST


def test_trim_that_the_disk_refuses_changes_nothing(disk: ScsiDisk) -> None:
    before = on_disk(disk.path)[:MiB]
    for command in (WRITE_SAME, WRITE_SAME_10, UNMAP):
        disk.fail(command, INVALID_COMMAND)
    with Image(disk.path) as image:
        image.trim(0, MiB)
        image.flush()
    assert on_disk(disk.path)[:MiB] == before


def test_bad_block_is_told_and_its_neighbours_are_written() -> None:
    with null_disk(badblocks="+2048-2055") as path, Image(path) as image:
        with pytest.raises(Failed) as failed:
            image.write(MiB - 4096, bytes(3 * 4096))
        assert failed.value.errno == errno.EIO
        image.write(MiB - 4096, b"x" * 4096)
        assert image.read(MiB - 4096, 4096) == b"x" * 4096


# Behind the device mapper


@pytest.fixture
def flaky() -> Iterator[FlakyDisk]:
    with flaky_disk() as disk:
        yield disk


def write_and_flush(image: Image, data: bytes) -> None:
    image.write(0, data)
    image.flush()


def test_device_whose_writes_fail_says_so_and_is_used_again(flaky: FlakyDisk) -> None:
    with Image(flaky.path) as image:
        flaky.break_writes()
        with pytest.raises(Failed):
            image.write(0, bytes(MiB))
        with pytest.raises(Failed):
            image.zero(0, MiB)
        flaky.heal()
        image.write(0, bytes(MiB))


@pytest.mark.parametrize("filesystem", ["ext4", "xfs"])
@pytest.mark.parametrize("buffered", [False, True], ids=["direct", "buffered"])
def test_data_that_a_file_system_could_not_write_is_told(flaky: FlakyDisk, filesystem: str, buffered: bool) -> None:
    run("modprobe", filesystem)
    with mounted(filesystem, flaky.path) as directory:
        path = directory / "image"
        path.write_bytes(bytes(MiB))
        run("sync", "-f", directory)
        with Image(path, buffered=buffered) as image:
            flaky.break_writes()
            with pytest.raises(Failed):
                write_and_flush(image, b"x" * MiB)
            flaky.heal()
            if buffered:
                with pytest.raises(Failed):
                    image.flush()
