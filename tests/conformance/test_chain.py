# SPDX-License-Identifier: Apache-2.0
"""Image files and the files that they name: what is opened, and what is refused before anything is."""

import errno
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from imageio_daemon.errors import StorageError, Unusable
from imageio_daemon.image import chain


def qemu_img(*arguments: object) -> None:
    subprocess.check_call(["qemu-img", *map(str, arguments)], stdout=subprocess.DEVNULL)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A directory in which files may be named."""
    directory = tmp_path / "images"
    directory.mkdir()
    return directory


@pytest.fixture
def base(images: Path) -> Path:
    qemu_img("create", "-f", "qcow2", images / "base.qcow2", "1M")
    return images / "base.qcow2"


def overlay(path: Path, name: str, image_format: str = "qcow2") -> Path:
    """Make an image whose header names a backing file, which need not be there."""
    qemu_img("create", "-f", "qcow2", "-u", "-b", name, "-F", image_format, path, "1M")
    return path


def poisoned(path: Path, name: bytes) -> Path:
    """Make an image whose header names a backing file that qemu-img would not write down."""
    overlay(path, "x" * len(name), "raw")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"x" * len(name), name))
    return path


def inspect(path: Path, image_format: str = "qcow2", *, backing_chain: bool = True, allowed: Path) -> dict[str, Any]:
    return chain.inspect(chain.QemuImage(str(path), image_format, backing_chain, [str(allowed)])).node


def refusal(path: Path, *, allowed: Path) -> str:
    with pytest.raises(StorageError) as refused:
        inspect(path, allowed=allowed)
    assert refused.value.errno == errno.EPERM
    return str(refused.value)


def unusable(path: Path, *, allowed: Path) -> str:
    with pytest.raises(Unusable) as refused:
        inspect(path, allowed=allowed)
    assert str(path.parent) not in refused.value.told
    return str(refused.value)


def file(path: Path) -> dict[str, str]:
    return {"driver": "file", "filename": str(path)}


def test_a_single_image(base: Path) -> None:
    found = chain.inspect(chain.QemuImage(str(base), "qcow2", backing_chain=True, allowed=[]))
    assert found.node == {"driver": "qcow2", "file": file(base), "backing": None}


def test_a_chain_is_spelled_out(images: Path, base: Path) -> None:
    middle = overlay(images / "middle", "base.qcow2")
    top = overlay(images / "top", str(middle))
    assert inspect(top, allowed=images) == {
        "driver": "qcow2",
        "file": file(top),
        "backing": {
            "driver": "qcow2",
            "file": file(middle),
            "backing": {"driver": "qcow2", "file": file(base), "backing": None},
        },
    }


def test_the_top_layer_alone_names_nothing(tmp_path: Path, images: Path) -> None:
    top = overlay(images / "top", "/etc/passwd", "raw")
    assert inspect(top, backing_chain=False, allowed=tmp_path)["backing"] is None


def test_a_header_that_points_behind_all_files_is_cut_short(images: Path) -> None:
    image = images / "image.vhdx"
    qemu_img("create", "-f", "vhdx", image, "1M")
    metadata_region = re.escape(bytes.fromhex("06a27c8b90479a4bb8fe575f050f886e"))
    content = image.read_bytes()
    for place in (2**63 - 1, 2**63, 2**64 - 1):
        image.write_bytes(
            re.sub(b"(" + metadata_region + b").{8}", rb"\1" + struct.pack("<Q", place), content, flags=re.S)
        )
        with pytest.raises(StorageError, match="cut short"):
            inspect(image, "vhdx", allowed=images)


def test_a_raw_backing_file_is_never_looked_into(images: Path, base: Path) -> None:
    top = overlay(images / "top", base.name, "raw")
    assert inspect(top, allowed=images)["backing"] == {"driver": "raw", "file": file(base)}


def test_a_relative_name_starts_where_the_image_was_named(tmp_path: Path, images: Path, base: Path) -> None:
    stored = overlay(images / "stored", "below")
    links = tmp_path / "links"
    links.mkdir()
    (links / "top").symlink_to(stored)
    (links / "below").symlink_to(base)
    node = inspect(links / "top", allowed=images)
    assert (node["file"], node["backing"]["file"]) == (file(stored), file(base))


def test_the_data_file_is_spelled_out(images: Path) -> None:
    qemu_img("create", "-f", "qcow2", "-o", f"data_file={images / 'data'}", images / "top", "1M")
    assert inspect(images / "top", allowed=images)["data-file"] == file(images / "data")


def test_a_block_device_is_named_as_such(images: Path, loop_device: Path) -> None:
    qemu_img("create", "-f", "qcow2", loop_device, "64K")
    node = inspect(overlay(images / "top", str(loop_device)), allowed=Path("/dev"))
    assert node["backing"]["file"] == {"driver": "host_device", "filename": str(loop_device)}


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "sub/../../outside", "/"])
def test_a_backing_file_outside_is_refused(tmp_path: Path, images: Path, name: str) -> None:
    (tmp_path / "outside").write_bytes(bytes(4096))
    assert "allowed_paths" in refusal(overlay(images / "top", name, "raw"), allowed=images)


def test_without_allowed_directories_every_name_is_refused(images: Path, base: Path) -> None:
    top = overlay(images / "top", base.name)
    with pytest.raises(StorageError, match="allowed_paths"):
        chain.inspect(chain.QemuImage(str(top), "qcow2", backing_chain=True, allowed=[]))


def test_a_directory_with_the_same_beginning_is_outside(tmp_path: Path, images: Path) -> None:
    (tmp_path / "images-of-others").mkdir()
    (tmp_path / "images-of-others" / "disk").write_bytes(bytes(4096))
    top = overlay(images / "top", str(tmp_path / "images-of-others" / "disk"), "raw")
    assert "allowed_paths" in refusal(top, allowed=images)


def test_a_link_to_the_outside_is_refused(images: Path) -> None:
    (images / "link").symlink_to("/etc/passwd")
    assert "allowed_paths" in refusal(overlay(images / "top", "link", "raw"), allowed=images)


def test_a_file_outside_named_further_down_is_refused(images: Path) -> None:
    middle = overlay(images / "middle", "/etc/passwd", "raw")
    assert "allowed_paths" in refusal(overlay(images / "top", middle.name), allowed=images)


def test_a_data_file_outside_is_refused(tmp_path: Path, images: Path) -> None:
    qemu_img("create", "-f", "qcow2", "-o", f"data_file={tmp_path / 'data'}", images / "top", "1M")
    assert "allowed_paths" in refusal(images / "top", allowed=images)


@pytest.mark.parametrize(
    "name",
    [
        b'json:{"driver": "file", "filename": "/etc/passwd"}',
        b"nbd://host/export",
        b"nbd:unix:/run/socket",
        b"file:/etc/passwd",
        b"https://host/image",
        b"fat:rw:/etc",
    ],
)
def test_a_protocol_is_refused(images: Path, name: bytes) -> None:
    assert "no path" in unusable(poisoned(images / "top", name), allowed=images)


def test_a_name_with_control_characters_is_refused(images: Path) -> None:
    assert "control characters" in unusable(poisoned(images / "top", b"a\nb"), allowed=images)


def test_a_name_that_is_not_utf_8_is_kept(images: Path, base: Path) -> None:
    base.rename(images / "\udcff\udcfe")
    top = overlay(images / "top", "xx")
    top.write_bytes(top.read_bytes().replace(b"xx", b"\xff\xfe"))
    node = inspect(top, allowed=images)
    assert node["backing"]["file"] == file(images / "\udcff\udcfe")


@pytest.mark.parametrize("image_format", [b"bochs", b"https", b"QCOW2"])
def test_a_backing_file_of_another_format_is_refused(images: Path, base: Path, image_format: bytes) -> None:
    top = overlay(images / "top", base.name)
    head = struct.pack(">II", 0xE2792ACA, 5)
    top.write_bytes(top.read_bytes().replace(head + b"qcow2", head + image_format))
    assert "format" in unusable(top, allowed=images)


def test_a_backing_file_whose_format_would_have_to_be_guessed_is_refused(images: Path, base: Path) -> None:
    top = overlay(images / "top", base.name)
    top.write_bytes(top.read_bytes().replace(struct.pack(">I", 0xE2792ACA), b"\1\1\1\1"))
    assert "rebase" in unusable(top, allowed=images)


def test_a_chain_in_a_circle_is_refused(images: Path) -> None:
    overlay(images / "one", "two")
    overlay(images / "two", "one")
    assert "twice" in unusable(images / "one", allowed=images)


def test_an_image_below_itself_is_refused(images: Path) -> None:
    assert "twice" in unusable(overlay(images / "self", "self"), allowed=images)


def test_an_image_that_is_its_own_data_file_is_refused(images: Path) -> None:
    qemu_img("create", "-f", "qcow2", "-o", f"data_file={images / 'data'}", images / "top", "1M")
    (images / "data").unlink()
    (images / "data").symlink_to(images / "top")
    assert "twice" in unusable(images / "top", allowed=images)


def test_a_chain_without_end_is_refused(images: Path) -> None:
    overlay(images / "000", "001")
    for number in range(1, chain.MAX_DEPTH + 2):
        link = images / f"{number:03}"
        shutil.copy(images / "000", link)
        link.write_bytes(link.read_bytes().replace(b"001", f"{number + 1:03}".encode()))
    assert "64" in unusable(images / "000", allowed=images)


def test_what_is_no_image_of_the_format_is_refused(images: Path) -> None:
    (images / "raw").write_bytes(bytes(4096))
    assert "no qcow2" in unusable(images / "raw", allowed=images)


def test_a_missing_image_is_an_error(images: Path) -> None:
    with pytest.raises(StorageError) as failure:
        inspect(images / "missing", allowed=images)
    assert failure.value.errno == errno.ENOENT


def test_a_missing_backing_file_is_an_error(images: Path) -> None:
    with pytest.raises(StorageError) as failure:
        inspect(overlay(images / "top", "missing"), allowed=images)
    assert failure.value.errno == errno.ENOENT


@pytest.mark.parametrize("kind", ["pipe", "directory", "device"])
def test_what_is_no_file_is_an_error(images: Path, kind: str) -> None:
    path = images / "other"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(StorageError) as failure:
        inspect(path, allowed=images)
    assert failure.value.errno == errno.ENOTBLK


def test_a_read_error_is_an_error(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "injected")

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(StorageError) as failure:
        inspect(base, allowed=base.parent)
    assert failure.value.errno == errno.EIO


def test_storage_without_direct_io_is_noticed(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chain.inspect(chain.QemuImage(str(base), "qcow2", backing_chain=True, allowed=[])).direct
    real = os.open

    def no_direct(path: str, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct I/O")
        return real(path, flags)

    monkeypatch.setattr(os, "open", no_direct)
    assert not chain.inspect(chain.QemuImage(str(base), "qcow2", backing_chain=True, allowed=[])).direct
