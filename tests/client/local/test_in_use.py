# SPDX-License-Identifier: Apache-2.0
"""Local images that other programs use, or that are mounted."""

import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from imageio_daemon.client import LocalError, Settings, checksum, download, info, upload
from imageio_daemon.client.local import in_use
from tests.client.programs import ended, run, start
from tests.support.daemon import Daemon
from tests.support.images import KiB, MakeImage, MiB, pattern
from tests.support.locks import GUEST, NO_WRITE, READ, locked, locks, served
from tests.support.nbdservers import make_qcow2
from tests.support.polling import eventually
from tests.support.realstorage import loop_device, missing

needs_mounts = pytest.mark.skipif(bool(missing("ext4")), reason=missing("ext4"))

CONTENT = pattern(MiB)
#: The first block of a disk with one partition, from its sector 2048 on, in the format of DOS.
PARTITIONED = bytes(450) + b"\x83\0\0\0" + struct.pack("<II", 2048, 16384) + bytes(48) + b"\x55\xaa"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "disk.raw"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def target(daemon: Daemon, new_image: MakeImage) -> str:
    """The URL of an image with the size of those here."""
    return daemon.url(new_image(bytes(MiB)).ticket)


@contextmanager
def mounted(device: Path, directory: Path, *options: str) -> Iterator[Path]:
    directory.mkdir()
    subprocess.check_call(["mount", *options, device, directory])
    try:
        yield directory
    finally:
        subprocess.check_call(["umount", directory])


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    """A block device with a file system."""
    backing = tmp_path / "backing"
    with backing.open("wb") as file:
        file.truncate(16 * MiB)
    with loop_device(backing) as device:
        subprocess.check_call(["mkfs.ext4", "-q", device])
        yield device


# Sources


def test_source_that_qemu_writes_is_refused_with_who_does(tls: Settings, target: str, path: Path) -> None:
    with (
        served(path, "raw"),
        pytest.raises(LocalError, match=rf"{path} is in use by qemu-nbd \(pid \d+\): end that first, or say --shared"),
    ):
        upload(path, target, settings=tls)
    upload(path, target, settings=tls)


def test_shared_source_is_uploaded(tls: Settings, target: str, path: Path) -> None:
    with locked(path, *GUEST):
        upload(path, target, settings=tls, shared=True)


def test_shared_source_may_change(tls: Settings, target: str, path: Path) -> None:
    upload(path, target, settings=tls, shared=True, progress=lambda _: os.utime(path))
    with pytest.raises(LocalError, match="changed while it was read"):
        upload(path, target, settings=tls, restart=True, progress=lambda _: os.utime(path))


def test_source_that_others_read_is_read(tls: Settings, target: str, path: Path) -> None:
    with served(path, "raw", "--read-only"):
        upload(path, target, settings=tls)


def test_source_is_not_written_while_it_is_read(tls: Settings, target: str, path: Path) -> None:
    seen: list[set[int]] = []
    upload(path, target, settings=tls, progress=lambda _: seen.append(locks(path)))
    assert {100, 201, 203} <= seen[0]
    assert locks(path) == set()


def test_qcow2_source_that_qemu_writes_is_refused_unless_shared(tls: Settings, target: str, tmp_path: Path) -> None:
    path = make_qcow2(tmp_path / "disk.qcow2", MiB)
    with served(path, "qcow2"):
        with pytest.raises(LocalError, match="in use by qemu-nbd"):
            upload(path, target, settings=tls)
        upload(path, target, settings=tls, shared=True)


def test_checksum_of_an_image_that_is_written_is_refused_unless_shared(path: Path) -> None:
    with locked(path, *GUEST):
        with pytest.raises(LocalError, match="in use by another program"):
            checksum(path)
        assert checksum(path, shared=True)
    assert checksum(path)


def test_image_is_refused_also_if_who_writes_ends_while_its_name_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = in_use._read

    def read_before_its_end(file: str) -> str:
        return read("/proc/0/comm" if file.endswith("/comm") else file)

    monkeypatch.setattr(in_use, "_read", read_before_its_end)
    with served(path, "raw"), pytest.raises(LocalError, match="is in use by another program"):
        checksum(path)


def test_info_looks_at_an_image_that_is_written(tmp_path: Path) -> None:
    path = make_qcow2(tmp_path / "disk.qcow2", MiB)
    with served(path, "qcow2"):
        assert info(path).size == MiB


@needs_mounts
def test_mounted_source_is_refused_unless_it_is_read_only(device: Path, tmp_path: Path) -> None:
    with mounted(device, tmp_path / "rw") as where:
        with pytest.raises(LocalError, match=f"{device} is mounted on {where}: end that first"):
            checksum(device)
        assert checksum(device, shared=True)
    with mounted(device, tmp_path / "ro", "-o", "ro"):
        assert checksum(device)


@needs_mounts
def test_mount_without_a_source_is_no_reason_to_fail(device: Path, tmp_path: Path) -> None:
    where = tmp_path / "none"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "", where], check=True)
    try:
        assert checksum(device)
    finally:
        subprocess.run(["umount", where], check=True)


