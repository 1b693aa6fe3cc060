# SPDX-License-Identifier: Apache-2.0
"""Images in other formats than raw, archives, and disks as users have them."""

import bz2
import gzip
import lzma
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from imageio_daemon.client import LocalError, Settings, Usage, checksum, download, info, upload
from tests.client.conftest import SIZE
from tests.client.programs import run
from tests.support.daemon import Daemon
from tests.support.images import MakeImage, MiB, pattern
from tests.support.realstorage import allocated

FORMATS = ("qcow2", "vmdk", "vhdx", "vpc", "vdi")


def qemu_img(*arguments: str | Path) -> None:
    subprocess.run(["qemu-img", *map(str, arguments)], check=True, capture_output=True, timeout=60)


def converted(disk: Path, name: str, *options: str) -> Path:
    path = disk.with_suffix(f".{name}")
    # A vpc image has the size that was asked for, and not one of whole cylinders, only if told so.
    force = ("-o", "force_size=on") if name == "vpc" else ()
    qemu_img("convert", "-f", "raw", "-O", name, *force, *options, disk, path)
    return path


def same(raw: Path, other: Path, name: str) -> None:
    qemu_img("compare", "-f", "raw", "-F", name, raw, other)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_a_source(daemon: Daemon, tls: Settings, disk: Path, new_image: MakeImage, name: str) -> None:
    target = new_image(size=63 * MiB, sparse=True)
    done = upload(converted(disk, name), daemon.url(target.ticket), settings=tls, format=name, verify=True)
    assert target.content() == disk.read_bytes()
    assert done.progress.data < 6 * MiB  # holes are not read


def test_backing_chain_is_read_through(daemon: Daemon, tls: Settings, disk: Path, new_image: MakeImage) -> None:
    converted(disk, "qcow2")
    top = disk.with_name("top.qcow2")
    qemu_img("create", "-f", "qcow2", "-b", "disk.qcow2", "-F", "qcow2", top)
    subprocess.run(["qemu-io", "-c", "write -P 7 10M 1M", str(top)], check=True, capture_output=True, timeout=60)
    target = new_image(size=63 * MiB)
    upload(top, daemon.url(target.ticket), settings=tls, format="qcow2")
    expected = bytearray(disk.read_bytes())
    expected[10 * MiB : 11 * MiB] = b"\x07" * MiB
    assert target.content() == expected


@pytest.mark.parametrize("name", ["qcow2", "vdi"])
def test_download_makes_another_format(
    daemon: Daemon, tls: Settings, disk: Path, new_image: MakeImage, tmp_path: Path, name: str
) -> None:
    url = daemon.url(new_image(path=disk, ops=["read"]).ticket)
    copy = tmp_path / "copy"
    copy.write_bytes(b"older")
    download(url, copy, settings=tls, format=name)
    same(disk, copy, name)
    assert allocated(copy) < 7 * MiB
    assert checksum(copy, format=name) == checksum(disk)
    assert not (tmp_path / "copy.part").exists()


@pytest.mark.parametrize("name", [*FORMATS, "qed", "parallels"])
def test_image_of_a_format_has_the_size_of_the_image(
    daemon: Daemon, tls: Settings, new_image: MakeImage, tmp_path: Path, name: str
) -> None:
    image = new_image(pattern(MiB + 512), ops=["read", "write"])
    download(daemon.url(image.ticket), tmp_path / "copy", settings=tls, format=name)
    assert info(tmp_path / "copy", format=name).size == MiB + 512
    upload(tmp_path / "copy", daemon.url(image.ticket), settings=tls, format=name, verify=True)


@pytest.mark.parametrize("name", [*FORMATS, "compressed qcow2"])
def test_size_that_a_format_cant_have_is_told(daemon: Daemon, new_image: MakeImage, tmp_path: Path, name: str) -> None:
    content, copy = pattern(1000), tmp_path / "copy"
    options = ("--compress",) if "compressed" in name else ()
    name = name.removeprefix("compressed ")
    url = daemon.url(new_image(content, ops=["read"]).ticket)
    done = run("download", "--format", name, *options, "--cafile", daemon.cafile, url, copy)
    assert (
        f"copy gets 1024 bytes, and the image has 1000: the format {name} has whole sectors of 512 bytes\n" in done.err
    )
    assert (done.status, info(copy, format=name).size) == (0, 1024)
    (tmp_path / "raw").write_bytes(content.ljust(1024, b"\0"))
    same(tmp_path / "raw", copy, name)


def test_info_knows_formats(disk: Path) -> None:
    told = info(converted(disk, "qcow2"), format="qcow2")
    assert told.size == 63 * MiB
    assert told.data is not None
    assert told.data < 6 * MiB


