# SPDX-License-Identifier: Apache-2.0
"""Identities of images that outlive the process: of files and devices that are there, and of disks in a made sysfs."""

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from subprocess import run

import pytest

from imageio_daemon.image import chain, lasting
from imageio_daemon.storage.engine import Engine
from imageio_daemon.storage.file import FileBackend
from imageio_daemon.units import MiB
from ioutil_ext import ffi, lib
from tests.support.nbdservers import make_qcow2
from tests.support.realstorage import STORAGE_TYPES, Storage, StorageType, loop_device

#: The identity of what is at a path.
Identify = Callable[[Path], Awaitable[str | None]]


@pytest.fixture
async def identify() -> Identify:
    async def of(path: Path) -> str | None:
        engine = Engine(2)
        try:
            backend = await FileBackend.open(engine, str(path), writable=True)
            found = backend.info.lasting
            await backend.close()
            await engine.release()
        finally:
            await asyncio.to_thread(engine.stop, 10.0)
        return found

    return of


# Files


async def test_file_has_an_identity_on_each_file_system(file_storage: Storage, identify: Identify) -> None:
    path = file_storage.make(MiB)
    assert await identify(path) is not None


async def test_file_keeps_its_identity_when_it_is_changed_and_renamed(identify: Identify, tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(bytes(4096))
    before = await identify(path)
    path.write_bytes(b"x" * 8192)
    os.utime(path, (0, 0))
    assert await identify(path.rename(tmp_path / "other")) == before


async def test_another_file_with_the_same_path_and_inode_has_another_identity(
    file_storage: Storage, identify: Identify
) -> None:
    """Inode numbers are used again, within one tick of the clock."""
    path, found = file_storage.directory / "image", []
    for _ in range(20):
        path.write_bytes(bytes(4096))
        found.append(await identify(path))
        path.unlink()
    told = [identity for identity in found if identity is not None]
    assert len(set(told)) == len(told)


def test_file_whose_birth_is_unknown_has_no_identity() -> None:
    birth = ffi.new("iou_birth *")
    lib.iou_file_birth(-1, birth)
    assert lasting.of_file(1, 2, birth) is None


async def test_image_in_a_format_has_the_identity_of_its_file(identify: Identify, tmp_path: Path) -> None:
    path = tmp_path / "image.qcow2"
    make_qcow2(path, MiB)
    found = chain.inspect(chain.QemuImage(str(path), "qcow2", backing_chain=True, allowed=[]))
    assert found.lasting == await identify(path)


# Devices


async def test_loop_device_keeps_its_identity_as_long_as_it_is_attached(
    block_storage: Storage, identify: Identify
) -> None:
    device = block_storage.make(8 * MiB)
    before = await identify(device)
    assert before is not None
    assert await identify(device) == before


async def test_device_number_that_is_used_again_is_another_device(block_storage: Storage, identify: Identify) -> None:
    first = block_storage.backing(block_storage.make(8 * MiB))
    found = set()
    for _ in range(2):
        with loop_device(first) as device:
            found.add(await identify(device))
    assert len(found) == 2


async def test_mapped_device_with_a_name_has_it_for_ever(
    make_storage: Callable[[StorageType], Storage], identify: Identify
) -> None:
    device = make_storage(STORAGE_TYPES[-2]).make(8 * MiB)
    name, sectors = f"test-{uuid.uuid4().hex}", 8 * MiB // 512
    found = []
    for _ in range(2):
        table = f"0 {sectors} linear {device} 0"
        command = ["dmsetup", "create", name, "--uuid", f"TEST-{name}", "--table", table]
        made = run(command, check=False, capture_output=True)
        if made.returncode:
            pytest.skip(f"no device mapper: {made.stderr.decode().splitlines()[0]}")
        try:
            found.append(await identify(Path("/dev/mapper", name)))
        finally:
            run(["dmsetup", "remove", "--retry", name], check=True)
    assert found[0] == found[1]
    assert f"TEST-{name}" in str(found[0])


class Sysfs:
    """Disks 8:0, 8:16, ... and their partitions."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._numbers = root / "dev/block"
        self._numbers.mkdir(parents=True)

    def add(self, number: int, path: str, **attributes: str) -> Path:
        directory = self._root / "devices" / path
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in attributes.items():
            file = directory / name.replace("__", "/")
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"{text}\n")
        link = self._numbers / f"{os.major(number)}:{os.minor(number)}"
        link.unlink(missing_ok=True)
        link.symlink_to(directory)
        return directory


DISK = os.makedev(8, 0)
PARTITION = os.makedev(8, 1)


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sysfs:
    made = Sysfs(tmp_path / "sys")
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("one\n")
    monkeypatch.setattr(lasting, "_SYSFS", tmp_path / "sys/dev/block")
    monkeypatch.setattr(lasting, "_BOOT_ID", boot_id)
    return made


@pytest.mark.parametrize("name", ["device__wwid", "wwid", "dm__uuid", "serial"])
def test_disk_with_a_name_is_the_same_after_the_next_start_of_the_host(sysfs: Sysfs, tmp_path: Path, name: str) -> None:
    sysfs.add(DISK, "sda", removable="0", diskseq="1", **{name: "its name"})
    before = lasting.of_device(DISK, MiB)
    (tmp_path / "boot_id").write_text("two\n")
    sysfs.add(DISK, "sda", diskseq="2")
    assert before is not None
    assert lasting.of_device(DISK, MiB) == before
    assert lasting.of_device(DISK, 2 * MiB) != before


@pytest.mark.parametrize("name", [{}, {"serial": ""}, {"device__wwid": " "}])
@pytest.mark.parametrize("change", ["boot", "disk"])
def test_disk_without_a_name_is_another_one_when_it_was_detached(
    sysfs: Sysfs, tmp_path: Path, name: dict[str, str], change: str
) -> None:
    sysfs.add(DISK, "vda", removable="0", diskseq="1", **name)
    before = lasting.of_device(DISK, MiB)
    assert before is not None
    if change == "boot":
        (tmp_path / "boot_id").write_text("two\n")
    else:
        sysfs.add(DISK, "vda", diskseq="2")
    assert lasting.of_device(DISK, MiB) != before


def test_another_medium_in_the_same_drive_is_another_image(sysfs: Sysfs) -> None:
    sysfs.add(DISK, "sda", removable="1", diskseq="1", device__wwid="a reader of cards")
    before = lasting.of_device(DISK, MiB)
    sysfs.add(DISK, "sda", diskseq="2")
    assert before is not None
    assert lasting.of_device(DISK, MiB) != before


def test_partition_has_the_name_of_its_disk_and_its_place(sysfs: Sysfs) -> None:
    sysfs.add(DISK, "sda", removable="0", diskseq="1", wwid="its name")
    sysfs.add(PARTITION, "sda/sda1", partition="1", start="2048")
    before = lasting.of_device(PARTITION, MiB)
    assert before is not None
    assert "its name" in before
    sysfs.add(PARTITION, "sda/sda1", start="4096")
    assert lasting.of_device(PARTITION, MiB) not in (None, before)


@pytest.mark.parametrize("name", ["nbd0", "zram0"])
def test_disk_that_gets_other_content_under_one_number_has_no_identity(sysfs: Sysfs, name: str) -> None:
    sysfs.add(DISK, name, removable="0", diskseq="1")
    assert lasting.of_device(DISK, MiB) is None


def test_disk_of_which_nothing_is_known_has_no_identity(sysfs: Sysfs, tmp_path: Path) -> None:
    assert lasting.of_device(DISK, MiB) is None
    sysfs.add(DISK, "vda", removable="0")
    assert lasting.of_device(DISK, MiB) is None
    sysfs.add(DISK, "vda", diskseq="1")
    (tmp_path / "boot_id").unlink()
    assert lasting.of_device(DISK, MiB) is None
