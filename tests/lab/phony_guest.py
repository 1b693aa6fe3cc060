# SPDX-License-Identifier: Apache-2.0
"""A disk that virt-v2v takes for a machine with Debian, and converts: what libguestfs's own tests call a phony guest.

All that it asks of the system is there, and answered by scripts of busybox: which packages there are and their files,
new initial file systems, and a new configuration of the boot loader.
"""

import os
import random
import shutil
import subprocess
from pathlib import Path

from tests.lab.images import MiB

VERSION = "6.1.0-1-amd64"
#: Where the system's file system is, in bytes. virt-v2v wants 100 MiB free there.
SYSTEM, SYSTEM_SIZE = MiB, 191 * MiB
#: Where the pieces of data begin.
PIECES_START = SYSTEM + SYSTEM_SIZE
#: So many, in a third of the rest of the disk: benchmarks.seedcases.
PIECES = 1059

_OS_RELEASE = 'ID=debian\nVERSION_ID="12"\nNAME="Debian GNU/Linux"\nPRETTY_NAME="Debian 12"\n'
_STATUS = f"""\
Package: linux-image-{VERSION}
Status: install ok installed
Priority: optional
Section: kernel
Maintainer: nobody
Architecture: amd64
Version: 6.1.1-1
Description: a kernel

"""
_FILES = f"/boot/vmlinuz-{VERSION} /boot/config-{VERSION} /lib/modules/{VERSION}"
_SCRIPTS = {
    "usr/bin/dpkg": f'[ "$1" != -L ] || printf "%s\\n" {_FILES}',
    "usr/sbin/update-initramfs": f"echo made for virtio >/boot/initrd.img-{VERSION}",
    "usr/sbin/grub-mkconfig": "exit 0",
}
_DIRECTORIES = (
    *("etc/modprobe.d", "etc/initramfs-tools", "etc/default", "dev", "proc", "sys", "tmp", "root", "run", "boot/grub"),
    *("bin", "sbin", "usr/bin", "usr/sbin", "usr/share", "var/lib/dpkg", "var/log"),
)
_MODULES = ("virtio", "virtio_ring", "virtio_pci", "virtio_blk", "virtio_scsi", "virtio_net")


def _make_system(root: Path) -> None:
    """Fill a directory with the files of the system."""
    busybox = Path("/bin/busybox")
    for name in (*_DIRECTORIES, f"lib/modules/{VERSION}/kernel/drivers"):
        (root / name).mkdir(parents=True)
    for name in ("sh", "ls", "printf", "echo", "cat", "rm"):
        shutil.copy(busybox, root / "bin" / name)
    for name in _MODULES:  # of any program: it is asked for its architecture
        shutil.copy(busybox, root / "lib/modules" / VERSION / "kernel/drivers" / f"{name}.ko")
    for path, text in {
        "etc/os-release": _OS_RELEASE,
        "etc/debian_version": "12.0\n",
        "etc/hostname": "guest\n",
        "etc/hosts": "127.0.0.1 localhost guest\n",
        "etc/fstab": "/dev/sda1 / ext4 defaults 0 1\n",
        "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
        "etc/initramfs-tools/modules": "# modules\n",
        "etc/default/grub": 'GRUB_CMDLINE_LINUX="quiet"\n',
        "var/lib/dpkg/status": _STATUS,
        "boot/grub/grub.cfg": f"linux /boot/vmlinuz-{VERSION} root=/dev/sda1 ro\n",
        f"boot/vmlinuz-{VERSION}": "a kernel\n",
        f"boot/initrd.img-{VERSION}": "made for another machine\n",
        f"boot/config-{VERSION}": "CONFIG_VIRTIO_BLK=m\nCONFIG_VIRTIO_NET=m\n",
    }.items():
        (root / path).write_text(text)
    for path, script in _SCRIPTS.items():
        (root / path).write_text(f"#!/bin/sh\n{script}\n")
        (root / path).chmod(0o755)


def make_guest(disk: Path, data: int) -> None:
    """Make the disk, a raw image. data: bytes of the pieces, about."""
    length = data // PIECES & ~4095
    size = PIECES_START + 3 * PIECES * length
    root = disk.with_suffix(".root")
    _make_system(root)
    with disk.open("wb") as file:
        file.truncate(size)
        chosen = random.Random(1)
        for at in sorted(chosen.sample(range(3 * PIECES // 2), PIECES)):
            os.pwrite(file.fileno(), chosen.randbytes(length), PIECES_START + at * 2 * length)
    table = f"label: dos\n{SYSTEM // 512} {SYSTEM_SIZE // 512} L *\n{PIECES_START // 512} - L\n"
    subprocess.run(["sfdisk", "-q", disk], input=table, text=True, check=True)
    where = ["-E", f"offset={SYSTEM}", "-d", str(root), str(disk), f"{SYSTEM_SIZE >> 10}k"]
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-L", "system", *where], check=True)
    shutil.rmtree(root)


def check_imported(source: Path, target: Path, scratch: Path) -> None:
    """Check a raw image that was imported: the pieces are identical, and the system is whole and converted.

    Raises AssertionError. scratch: a file to make.
    """
    start = str(PIECES_START)
    same = subprocess.run(["cmp", "-i", start, source, target], capture_output=True, text=True, check=False)
    assert same.returncode == 0, same.stdout + same.stderr
    with target.open("rb") as file, scratch.open("wb") as system:
        file.seek(SYSTEM)
        system.write(file.read(SYSTEM_SIZE))
    checked = subprocess.run(["e2fsck", "-f", "-n", scratch], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    told = subprocess.run(
        ["debugfs", "-R", f"cat /boot/initrd.img-{VERSION}", scratch], capture_output=True, text=True, check=True
    )
    assert told.stdout == "made for virtio\n", told.stderr
    scratch.unlink()
