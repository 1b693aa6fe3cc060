# SPDX-License-Identifier: Apache-2.0
"""A SCSI disk that does not answer: the kernel gives up, the error is told, and nobody else waits for it."""

import errno
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.ioutil.disk import fill, on_disk
from tests.ioutil.engine_driver import Failed, Image

from .guest_errors import READ, SYNCHRONIZE_CACHE, WRITE
from .kernel_storage import SIZE, MiB, ScsiDisk, scsi_disk
from .small_daemon import Daemon, running_daemon

#: More timeouts than any check here makes.
NEVER = 1000
#: What the kernel makes of a command without an answer, and of a disk that it has given up.
GIVEN_UP = (errno.ETIMEDOUT, errno.EIO)


@pytest.fixture
def disk() -> Iterator[ScsiDisk]:
    with scsi_disk("lbpu=1", "lbpws=1") as disk:
        fill(disk.path, MiB, seed=1)
        disk.be_impatient(offline_after=NEVER)
        yield disk


def test_commands_that_are_lost_once_are_repeated(disk: ScsiDisk) -> None:
    content = on_disk(disk.path)[:MiB]
    with Image(disk.path) as image:
        for command in (READ, WRITE, SYNCHRONIZE_CACHE):
            disk.hang(command, times=1)
        assert image.read(8192, 4096) == content[8192:12288]
        image.write(8192, b"w" * 4096)
        image.flush()
    assert on_disk(disk.path)[:MiB] == content[:8192] + b"w" * 4096 + content[12288:]


def test_read_without_an_answer_fails_and_works_later(disk: ScsiDisk) -> None:
    content = on_disk(disk.path)[:MiB]
    with Image(disk.path) as image:
        disk.hang(READ)
        with pytest.raises(Failed) as failed:
            image.read(8192, 4096)
        print("read:", failed.value)
        assert failed.value.errno in GIVEN_UP
        disk.answer(READ)
        assert image.read(8192, 4096) == content[8192:12288]


def test_write_without_an_answer_fails_and_works_later(disk: ScsiDisk) -> None:
    with Image(disk.path) as image:
        disk.hang(WRITE)
        with pytest.raises(Failed) as failed:
            image.write(8192, b"w" * 4096)
        print("write:", failed.value)
        assert failed.value.errno in GIVEN_UP
        disk.answer(WRITE)
        image.write(8192, b"w" * 4096)
        image.flush()
    assert on_disk(disk.path)[8192:12288] == b"w" * 4096


def test_flush_without_an_answer_fails_for_ever(disk: ScsiDisk) -> None:
    with Image(disk.path) as image:
        image.write(0, bytes(4096))
        disk.hang(SYNCHRONIZE_CACHE)
        with pytest.raises(Failed) as failed:
            image.flush()
        print("flush:", failed.value)
        assert failed.value.errno in GIVEN_UP
        disk.answer(SYNCHRONIZE_CACHE)
        with pytest.raises(Failed):
            image.flush()


def test_zeroing_without_an_answer_fails_and_works_later() -> None:
    # For UNMAP and WRITE SAME the kernel waits 30 and 120 seconds, whatever it is told.
    with scsi_disk("lbpu=0", "lbpws=0", "lbpws10=0", zeroing_mode="write") as disk, Image(disk.path) as image:
        image.write(0, b"d" * MiB)
        disk.be_impatient(offline_after=NEVER)
        disk.hang(WRITE)
        with pytest.raises(Failed) as failed:
            image.zero(4096, 64 * 1024)
        print("zero:", failed.value)
        assert failed.value.errno in GIVEN_UP
        disk.answer(WRITE)
        image.zero(4096, 64 * 1024)
        image.flush()
        assert on_disk(disk.path)[4096 : 4096 + 64 * 1024] == bytes(64 * 1024)


def test_disk_that_the_kernel_gives_up_fails_everything(disk: ScsiDisk) -> None:
    with Image(disk.path) as image:
        disk.be_impatient(offline_after=1)
        disk.hang(READ)
        with pytest.raises(Failed):
            image.read(0, 4096)
        assert disk.state == "offline"
        disk.answer(READ)
        for attempt in (lambda: image.read(0, 4096), lambda: image.write(0, bytes(4096)), lambda: image.zero(0, 4096)):
            with pytest.raises(Failed):
                attempt()
    with pytest.raises(Failed):
        Image(disk.path)


# Through the daemon


@pytest.fixture(scope="module")
def running() -> Iterator[Daemon]:
    with running_daemon() as daemon:
        yield daemon


@pytest.fixture
def daemon(disk: ScsiDisk, running: Daemon) -> Iterator[Daemon]:
    """A ticket for the disk, and one for a file beside it."""
    beside = Path("/var/tmp/beside")
    beside.write_bytes(bytes(MiB))
    running.add_ticket("disk", disk.path, SIZE)
    running.add_ticket("beside", beside, MiB)
    yield running
    running.remove_ticket("disk")
    running.remove_ticket("beside")


def test_other_transfers_go_on_while_the_disk_does_not_answer(disk: ScsiDisk, daemon: Daemon) -> None:
    disk.hang(WRITE)
    with ThreadPoolExecutor(4) as pool:
        hanging = [pool.submit(daemon.upload, "disk", n * 4096, b"d" * 4096, flush=True, status=500) for n in range(4)]
        for n in range(5):
            daemon.upload("beside", n * 4096, b"b" * 4096, flush=True)
        assert not any(request.done() for request in hanging)
        for request in hanging:
            request.result()
    disk.answer(WRITE)
    daemon.upload("disk", 0, b"d" * 4096, flush=True)
    assert on_disk(disk.path)[:4096] == b"d" * 4096


def test_http_answers_500_to_a_flush_without_an_answer(disk: ScsiDisk, daemon: Daemon) -> None:
    daemon.upload("disk", 0, b"d" * 4096, flush=False)
    disk.hang(SYNCHRONIZE_CACHE)
    daemon.patch("disk", '{"op": "flush"}', status=500)
    disk.answer(SYNCHRONIZE_CACHE)
    daemon.patch("disk", '{"op": "flush"}', status=500)


def test_nbd_answers_with_an_error_and_goes_on(disk: ScsiDisk, daemon: Daemon) -> None:
    disk.hang(READ, times=2)  # the kernel tries twice
    done = subprocess.run(
        ["qemu-io", "-r", "-f", "raw", "-c", "read 1M 4k", "-c", "read 2M 4k", daemon.nbd_uri("disk")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    print(done.stdout, done.stderr)
    assert "read failed: " in done.stdout + done.stderr
    assert "read 4096/4096 bytes at offset 2097152" in done.stdout