@pytest.mark.parametrize("name", FORMATS)
def test_nobody_guesses_a_format(daemon: Daemon, disk: Path, name: str) -> None:
    unnamed = converted(disk, name).rename(disk.with_name("unnamed"))
    with pytest.raises(Usage, match=f"looks like {name}: say --format {name}, or say --format raw"):
        upload(unnamed, daemon.url("ticket"))


@pytest.mark.parametrize("options", ["subformat=fixed,force_size=on"])
def test_footer_of_a_fixed_vpc_is_seen(daemon: Daemon, disk: Path, options: str) -> None:
    qemu_img("convert", "-f", "raw", "-O", "vpc", "-o", options, disk, disk.with_name("unnamed"))
    with pytest.raises(Usage, match="looks like vpc: say --format vpc"):
        upload(disk.with_name("unnamed"), daemon.url("ticket"))


@pytest.mark.parametrize("name", ["qcow2", "vdi"])
def test_suffix_says_the_format(
    daemon: Daemon, tls: Settings, disk: Path, new_image: MakeImage, tmp_path: Path, name: str
) -> None:
    target = new_image(size=63 * MiB, sparse=True)
    upload(converted(disk, name), daemon.url(target.ticket), settings=tls)
    assert target.content() == disk.read_bytes()
    copy = tmp_path / f"copy.{name}"
    download(daemon.url(target.ticket), copy, settings=tls)
    same(disk, copy, name)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("gzip", gzip.compress(b"disk")),
        ("xz", lzma.compress(b"disk")),
        ("bzip2", bz2.compress(b"disk")),
        ("zstd", bytes.fromhex("28b52ffd2004210000") + b"disk"),
    ],
    ids=["gzip", "xz", "bzip2", "zstd"],
)
def test_compressed_file_is_no_disk(daemon: Daemon, tmp_path: Path, kind: str, content: bytes) -> None:
    (tmp_path / "packed").write_bytes(content)
    with pytest.raises(Usage, match=f"packed looks like {kind}: .* --format raw"):
        upload(tmp_path / "packed", daemon.url("ticket"))


def test_format_raw_takes_the_bytes_as_they_are(
    daemon: Daemon, tls: Settings, disk: Path, new_image: MakeImage
) -> None:
    source = converted(disk, "qcow2")
    target = new_image(size=source.stat().st_size)
    upload(source, daemon.url(target.ticket), settings=tls, format="raw")
    assert target.content() == source.read_bytes()


def test_wrong_format_is_told(daemon: Daemon, disk: Path) -> None:
    with pytest.raises(LocalError, match="not in qcow2 format"):
        upload(disk, daemon.url("ticket"), format="qcow2")


def test_failed_download_leaves_no_image(daemon: Daemon, tls: Settings, tmp_path: Path) -> None:
    result = run("download", "--format", "qcow2", "--cafile", daemon.cafile, daemon.url("ticket"), tmp_path / "copy")
    result.failed_with("403", 3)
    assert not list(tmp_path.glob("copy*"))


def test_missing_qemu_is_told(daemon: Daemon, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(LocalError, match="can't run qemu-nbd"):
        upload(disk, daemon.url("ticket"), format="qcow2")


def test_programs_of_qemu_end(daemon: Daemon, tls: Settings, disk: Path, new_image: MakeImage) -> None:
    target = new_image(size=63 * MiB)
    upload(converted(disk, "qcow2"), daemon.url(target.ticket), settings=tls, format="qcow2")
    running = subprocess.run(["pgrep", "-f", str(disk.parent)], check=False, capture_output=True, text=True)
    assert running.stdout == ""


# Disks


@pytest.mark.parametrize("filesystem", ["ext4", "xfs"])
def test_file_system_image_goes_up_and_down(
    daemon: Daemon, settings: Settings, tmp_path: Path, new_image: MakeImage, filesystem: str
) -> None:
    program = shutil.which(f"mkfs.{filesystem}", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if program is None:
        pytest.skip(f"mkfs.{filesystem} is not installed")
    disk, size = tmp_path / "disk", 320 * MiB
    disk.touch()
    os.truncate(disk, size)
    subprocess.run([program, "-q", disk], check=True, capture_output=True, timeout=60)
    target = new_image(size=size, sparse=True)
    url = daemon.url(target.ticket)
    upload(disk, url, settings=settings)
    download(url, tmp_path / "copy", settings=settings)
    same(disk, target.path, "raw")
    same(disk, tmp_path / "copy", "raw")
    assert allocated(tmp_path / "copy") <= allocated(target.path) + MiB <= allocated(disk) + 2 * MiB


def test_sparse_file_that_is_all_zeros_is_left_alone(
    daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage
) -> None:
    target = new_image(size=SIZE + 1, sparse=True)
    done = upload(source, daemon.url(target.ticket), settings=tls)
    assert (done.progress.zero, done.progress.skipped > 15 * MiB) == (0, True)
    assert target.content() == source.read_bytes()
