# SPDX-License-Identifier: Apache-2.0
"""Real storage of every type, made for a test and removed after it: file systems, block devices, broken devices.

The context managers are for programs (benchmarks), the fixtures for tests: tests/conftest.py loads them as a plugin.
"""

import errno
import functools
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.syscalls import FALLOC_FL_ZERO_RANGE, fallocate

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB

#: The size of a sparse file for a file system. mkfs.xfs wants at least 300 MiB, mkfs.btrfs 109.
FILESYSTEM_SIZE = 400 * MiB


@dataclass(frozen=True)
class StorageType:
    """The properties of a type of storage that a test may know before it has opened anything."""

    name: str
    filesystem: str
    sector_size: int = 0  # of the loop device, or 0 for a regular file
    offload: bool = True  # zeroes without writing data
    allocates: bool = True  # can provision a range without writing data

    @property
    def is_block(self) -> bool:
        return self.sector_size > 0


STORAGE_TYPES = (
    StorageType("ext4", "ext4"),
    StorageType("xfs", "xfs"),
    StorageType("btrfs", "btrfs"),
    StorageType("tmpfs", "tmpfs"),
    StorageType("ext2", "ext2", allocates=False),
    StorageType("loop512", "ext4", sector_size=512),
    StorageType("loop4096", "xfs", sector_size=4096),
    StorageType("loop-no-offload", "ext2", sector_size=512, offload=False, allocates=False),
)


@dataclass
class Storage:
    """One type of storage, ready to make images on."""

    type: StorageType
    directory: Path  # where images, or the backing files of devices, lie
    _cleanup: ExitStack
    _backing: dict[Path, Path] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.type.name

    @property
    def is_block(self) -> bool:
        return self.type.is_block

    @property
    def offload(self) -> bool:
        """Return whether ranges are zeroed without writing data."""
        return self.type.offload

    def make(self, size: int) -> Path:
        """Make an empty image of `size` bytes, on a device whole sectors. It is removed after the test."""
        path = self.directory / f"image-{uuid.uuid4().hex[:8]}"
        _make_sparse(path, size)
        self._cleanup.callback(path.unlink, missing_ok=True)
        if not self.is_block:
            return path
        device = self._cleanup.enter_context(loop_device(path, sector_size=self.type.sector_size))
        if not self.offload:
            switch_off_offload(device)
        self._backing[device] = path
        return device

    def allocated(self, path: Path) -> int:
        """Return the bytes that an image takes on the file system, writeback included."""
        return allocated(self.backing(path))

    def backing(self, path: Path) -> Path:
        """Return the file that holds an image: that of the device, or the image itself."""
        return self._backing.get(path, path)


def shared_memory(beside: Path) -> Path:
    """Return a directory on another file system than that of a path. Skips the test if there is none."""
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == beside.stat().st_dev:
        pytest.skip("needs /dev/shm on a file system of its own")
    return shm


def allocated(path: Path) -> int:
    """Return the bytes allocated to a file. Flushes it first, because some file systems allocate at writeback."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        return os.fstat(fd).st_blocks * 512
    finally:
        os.close(fd)


def missing(filesystem: str) -> str:
    """Return why a file system can't be made here, or an empty string."""
    if os.geteuid() != 0:
        return "needs root for mounts and loop devices"
    if filesystem != "tmpfs" and shutil.which(f"mkfs.{filesystem}", path=_SBIN) is None:
        return f"mkfs.{filesystem} is not installed"
    if not _can_mount():
        return "mounts are not allowed here"
    return ""


@contextmanager
def mounted(filesystem: str, directory: Path, size: int = FILESYSTEM_SIZE) -> Iterator[Path]:
    """Make a file system below directory, mount it, and yield the mount point."""
    target = directory / f"{filesystem}-{uuid.uuid4().hex[:8]}"
    target.mkdir(parents=True)
    image = target.with_suffix(".img")
    try:
        if filesystem == "tmpfs":
            _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", target)
        else:
            _make_sparse(image, size)
            _run(f"mkfs.{filesystem}", "-q", image)
            _run("mount", "-o", "loop", image, target)
        try:
            yield target
        finally:
            _unmount(target)
    finally:
        image.unlink(missing_ok=True)
        target.rmdir()


@contextmanager
def loop_device(backing: Path, *, sector_size: int = 512, direct: bool = True) -> Iterator[Path]:
    """Attach a file to a free loop device and yield the device's path."""
    options = ["--find", "--show", "--sector-size", str(sector_size), f"--direct-io={'on' if direct else 'off'}"]
    device = Path(_run("losetup", *options, backing).strip())
    try:
        yield device
    finally:
        # A device that is still open somewhere detaches itself at the last close.
        _run("losetup", "--detach", device)


def switch_off_offload(device: Path) -> None:
    """Let the kernel learn that the device's backing file can't zero, as it does at the first ZERO_RANGE."""
    fd = os.open(device, os.O_RDWR)
    try:
        fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, 4096)
    finally:
        os.close(fd)
    limit = Path("/sys/block", device.name, "queue/write_zeroes_max_bytes").read_text()
    assert int(limit) == 0, f"{device} still claims to zero {limit} bytes at once"