@needs_mounts
def test_source_is_refused_that_is_mounted_through_a_loop_device(device: Path, tmp_path: Path) -> None:
    with (
        mounted(device, tmp_path / "rw with space") as where,
        pytest.raises(LocalError, match=f"backing is mounted on {where}"),
    ):
        checksum(tmp_path / "backing")
    assert checksum(tmp_path / "backing")


# Targets


def test_file_of_a_virtual_machine_is_not_replaced(tls: Settings, target: str, path: Path) -> None:
    with served(path, "raw"), pytest.raises(LocalError, match=r"in use by qemu-nbd"):
        download(target, path, settings=tls)
    assert path.read_bytes() == CONTENT
    with locked(path, *GUEST):
        download(target, path, settings=tls, shared=True)
    assert path.read_bytes() == bytes(MiB)


def test_file_below_the_disk_of_a_virtual_machine_is_not_replaced(tls: Settings, target: str, path: Path) -> None:
    with locked(path, READ, NO_WRITE), pytest.raises(LocalError, match=r"disk.raw is in use by"):
        download(target, path, settings=tls)


def test_target_that_is_new_needs_no_lock(tls: Settings, target: str, tmp_path: Path) -> None:
    download(target, tmp_path / "new.raw", settings=tls)
    assert (tmp_path / "new.raw").read_bytes() == bytes(MiB)


@needs_mounts
def test_mounted_target_is_refused_with_where(tls: Settings, target: str, device: Path, tmp_path: Path) -> None:
    with (
        mounted(device, tmp_path / "there") as where,
        pytest.raises(LocalError, match=f"{device} is mounted on {where}: end that first"),
    ):
        download(target, device, settings=tls)
    download(target, device, settings=tls)
    assert device.read_bytes()[:MiB] == bytes(MiB)


@needs_mounts
def test_disk_with_a_mounted_partition_is_refused(tls: Settings, target: str, tmp_path: Path) -> None:
    backing = tmp_path / "disk"
    backing.write_bytes(PARTITIONED + bytes(16 * MiB))
    with loop_device(backing) as disk:
        subprocess.check_call(["partx", "--add", disk])
        partition = Path(f"{disk}p1")
        subprocess.check_call(["mkfs.ext4", "-q", partition])
        with mounted(partition, tmp_path / "there") as where:
            for act in (lambda: download(target, disk, settings=tls), lambda: checksum(disk)):
                with pytest.raises(LocalError, match=f"{disk} is mounted on {where}"):
                    act()
        subprocess.check_call(["partx", "--delete", disk])


@needs_mounts
def test_content_of_a_loop_device_is_not_replaced(tls: Settings, target: str, device: Path, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=f"backing is the content of {device}"):
        download(target, tmp_path / "backing", settings=tls)


@needs_mounts
def test_device_that_another_program_has_for_itself_is_refused(tls: Settings, target: str, device: Path) -> None:
    fd = os.open(device, os.O_RDONLY | os.O_EXCL)
    try:
        with pytest.raises(LocalError, match="in use by another program"):
            download(target, device, settings=tls)
    finally:
        os.close(fd)


def test_one_of_two_programs_writes_to_an_image(tls: Settings, target: str, path: Path, daemon: Daemon) -> None:
    ticket = daemon.add_ticket(path, MiB)
    with daemon.connect("unix") as client:
        assert client.put_at(f"/images/{ticket}", 0, b"x").status == 200
    with pytest.raises(LocalError, match=rf"in use by \S+ \(pid {daemon.pid}\)"):
        download(target, path, settings=tls)
    daemon.remove(ticket)
    download(target, path, settings=tls)


def test_one_of_two_clients_that_fight_for_an_image_is_refused(
    daemon: Daemon, new_image: MakeImage, path: Path
) -> None:
    """One uploads it while the other one would write to it: who comes first goes on."""
    image = new_image(size=MiB, rate=64 * KiB)
    url = daemon.url(image.ticket)
    options = ("--no-local", "--cafile", daemon.cafile)
    first = start("upload", *options, path, url)
    eventually(lambda: locks(path), "the first client has the image")
    run("download", *options, url, path).failed_with(rf"{path} is in use by \S+ \(pid {first.pid}\): end that first", 5)
    assert daemon.control("PATCH", f"/tickets/{image.ticket}", b'{"rate": 0}').status == 200
    assert ended(first).status == 0
    assert path.read_bytes() == CONTENT


# The command


def test_command_says_it_and_takes_the_switch(daemon: Daemon, target: str, path: Path) -> None:
    with locked(path, *GUEST):
        for arguments in (("upload", path, target), ("download", target, path)):
            options = ("--cafile", daemon.cafile, "--no-local")
            run(*arguments, *options).failed_with("is in use by .*: end that first, or say --shared", 5)
            assert run(*arguments, *options, "--shared").status == 0
        assert run("checksum", path, "--shared").status == 0
