# SPDX-License-Identifier: Apache-2.0
"""Locks against other programs: those of qemu, mounts and device mapper."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from ioutil_ext import lib
from tests.support.locks import GUEST, NO_READ, NO_RESIZE, NO_WRITE, READ, RESIZE, WRITE, locked, locks, served
from tests.support.realstorage import MiB, Storage, mounted

from .engine_driver import Failed, Image
from .syscall_table import Replacement, real_close, real_open, replaced

#: What is locked of a file that is written here.
OURS = {READ, WRITE, RESIZE, NO_WRITE, NO_RESIZE}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(bytes(MiB))
    return path


def refusal(path: Path) -> tuple[int, int]:
    """Return error and system call of an open for writing."""
    with pytest.raises(Failed) as refused:
        Image(path)
    return refused.value.result.error, refused.value.result.syscall


BUSY = (errno.EBUSY, lib.IOU_SYS_LOCK)
TAKEN = (errno.EBUSY, lib.IOU_SYS_OPEN)


def qemu_io(path: Path, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["qemu-io", *options, "-f", "raw", "-c", command, str(path)], capture_output=True, text=True, check=False
    )


# qemu


def test_image_that_qemu_writes_is_refused(path: Path) -> None:
    with served(path, "raw"):
        assert refusal(path) == BUSY
    Image(path).close()


def test_image_that_qemu_reads_is_refused_for_it_may_not_be_resized(path: Path) -> None:
    with served(path, "raw", "--read-only"):
        assert refusal(path) == BUSY


@pytest.mark.parametrize("position", [WRITE, RESIZE, NO_READ, NO_WRITE, NO_RESIZE])
def test_lock_that_contradicts_is_a_refusal(path: Path, position: int) -> None:
    with locked(path, position):
        assert refusal(path) == BUSY


def test_lock_of_a_reader_is_no_contradiction(path: Path) -> None:
    with locked(path, READ), Image(path) as image:
        image.write(0, b"x")


@pytest.mark.parametrize("position", [READ, WRITE])
def test_exclusive_lock_is_a_refusal(path: Path, position: int) -> None:
    with locked(path, position, kind=fcntl.F_WRLCK):
        assert refusal(path) == BUSY


def test_refused_open_leaves_no_lock(path: Path) -> None:
    with locked(path, *GUEST):
        assert refusal(path) == BUSY
        assert locks(path) == set(GUEST)


def test_qemu_does_not_write_to_an_image_that_is_written_here(path: Path) -> None:
    with Image(path):
        done = qemu_io(path, "write 0 512")
        assert done.returncode != 0
        assert "Is another process using the image" in done.stderr
    assert qemu_io(path, "write 0 512").returncode == 0


def test_qemu_reads_an_image_that_is_written_here(path: Path) -> None:
    with Image(path):
        assert qemu_io(path, "read 0 512", "-r").returncode == 0


def test_image_that_is_read_here_has_no_locks(path: Path) -> None:
    with locked(path, *GUEST), Image(path, writable=False) as image:
        assert image.read(0, 1) == b"\0"
        assert locks(path) == set(GUEST)


def test_shared_image_has_no_locks(path: Path) -> None:
    with locked(path, *GUEST), Image(path, shared=True) as image:
        image.write(0, b"x")
        assert locks(path) == set(GUEST)
        assert not image.info.locked


# Handles of one image


def test_handles_share_the_locks_until_the_last_is_closed(path: Path) -> None:
    first, second = Image(path), Image(path, buffered=True)
    assert (second.info.locked, second.info.writers) == (1, 2)
    first.close()
    assert locks(path) == OURS
    assert second.info.writers == 1
    second.close()
    assert locks(path) == set()


def test_locks_do_not_go_with_a_reader(path: Path) -> None:
    with Image(path) as writer:
        Image(path, writable=False).close()
        Image(path, shared=True).close()
        assert locks(path) == OURS
        assert writer.info.writers == 1


def test_path_that_names_another_file_when_it_is_locked_is_refused(path: Path) -> None:
    opened: list[str] = []

    def replace(name: str, flags: int) -> int:
        opened.append(name)
        if len(opened) == 3:  # the image itself has two descriptors
            path.rename(path.with_name("old"))
            path.write_bytes(bytes(MiB))
        return real_open(name, flags)

    with replaced(open=replace):
        assert refusal(path) == (errno.ESTALE, lib.IOU_SYS_OPEN)


# Processes

HOLD = """
import sys
from tests.ioutil.engine_driver import Image
image = Image(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def test_lock_of_another_process_goes_with_it(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        assert refusal(path) == BUSY
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    Image(path).close()


# File systems


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
@pytest.mark.parametrize("call", ["lock", "locked"])
def test_file_system_without_locks_is_used_without(path: Path, call: str, error: int) -> None:
    with replaced(**{call: failing(error)}), Image(path) as image:
        assert not image.info.locked
        image.write(0, b"x")


@pytest.mark.parametrize("call", ["lock", "locked"])
def test_lock_that_fails_fails_the_open(path: Path, call: str) -> None:
    with replaced(**{call: failing(errno.EIO)}):
        assert refusal(path) == (errno.EIO, lib.IOU_SYS_LOCK)


def test_descriptors_are_closed_when_a_lock_fails(path: Path) -> None:
    closed: list[int] = []

    def close(fd: int) -> None:
        closed.append(fd)
        real_close(fd)

    with replaced(lock=failing(errno.EIO), close=close):
        refusal(path)
    assert len(set(closed)) == len(closed) == 3


def failing(error: int) -> Replacement:
    def call(fd: int, byte: int) -> None:
        raise OSError(error, os.strerror(error))

    return call


def test_every_file_system_has_the_locks(file_storage: Storage) -> None:
    path = file_storage.make(MiB)
    with Image(path) as image:
        assert image.info.locked
        assert qemu_io(path, "write 0 512").returncode != 0


# Devices


def test_mounted_device_is_refused(tmp_path: Path) -> None:
    with mounted("ext4", tmp_path) as target:
        (device,) = (
            line.split()[0] for line in Path("/proc/mounts").read_text().splitlines() if line.split()[1] == str(target)
        )
        assert refusal(Path(device)) == TAKEN
        Image(device, writable=False).close()


def test_device_that_is_written_here_is_not_mounted(block_storage: Storage, tmp_path: Path) -> None:
    device = block_storage.make(16 * MiB)
    subprocess.check_call(["mkfs.ext4", "-q", device])
    with Image(device):
        done = subprocess.run(["mount", device, tmp_path], capture_output=True, check=False)
        assert done.returncode != 0


def test_device_is_opened_twice_here(block_storage: Storage) -> None:
    device = block_storage.make(MiB)
    with Image(device) as first, Image(device, buffered=True) as second:
        first.write(0, bytes(4096))
        second.write(4096, bytes(4096))


def test_device_of_a_virtual_machine_is_refused(block_storage: Storage) -> None:
    device = block_storage.make(MiB)
    with locked(device, *GUEST):
        assert refusal(device) == BUSY


def test_device_keeps_its_size_so_that_who_denies_a_resize_is_no_contradiction(block_storage: Storage) -> None:
    device = block_storage.make(MiB)
    with locked(device, READ, NO_RESIZE):
        Image(device).close()


def test_device_below_device_mapper_is_refused(block_storage: Storage) -> None:
    device = block_storage.make(MiB)
    name = f"locks-{uuid.uuid4().hex[:8]}"
    made = subprocess.run(
        ["dmsetup", "create", "--noudevsync", name, "--table", f"0 2048 linear {device} 0"],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("no device mapper here")
    try:
        assert refusal(device) == TAKEN
    finally:
        subprocess.check_call(["dmsetup", "remove", "--noudevsync", name])