@contextmanager
def filled(directory: Path) -> Iterator[None]:
    """Take all space of the file system that directory lies on."""
    filler = directory / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            # Write down to single blocks, because a large write fails while there is still space for small ones.
            for piece in (MiB, 64 * KiB, 4 * KiB, KiB):
                _write_until_full(file.fileno(), bytes(piece))
            with suppress(OSError):
                os.fsync(file.fileno())
        yield
    finally:
        filler.unlink()


def _write_until_full(fd: int, piece: bytes) -> None:
    while True:
        try:
            os.write(fd, piece)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                return
            raise


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Treat SIGTERM (timeout(1), CI that gives up) as Ctrl-C, so that nothing stays mounted."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass
class Mounts:
    """The file systems of a test session. Each is made at its first use."""

    directory: Path
    _cleanup: ExitStack
    _made: dict[str, Path] = field(default_factory=dict)

    def get(self, filesystem: str) -> Path:
        """Return the mount point. Skips the test, with the reason, if the file system cannot be mounted here."""
        if reason := missing(filesystem):
            pytest.skip(reason)
        if filesystem not in self._made:
            self._made[filesystem] = self._cleanup.enter_context(mounted(filesystem, self.directory))
        return self._made[filesystem]

    def storage(self, storage_type: StorageType, cleanup: ExitStack) -> Storage:
        """Return storage of a type. `cleanup` removes the images on it."""
        return Storage(storage_type, self.get(storage_type.filesystem), cleanup)


@pytest.fixture(scope="session")
def mounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounts]:
    """File systems shared by the tests of a session."""
    with ExitStack() as cleanup, interrupted_by_sigterm():
        yield Mounts(tmp_path_factory.mktemp("mounts"), cleanup)


@pytest.fixture
def make_storage(mounts: Mounts) -> Iterator[Callable[[StorageType], Storage]]:
    """Make storage of a type that the test chooses."""
    with ExitStack() as cleanup:
        yield lambda storage_type: mounts.storage(storage_type, cleanup)


@pytest.fixture(params=STORAGE_TYPES, ids=lambda storage_type: storage_type.name)
def storage(request: pytest.FixtureRequest, make_storage: Callable[[StorageType], Storage]) -> Storage:
    """Run the test on every type of storage."""
    storage_type: StorageType = request.param
    return make_storage(storage_type)


@pytest.fixture(params=[t for t in STORAGE_TYPES if not t.is_block], ids=lambda storage_type: storage_type.name)
def file_storage(request: pytest.FixtureRequest, make_storage: Callable[[StorageType], Storage]) -> Storage:
    """Run the test on every file system."""
    storage_type: StorageType = request.param
    return make_storage(storage_type)


@pytest.fixture(params=[t for t in STORAGE_TYPES if t.is_block], ids=lambda storage_type: storage_type.name)
def block_storage(request: pytest.FixtureRequest, make_storage: Callable[[StorageType], Storage]) -> Storage:
    """Run the test on every type of block device."""
    storage_type: StorageType = request.param
    return make_storage(storage_type)


@pytest.fixture
def full_filesystem(tmp_path: Path) -> Iterator[Path]:
    """Return an image of 1 MiB, a hole, on a file system without a free block: each write of data gets ENOSPC."""
    _require("ext4")
    with mounted("ext4", tmp_path, 16 * MiB) as directory:
        image = directory / "image"
        _make_sparse(image, MiB)
        with filled(directory):
            yield image


@pytest.fixture
def small_filesystem(tmp_path: Path) -> Iterator[Path]:
    """Return a directory of a file system of 4 MiB."""
    _require("tmpfs")
    with mounted("tmpfs", tmp_path, 4 * MiB) as directory:
        yield directory


@pytest.fixture
def unreadable_device(tmp_path: Path) -> Iterator[Path]:
    """Return a device of 8 MiB whose backing file was cut to 4 MiB: reads past 4 MiB get EIO, writes succeed."""
    _require("ext4")
    with mounted("ext4", tmp_path, 64 * MiB) as directory:
        backing = directory / "backing"
        _make_sparse(backing, 8 * MiB)
        with loop_device(backing) as device:
            os.truncate(backing, 4 * MiB)
            yield device


@pytest.fixture
def unwritable_device(tmp_path: Path) -> Iterator[Path]:
    """Return a device of 8 MiB whose sparse backing file lies on a full tmpfs: reads succeed, writes get EIO."""
    _require("tmpfs")
    with mounted("tmpfs", tmp_path, 4 * MiB) as directory:
        backing = directory / "backing"
        _make_sparse(backing, 8 * MiB)
        # Direct I/O of the loop device would report ENOSPC; through the page cache the error comes at writeback too.
        with loop_device(backing, direct=False) as device, filled(directory):
            yield device


def _require(filesystem: str) -> None:
    if reason := missing(filesystem):
        pytest.skip(reason)


def _make_sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


_SBIN = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


def _run(program: str, *arguments: str | Path) -> str:
    command = [shutil.which(program, path=_SBIN) or program, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.stdout


def _unmount(target: Path) -> None:
    try:
        _run("umount", target)
    except RuntimeError:
        # After a failed test something may still have a file open. The file system goes when that is closed.
        _run("umount", "--lazy", target)


@functools.cache
def _can_mount() -> bool:
    # Root in a container without CAP_SYS_ADMIN cannot mount. Only the effective set shows this.
    cap_sys_admin = 1 << 21
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) & cap_sys_admin) and Path("/dev/loop-control").exists()
    return False
