# SPDX-License-Identifier: Apache-2.0
"""Devices that the kernel makes of other devices; for the checks in the virtual machine."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tests.support.polling import eventually

from .kernel_storage import SIZE, MiB, configfs, loop_disk, new_name, run

#: Of a thin pool, in bytes; it is given and freed as a whole.
CHUNK = 64 * 1024
#: What a thin pool takes of its volume group beside its data: metadata, as much to repair it, and the group's own.
OF_THE_POOL = 16 * MiB

# LVM and LVM-thin, by LVM's commands as docs/storage.md has them


def lvm(command: str, below: Path, *words: object) -> None:
    """Run a command of LVM's that sees this device only, and makes nodes itself: there is no udev here."""
    run(command, "--devices", below, "--config", "activation { udev_sync=0 udev_rules=0 monitoring=0 }", *words)


@contextlib.contextmanager
def volume_group(below: Path) -> Iterator[str]:
    """Make a volume group of a device, and return its name; what is made in it goes with it."""
    name = new_name()
    lvm("pvcreate", below, below)
    lvm("vgcreate", below, name, below)
    try:
        yield name
    finally:
        lvm("vgremove", below, "--force", name)


@contextlib.contextmanager
def logical_volume(below: Path) -> Iterator[Path]:
    """Make a logical volume of a device."""
    with volume_group(below) as group:
        lvm("lvcreate", below, "--extents", "100%FREE", "--name", "disk", group)
        yield Path("/dev", group, "disk")


class ThinVolume:
    """A volume of a thin pool of its own."""

    def __init__(self, group: str) -> None:
        self.path = Path("/dev", group, "disk")
        self._pool = f"{group}-pool-tpool"

    @property
    def used(self) -> int:
        """Return how many bytes of the pool the volume takes."""
        chunks, _, _ = run("dmsetup", "status", self._pool).split()[5].partition("/")
        return int(chunks) * CHUNK


@contextlib.contextmanager
def thin_volume(*options: str, size: int = SIZE) -> Iterator[ThinVolume]:
    """Make a volume of a thin pool of this size, changed by these options of lvchange, with nothing allocated."""
    run("modprobe", "dm-thin-pool")
    with loop_disk(size + OF_THE_POOL) as below, volume_group(below) as group:
        pool = ("--type", "thin-pool", "--chunksize", f"{CHUNK}b", "--size", f"{size}b", "--name", "pool")
        lvm("lvcreate", below, *pool, group)
        if options:
            lvm("lvchange", below, *options, f"{group}/pool")
        lvm("lvcreate", below, "--thin", "--virtualsize", f"{SIZE}b", "--name", "disk", f"{group}/pool")
        yield ThinVolume(group)


# NVMe-oF, by TCP


@contextlib.contextmanager
def nvme_target(backing: Path) -> Iterator[str]:
    """Let the kernel's NVMe target export a device or a file to this host, and return how it is reached."""
    run("modprobe", "nvmet-tcp")
    name = new_name()
    directory = configfs() / "nvmet"
    subsystem, port = directory / "subsystems" / name, directory / "ports/1"
    space, exported = subsystem / "namespaces/1", port / "subsystems" / name
    subsystem.mkdir()
    space.mkdir()
    port.mkdir()
    try:
        (subsystem / "attr_allow_any_host").write_text("1")
        (space / "device_path").write_text(str(backing))
        (space / "enable").write_text("1")
        address = {"trtype": "tcp", "adrfam": "ipv4", "traddr": "127.0.0.1", "trsvcid": "4420"}
        for what, value in address.items():
            (port / f"addr_{what}").write_text(value)
        exported.symlink_to(subsystem)
        yield f"transport=tcp,traddr=127.0.0.1,trsvcid=4420,nqn={name}"
        exported.unlink()
    finally:
        for made in (port, space, subsystem):
            made.rmdir()


