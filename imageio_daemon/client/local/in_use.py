# SPDX-License-Identifier: Apache-2.0
"""Locks on local images while they are read or written, as qemu has them. Images that others use are refused."""

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ioutil_ext import lib

from ..errors import ImageInUse, LocalError
from .formats import is_elsewhere

#: Most seconds for finding the program that uses an image, because a host may have thousands of processes.
SEARCH_TIME = 2.0
#: What the user can do.
END = "end that first"
END_OR_SHARE = f"{END}, or say --shared if the image may be used by both"


def locked(
    image: str | os.PathLike[str] | BinaryIO, *, writes: bool, shared: bool, remedy: str = END_OR_SHARE
) -> contextlib.AbstractContextManager[None]:
    """Keep other programs from writing to a local image during the block.

    With `writes`, the block writes to the image, so nobody else may use it. With `shared`, this does nothing. There is
    also no lock for streams, for images with an address, if there is no file, on file systems without such locks, and
    if the image cannot be opened, because the next code that opens it reports that. Entering raises LocalError if
    another program uses the image in a way that conflicts. `remedy` tells what the user can do then.
    """
    if shared or is_elsewhere(image) or not isinstance(image, str | os.PathLike):
        return contextlib.nullcontext()
    return locked_file(Path(image), Path(image), writes=writes, remedy=remedy)


@contextlib.contextmanager
def locked_file(path: Path, file: Path, *, writes: bool, remedy: str = END_OR_SHARE) -> Iterator[None]:
    """Do as locked() for a file or device. `path` is for messages; `file` is opened, and may be a link in /proc."""
    fd = _open(path, file, writes=writes, remedy=remedy)
    if fd is None:
        yield
        return
    try:
        _refuse_mounted(path, fd, writes=writes, remedy=remedy)
        error = -lib.iou_lock(fd, writes)
        if error == errno.EBUSY:
            raise ImageInUse(f"{path} is in use by {_who_has(fd)}: {remedy}")
        if error not in (0, errno.ENOLCK):
            raise LocalError(f"can't lock {path}: {os.strerror(error)}")
        yield
    finally:
        os.close(fd)


def _open(path: Path, file: Path, *, writes: bool, remedy: str) -> int | None:
    """Return a descriptor for locks. For a device that is written it is opened exclusively. Raises LocalError."""
    try:
        mode = file.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISBLK(mode):
            return None
        exclusively = os.O_EXCL if writes and stat.S_ISBLK(mode) else 0
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | exclusively)
    except OSError as e:
        if e.errno == errno.EBUSY:
            raise LocalError(f"{path} is {_holder(_name(file.stat().st_rdev))}: {remedy}") from e
        return None


def _refuse_mounted(path: Path, fd: int, *, writes: bool, remedy: str) -> None:
    """Raise LocalError if a device is mounted and may change, or if a file is the content of a loop device."""
    status = os.fstat(fd)
    is_device = stat.S_ISBLK(status.st_mode)
    devices = [_name(status.st_rdev)] if is_device else _loops_of(status)
    for device in devices:
        mounts = [mount for mount in _mounts(device) if writes or mount.writable]
        if mounts:
            raise LocalError(f"{path} is mounted on {mounts[0].target}: {remedy}")
    if writes and devices and not is_device:
        raise LocalError(f"{path} is the content of /dev/{devices[0]}: {remedy}")


class _Mount:
    """A mount, with the device number of its file system, what was mounted, and whether that may change."""

    def __init__(self, line: str) -> None:
        # proc_pid_mountinfo(5): id, parent, device, root, target, options, optional fields, -, type, source, options
        # Spaces within a field are escaped, and a source may be empty.
        before, _, after = line.partition(" - ")
        self.device, _, target = before.split(" ")[2:5]
        _, source, options = after.split(" ")
        self.target, self.source = _unescaped(target), _unescaped(source)
        self.writable = "rw" in options.split(",")


def _mounts(name: str) -> Iterator[_Mount]:
    """Yield the mounts of a block device and of its partitions, by its name in /sys/class/block."""
    try:
        below = [name, *(entry for entry in os.listdir(f"/sys/class/block/{name}") if entry.startswith(name))]
        numbers = {_read(f"/sys/class/block/{each}/dev") for each in below}
        lines = _read("/proc/self/mountinfo").split("\n")
    except OSError:
        return  # without /sys or /proc there is no way to find out
    for mount in map(_Mount, lines):
        # btrfs has its own device numbers. The source is the only place with the name of the device.
        if mount.device in numbers or mount.source in {f"/dev/{each}" for each in below}:
            yield mount


def _loops_of(file: os.stat_result) -> list[str]:
    """Return the loop devices that have a file as their content."""
    found = []
    for backing in Path("/sys/class/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(_read(str(backing))), file):
                found.append(backing.parent.parent.name)
    return found


def _holder(name: str) -> str:
    """Say what has opened a block device exclusively, by the device's name in /sys/class/block."""
    for mount in _mounts(name):
        return f"mounted on {mount.target}"
    with contextlib.suppress(OSError):
        for holder in os.listdir(f"/sys/class/block/{name}/holders"):
            return f"part of /dev/{holder}"
    return "in use by another program"


def _who_has(fd: int) -> str:
    """Name a program that has locked the file of a descriptor. The kernel does not tell the owner of such a lock."""
    inode = f":{os.fstat(fd).st_ino} "
    own, deadline = str(os.getpid()), time.monotonic() + SEARCH_TIME
    with contextlib.suppress(OSError):  # there is no /proc, or the program has ended meanwhile
        for pid in os.listdir("/proc"):
            if pid.isdigit() and pid != own and _has_locked(pid, inode):
                return f"{_read(f'/proc/{pid}/comm')} (pid {pid})"
            if time.monotonic() > deadline:
                break
    return "another program, maybe on another host"


def _has_locked(pid: str, inode: str) -> bool:
    """Return whether a process has locks on a file. For processes of other users, this may be False."""
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fdinfo"):
            with contextlib.suppress(FileNotFoundError):
                lines = _read(f"/proc/{pid}/fdinfo/{descriptor}").splitlines()
                if any("OFDLCK" in line and inode in line for line in lines):
                    return True
    return False


def _name(device: int) -> str:
    """Return the name of a device in /sys/class/block, or ""."""
    try:
        return os.path.basename(os.readlink(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"))
    except OSError:
        return ""


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)  # for white space and the backslash


def _read(path: str) -> str:
    with open(path, errors="surrogateescape", newline="") as file:
        return file.read().removesuffix("\n")
