# SPDX-License-Identifier: Apache-2.0
"""Disks of iSCSI, by Linux's target and initiator on this host; for the checks in the virtual machine."""

import contextlib
import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tests.support.polling import eventually

from .kernel_storage import configfs, new_name, run

PORTAL = "127.0.0.1:3260"
LUN = 1
#: Of Linux's iSCSI target: what it has to offer to free, and the promise that what is freed reads as zeros.
UNMAP = {"emulate_tpu": 1, "emulate_tpws": 1}
ZEROES = {"unmap_zeroes_data": 1}
#: Who logs in may write, as whoever it is.
OPEN = {"authentication": 0, "generate_node_acls": 1, "demo_mode_write_protect": 0, "cache_dynamic_acls": 1}


class IscsiDisk:
    """A disk of iSCSI, and the target that serves it."""

    def __init__(self, path: Path, group: Path) -> None:
        self.path = path
        self._enable = group / "enable"

    def stop(self) -> None:
        """Let the target end all connections and refuse new ones."""
        self._enable.write_text("0")

    def start(self) -> None:
        """Let it serve again."""
        self._enable.write_text("1")


@contextlib.contextmanager
def backstore(backing: Path, **attributes: int) -> Iterator[Path]:
    """Let the target have a file or a device, with these attributes (emulate_tpu, for one)."""
    directory = configfs() / "target/core" / ("iblock_0" if backing.is_block_device() else "fileio_0") / new_name()
    if backing.is_block_device():
        told = f"udev_path={backing}"
    else:
        told = f"fd_dev_name={backing},fd_dev_size={backing.stat().st_size}"
    directory.mkdir(parents=True)
    try:
        (directory / "control").write_text(told)
        (directory / "enable").write_text("1")
        # As targetcli gives it. Without, the disk does not tell what it can.
        (directory / "wwn/vpd_unit_serial").write_text(str(uuid.uuid4()))
        for name, value in attributes.items():
            (directory / "attrib" / name).write_text(str(value))
        yield directory
    finally:
        directory.rmdir()
        directory.parent.rmdir()


@contextlib.contextmanager
def exported(store: Path, target: str) -> Iterator[Path]:
    """Let the target offer it to this host, and return the directory of its portal group."""
    fabric = configfs() / "target/iscsi"
    group = fabric / target / "tpgt_1"
    portal, unit = group / "np" / PORTAL, group / "lun" / f"lun_{LUN}"
    for directory in (portal, unit):
        directory.mkdir(parents=True)
    link = unit / store.name
    link.symlink_to(store)
    try:
        for name, value in OPEN.items():
            (group / "attrib" / name).write_text(str(value))
        (group / "enable").write_text("1")
        yield group
    finally:
        (group / "enable").write_text("0")
        link.unlink()
        for directory in (unit, portal, group, group.parent, fabric):
            directory.rmdir()


@contextlib.contextmanager
def initiator() -> Iterator[None]:
    """Run the daemon that logs in again when a connection is lost."""
    Path("/run/lock/iscsi").mkdir(parents=True, exist_ok=True)
    # In a session of its own: it ends all processes of its group.
    daemon = subprocess.Popen(["iscsid", "--foreground"], start_new_session=True)
    try:
        ready = ("iscsiadm", "--mode", "session")
        eventually(lambda: subprocess.run(ready, check=False).returncode in (0, 21), "it answers")  # 21: no sessions
        yield
    finally:
        daemon.terminate()
        daemon.wait()


def opens(path: Path) -> bool:
    """Tell whether a device can be opened: its node is there a moment before that."""
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def logged_in(target: str, replacement_timeout: int) -> Iterator[Path]:
    """Log in, as docs/storage.md does, and return the disk's path."""
    node = ("iscsiadm", "--mode", "node", "--targetname", target)
    run("iscsiadm", "--mode", "discovery", "--type", "sendtargets", "--portal", PORTAL)
    run(*node, "--op", "update", "--name", "node.session.timeo.replacement_timeout", "--value", replacement_timeout)
    run(*node, "--login")
    try:
        devices = Path("/sys/class/iscsi_session")
        pattern = f"*/device/target*/*:{LUN}/block/*"
        eventually(lambda: list(devices.glob(pattern)), "the disk is there")
        (block,) = devices.glob(pattern)
        path = Path("/dev", block.name)
        eventually(lambda: opens(path), "it can be opened")
        yield path
    finally:
        run(*node, "--logout")
        run(*node, "--op", "delete")


@contextlib.contextmanager
def iscsi_disk(backing: Path, *, replacement_timeout: int = 120, **attributes: int) -> Iterator[IscsiDisk]:
    """Make a disk of iSCSI of a file or a device.

    replacement_timeout: seconds that its requests wait for a connection. attributes: those of backstore().
    """
    for module in ("target_core_file", "target_core_iblock", "iscsi_target_mod", "iscsi_tcp", "sd_mod"):
        run("modprobe", module)
    target = f"iqn.2026-11.example:{new_name()}"
    with backstore(backing, **attributes) as store, exported(store, target) as group, initiator():
        with logged_in(target, replacement_timeout) as path:
            yield IscsiDisk(path, group)


def iscsi(**attributes: int) -> Callable[[Path], AbstractContextManager[Path]]:
    """Return what makes a disk of iSCSI whose target has these attributes."""

    @contextlib.contextmanager
    def make(below: Path) -> Iterator[Path]:
        with iscsi_disk(below, **attributes) as disk:
            yield disk.path

    return make