@contextlib.contextmanager
def nvme_disk(backing: Path) -> Iterator[Path]:
    """Make a disk of NVMe over fabrics, of a device or a file."""
    run("modprobe", "nvme-tcp")
    with nvme_target(backing) as address:
        fabrics = os.open("/dev/nvme-fabrics", os.O_RDWR)
        try:
            os.write(fabrics, address.encode())
            told = os.read(fabrics, 100).decode()  # instance=0,cntlid=1
        finally:
            os.close(fabrics)
        controller = f"nvme{told.split(',')[0].removeprefix('instance=')}"
        try:
            path = Path(f"/dev/{controller}n1")
            eventually(path.exists, "its node is there")
            yield path
        finally:
            Path("/sys/class/nvme", controller, "delete_controller").write_text("1")


# DRBD


@contextlib.contextmanager
def drbd_node(number: int, below: Path) -> Iterator[str]:
    """Make a DRBD resource with one device, /dev/drbdNUMBER, and return its name."""
    Path("/run/lock").mkdir(exist_ok=True)
    run("modprobe", "drbd", "usermode_helper=disabled")
    name = new_name()
    run("drbdmeta", "--force", number, "v08", below, "internal", "create-md")
    run("drbdsetup", "new-resource", name)
    try:
        run("drbdsetup", "new-minor", name, number, 0)
        run("drbdsetup", "attach", number, below, below, "internal")
        yield name
    finally:
        run("drbdsetup", "down", name)


@contextlib.contextmanager
def drbd_disk(below: Path) -> Iterator[Path]:
    """Make a DRBD device that is primary and has no peer."""
    with drbd_node(0, below):
        run("drbdsetup", "primary", 0, "--force")
        yield Path("/dev/drbd0")


@contextlib.contextmanager
def drbd_pair(below: Path) -> Iterator[Path]:
    """Make a DRBD device that is primary, with a peer on this host, on a loop device."""
    with loop_disk() as other, drbd_node(0, below) as first, drbd_node(1, other) as second:
        addresses = ("ipv4:127.0.0.1:7788", "ipv4:127.0.0.1:7789")
        run("drbdsetup", "connect", first, *addresses)
        run("drbdsetup", "connect", second, *reversed(addresses))
        run("drbdsetup", "primary", 0, "--force")
        state = Path("/proc/drbd")
        eventually(lambda: state.read_text().count("ds:UpToDate/UpToDate") == 2, "both are equal", timeout=60)
        yield Path("/dev/drbd0")


# ZFS


class ZfsVolume:
    """A volume of a pool of its own."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self._name = name

    @property
    def used(self) -> int:
        """Return how many bytes its data takes in the pool."""
        run("zpool", "sync", self._name.partition("/")[0])
        return int(run("zfs", "get", "-Hp", "-o", "value", "referenced", self._name))


@contextlib.contextmanager
def zfs_volume(*options: str) -> Iterator[ZfsVolume]:
    """Make a volume of a ZFS pool, with these options of zfs create beside those of docs/storage.md."""
    run("modprobe", "zfs")
    pool = new_name()
    with loop_disk(128 * MiB) as below:
        run("zpool", "create", pool, below)
        try:
            run("zfs", "create", "-s", "-V", SIZE, *options, f"{pool}/disk")
            path = Path("/dev/zd0")  # /dev/zvol has links to these, which udev makes
            eventually(path.exists, "its node is there")
            yield ZfsVolume(path, f"{pool}/disk")
        finally:
            run("zpool", "destroy", "-f", pool)


@contextlib.contextmanager
def zfs_directory() -> Iterator[Path]:
    """Mount a file system of a ZFS pool, on which zeros that are written take no space."""
    run("modprobe", "zfs")
    pool, directory = new_name(), Path("/tmp", new_name())
    with loop_disk(256 * MiB) as below:
        run("zpool", "create", "-O", "compression=on", "-O", f"mountpoint={directory}", pool, below)
        try:
            yield directory
        finally:
            run("zpool", "destroy", "-f", pool)
