# SPDX-License-Identifier: Apache-2.0
"""Names that are not UTF-8, or have control characters: bytes in, bytes out, and messages of one line."""

import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from imageio_daemon.client import LocalError, Settings, checksum, disks, download, info, upload
from imageio_daemon.client.local import in_use
from imageio_daemon.client.local.layers import image_opts
from imageio_daemon.commands.printable import printable
from tests.client.local.test_formats import FORMATS, converted, qemu_img, same
from tests.client.programs import run
from tests.support.daemon import Daemon
from tests.support.images import MakeImage, MiB, pattern
from tests.support.realstorage import loop_device, missing

#: "dïsk, 1" in Latin-1: neither UTF-8, nor what qemu takes in an option as it is.
NAME = os.fsdecode(b"d\xefsk, 1")
NO_URL = "https://localhost:1/images/x"


@pytest.fixture
def named(disk: Path) -> Path:
    return disk.rename(disk.with_name(NAME))


@pytest.mark.parametrize("format_name", ["raw", *FORMATS])
def test_source_of_any_name_is_uploaded(
    daemon: Daemon, tls: Settings, disk: Path, new_image: MakeImage, format_name: str
) -> None:
    source = disk if format_name == "raw" else converted(disk, format_name)
    source = source.rename(disk.with_name(NAME))
    target = new_image(size=63 * MiB, sparse=True)
    upload(source, daemon.url(target.ticket), settings=tls, format=format_name, verify=True)
    assert info(source, format=format_name).size == 63 * MiB  # read as an image that others may use


@pytest.mark.parametrize("format_name", ["raw", *FORMATS])
def test_target_of_any_name_is_made(
    daemon: Daemon, tls: Settings, disk: Path, new_image: MakeImage, tmp_path: Path, format_name: str
) -> None:
    url = daemon.url(new_image(path=disk, ops=["read"]).ticket)
    download(url, tmp_path / NAME, settings=tls, format=format_name)
    same(disk, tmp_path / NAME, format_name)


def test_compressed_clusters_go_to_a_file_of_any_name(
    daemon: Daemon, tls: Settings, disk: Path, new_image: MakeImage, tmp_path: Path
) -> None:
    url = daemon.url(new_image(path=disk, ops=["read"]).ticket)
    download(url, tmp_path / NAME, settings=tls, format="qcow2", compress=True)
    same(disk, tmp_path / NAME, "qcow2")


def test_backing_file_may_have_any_name(daemon: Daemon, tls: Settings, named: Path, new_image: MakeImage) -> None:
    top = named.with_name("top.qcow2")
    qemu_img("create", "-f", "qcow2", "-b", NAME, "-F", "raw", top)
    target = new_image(size=63 * MiB, sparse=True)
    upload(top, daemon.url(target.ticket), settings=tls)
    assert target.content() == named.read_bytes()


@pytest.mark.parametrize("suffix", ["", ".qcow2"])
def test_archive_and_member_may_have_any_name(
    daemon: Daemon, tls: Settings, disk: Path, new_image: MakeImage, suffix: str
) -> None:
    archive = disk.with_name(f"{NAME}.ova")
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(converted(disk, "qcow2") if suffix else disk, NAME + suffix)
    target = new_image(size=63 * MiB, sparse=True)
    upload(archive, daemon.url(target.ticket), settings=tls, member=NAME + suffix)
    assert target.content() == disk.read_bytes()
    assert disks(archive) == [NAME + suffix]


def test_command_takes_any_name(daemon: Daemon, named: Path, new_image: MakeImage) -> None:
    target = new_image(size=63 * MiB, sparse=True)
    copy = named.with_name(f"{NAME}.copy")
    assert run("upload", "--cafile", daemon.cafile, named, daemon.url(target.ticket)).status == 0
    assert run("download", "--cafile", daemon.cafile, daemon.url(target.ticket), copy).status == 0
    assert run("checksum", copy).out == f"{checksum(named)}\n"


def test_disk_of_an_archive_is_told_in_the_result(daemon: Daemon, tmp_path: Path, new_image: MakeImage) -> None:
    (tmp_path / "disk").write_bytes(pattern(512))
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(tmp_path / "disk", NAME)
    url = daemon.url(new_image(bytes(512)).ticket)
    done = run("upload", "--json", "--all", "--cafile", daemon.cafile, tmp_path / "a.tar", url)
    assert done.json()[-1]["disk"] == r"d\xefsk, 1"


# What is told


def test_message_has_one_line_of_what_can_be_printed() -> None:
    assert str(LocalError("can't open \udcef\x1b[2J\n\u2028é")) == r"can't open \xef\x1b[2J\n\u2028é"
    assert printable("plain é") == "plain é"


def test_message_of_the_command_names_what_is_missing(tmp_path: Path) -> None:
    run("upload", tmp_path / NAME, NO_URL).failed_with(r"can't open .*/d\\xefsk, 1: No such file", 5)


def test_message_of_qemu_is_told(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(pattern(512))
    result = run("upload", "--format", "qcow2", tmp_path / NAME, NO_URL)
    result.failed_with(r"can't open .*d\\xefsk, 1: .*not in qcow2 format", 5)


def test_message_in_json_is_text(tmp_path: Path) -> None:
    result = run("upload", "--json", tmp_path / NAME, NO_URL)
    assert r"d\xefsk, 1: No such file" in json.loads(result.out)["message"]


def test_log_names_what_is_read_twice(daemon: Daemon, tmp_path: Path, new_image: MakeImage) -> None:
    packed = tmp_path / f"{NAME}.gz"
    packed.write_bytes(subprocess.run(["gzip"], input=pattern(512), check=True, capture_output=True).stdout)
    url = daemon.url(new_image(bytes(512)).ticket)
    assert r"d\xefsk, 1.gz does not tell the size" in run("upload", "-v", "--cafile", daemon.cafile, packed, url).err


def test_incomplete_target_is_named(daemon: Daemon, tmp_path: Path) -> None:
    result = run("download", "--cafile", daemon.cafile, daemon.url("ticket"), tmp_path / f"{NAME}\n")
    assert (result.status, result.err.count("\n")) == (3, 1)


def test_algorithm_is_a_name(tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(b"disk")
    run("checksum", "--algorithm", NAME, tmp_path / "disk").failed_with("is no name of an algorithm", 2)


@pytest.mark.skipif(bool(missing("ext4")), reason=missing("ext4"))
def test_file_that_a_loop_device_has_is_found_by_any_name(tls: Settings, tmp_path: Path) -> None:
    disk = tmp_path / f"{NAME} "
    disk.write_bytes(bytes(MiB))
    with loop_device(disk), pytest.raises(LocalError, match="is the content of /dev/loop"):
        download(NO_URL, disk, settings=tls)


def test_place_of_a_mount_is_read_as_the_kernel_writes_it() -> None:
    line = r"36 35 8:1 / /mnt/日本\040größe\134 rw - ext4 /dev/sda1 rw"
    assert in_use._Mount(line).target == "/mnt/日本 größe\\"


def test_options_of_qemu_have_names_as_they_are() -> None:
    node = {"driver": "raw", "offset": 512, "read-only": True, "file": {"driver": "file", "filename": "a,b=\udcff"}}
    assert image_opts(node) == "driver=raw,offset=512,read-only=on,file.driver=file,file.filename=a,,b=\udcff"
