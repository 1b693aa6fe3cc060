# SPDX-License-Identifier: Apache-2.0
"""Identities of images that outlive this process: what a record of durable ranges is bound to.

Two images never have the same identity. If that is not sure, an image has none.
"""

import os
from pathlib import Path

_SYSFS = Path("/sys/dev/block")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Names that devices have for ever, relative to the directory of the whole disk: SCSI, NVMe, device mapper, virtio.
_NAMES = ("device/wwid", "wwid", "dm/uuid", "serial")


def of_file(device: int, inode: int, birth: int) -> str | None:
    """Return the identity of a file; None if its birth is unknown, because inode numbers are used again.

    device, inode: as of stat(2). birth: ns, as of statx(2); 0: unknown.
    """
    return f"file {device} {inode} {birth}" if birth else None


def of_device(device: int, size: int) -> str | None:
    """Return the identity of a block device. device: its number. size: in bytes. Blocks for a moment on sysfs.

    A device without a name of its own has an identity until it is detached or the host starts anew. The sequence number
    of the disk says so: two attached disks never have the same (Linux 5.15, Documentation/ABI/stable/sysfs-block).
    """
    try:
        directory = (_SYSFS / f"{os.major(device)}:{os.minor(device)}").resolve(strict=True)
    except OSError:
        return None
    disk = directory.parent if (directory / "partition").exists() else directory
    name = next((found for found in (_read(disk / name) for name in _NAMES) if found), None)
    if name is None and (sequence := _read(disk / "diskseq")) is not None:
        name = f"{sequence} {_read(_BOOT_ID)}"
    return None if name is None else f"device {device} {size} {name}"


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
