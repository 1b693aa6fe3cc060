# SPDX-License-Identifier: Apache-2.0
"""Identities of images that outlive this process. A record of durable ranges is bound to one.

Two images never have the same identity. An image for which that is not sure has none.
"""

import os
from pathlib import Path
from typing import Any

_SYSFS = Path("/sys/dev/block")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Files with a device's permanent name, relative to the directory of the disk: SCSI, NVMe, device mapper, virtio.
_NAMES = ("device/wwid", "wwid", "dm/uuid", "serial")
#: Kinds of disks whose content is replaced under the same sequence number (drivers/block/nbd.c and zram, Linux 6.18).
_REUSED = ("nbd", "zram")


def of_file(device: int, inode: int, birth: Any) -> str | None:
    """Return the identity of a file, or None if its birth is unknown, because inode numbers are used again.

    `device` and `inode` are those of stat(2), `birth` is C's iou_birth.
    """
    return f"file {device} {inode} {birth.time} {birth.version}" if birth.time else None


def of_device(device: int, size: int) -> str | None:
    """Return the identity of a block device with this number and size in bytes. Blocks for a moment on sysfs.

    A device without a permanent name, or with a medium that can be changed, keeps its identity only until it is
    detached or the host reboots. This identity is the disk's sequence number, which no other attached disk or medium
    has (Linux 5.15, Documentation/ABI/stable/sysfs-block).
    """
    try:
        directory = (_SYSFS / f"{os.major(device)}:{os.minor(device)}").resolve(strict=True)
    except OSError:
        return None
    is_partition = (directory / "partition").exists()
    start, disk = (_read(directory / "start"), directory.parent) if is_partition else ("0", directory)
    name = _name(disk)
    return None if name is None or start is None else f"device {device} {start} {size} {name}"


def _name(disk: Path) -> str | None:
    """Return a name that no other disk has, and no other medium in this one, or None if there is no such name."""
    if disk.name.startswith(_REUSED):
        return None
    if _read(disk / "removable") == "0":
        for name in _NAMES:
            if found := _read(disk / name):
                return found
    sequence, boot = _read(disk / "diskseq"), _read(_BOOT_ID)
    return f"{sequence} {boot}" if sequence and boot else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
