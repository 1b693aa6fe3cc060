# SPDX-License-Identifier: Apache-2.0
"""Identities of images that outlive this process: what a record of durable ranges is bound to.

Two images never have the same identity. If that is not sure, an image has none.
"""

import os
from pathlib import Path
from typing import Any

_SYSFS = Path("/sys/dev/block")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Names that devices have for ever, relative to the directory of the whole disk: SCSI, NVMe, device mapper, virtio.
_NAMES = ("device/wwid", "wwid", "dm/uuid", "serial")
#: Kinds of disks that get other content and keep their sequence number: drivers/block/nbd.c and zram of Linux 6.18.
_REUSED = ("nbd", "zram")


def of_file(device: int, inode: int, birth: Any) -> str | None:
    """Return the identity of a file; None if its birth is unknown, because inode numbers are used again.

    device, inode: as of stat(2). birth: C's iou_birth.
    """
    return f"file {device} {inode} {birth.time} {birth.version}" if birth.time else None


def of_device(device: int, size: int) -> str | None:
    """Return the identity of a block device. device: its number. size: in bytes. Blocks for a moment on sysfs.

    A device without a name of its own, or whose medium can be changed, has an identity until it is detached or the host
    starts anew. The sequence number of the disk says so: two attached disks, or media, never have the same (Linux 5.15,
    Documentation/ABI/stable/sysfs-block).
    """
    try:
        directory = (_SYSFS / f"{os.major(device)}:{os.minor(device)}").resolve(strict=True)
    except OSError:
        return None
    start, disk = (_read(directory / "start"), directory.parent) if _is_partition(directory) else ("0", directory)
    name = _name(disk)
    return None if name is None or start is None else f"device {device} {start} {size} {name}"


def _is_partition(directory: Path) -> bool:
    return (directory / "partition").exists()


def _name(disk: Path) -> str | None:
    """Return what no other disk, and no other medium in it, is called; None: it is not known."""
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
