# SPDX-License-Identifier: Apache-2.0
"""Files that are no raw images: each is refused by name, and what the message says helps."""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import re
import shutil
import struct
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from imageio_daemon.client import LocalError, Settings, Usage, upload
from imageio_daemon.client.local.marks import DECOMPRESSED, FILE, HEAD, HEADS, MEMBER, PIPE, WITHIN, check_raw
from imageio_daemon.client.local.opening import How, open_source
from tests.client.local.test_formats import converted, qemu_img
from tests.support.daemon import Daemon
from tests.support.images import KiB, MakeImage, MiB, pattern

#: The beginnings of files that no program here makes, from the specifications of the formats.
BEGINNINGS = {
    "7z": b"7z\xbc\xaf\x27\x1c\0\4",
    "rar": b"Rar!\x1a\x07\x01\0",
    "cab": b"MSCF" + bytes(8),
    "cpio": b"070701" + b"0" * 104,
    "ar": b"!<arch>\ndebian-binary   ",
    "rpm": b"\xed\xab\xee\xdb\3\0",
    "xar": b"xar!\0\x1c\0\1",
    "lz4": b"\x04\x22\x4d\x18\x64\x40\xa7",
    "lzip": b"LZIP\1\x0c",
    "lrzip": b"LRZI\0\6",
    "lzop": b"\x89LZO\0\r\n\x1a\n\x10\x30",
    "compress": b"\x1f\x9d\x90abc",
    "snappy": b"\xff\x06\0\0sNaPpY",
    "vma": b"VMA\0\0\0\0\1",
    "Android sparse": b"\x3a\xff\x26\xed\1\0\0\0",
    "wim": b"MSWIM\0\0\0\xd0\0\0\0",
    "ewf": b"EVF\x09\r\n\xff\0\1",
    "chd": b"MComprHD\0\0\0\x7c",
    "partclone": b"partclone-image\0",
    "partimage": b"PaRtImAgE-VoLuMe",
    "ntfsclone": b"\0ntfsclone-image",
    "an export of rbd": b"rbd diff v1\n",
    "a stream of btrfs": b"btrfs-stream\0\1",
    "a stream of zfs": bytes(8) + b"\xac\xcb\xba\xf5\2\0\0\0",
    "a saved guest": b"LibvirtQemudSave",
    "XML or HTML": b"\xef\xbb\xbf\r\n<!DOCTYPE html>",
    "qed": b"QED\0\0\0\1\0",
    "parallels": b"WithouFreSpacExt\2\0\0\0",
    "bochs": b"Bochs Virtual HD Image\0",
    "cloop": b"#!/bin/sh\n#V2.0 Format\nmodprobe cloop",
    "vmdk": b"COWD\1\0\0\0",
}


def refused(content: bytes, kind: str, tmp_path: Path) -> None:
    """Check that the bytes are refused as a file and on a pipe, and taken with --format raw."""
    (tmp_path / "unnamed").write_bytes(content)
    wanted = rf"unnamed looks like {kind}: .*, or say --format raw"
    with pytest.raises(Usage, match=wanted):
        open_source(tmp_path / "unnamed")
    with pipe(content) as stream, pytest.raises(Usage, match=wanted.replace("unnamed", "the input")):
        open_source(stream, How(size=len(content)))
    open_source(tmp_path / "unnamed", How(format="raw")).close()


def pipe(content: bytes) -> io.FileIO:
    """Return the end of a pipe with these bytes."""
    reading, writing = os.pipe()
    assert os.write(writing, content[: 16 * KiB])
    os.close(writing)
    return open(reading, "rb", buffering=0)


@pytest.mark.parametrize("kind", BEGINNINGS)
def test_file_that_is_no_disk_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    refused(BEGINNINGS[kind].ljust(KiB), kind, tmp_path)


def test_each_kind_is_tested() -> None:
    tested = {*BEGINNINGS, "qcow", "qcow2", "vhdx", "vpc", "vdi", "gzip", "xz", "zstd", "bzip2", "tar", "zip", "lzma"}
    assert {mark.kind for mark in HEADS} == tested


@pytest.mark.parametrize("name", ["qcow2", "qcow", "vmdk", "vhdx", "vpc", "vdi", "qed", "parallels"])
def test_format_of_qemu_is_refused_by_its_name_and_read_by_it(tmp_path: Path, disk: Path, name: str) -> None:
    image = converted(disk, name).read_bytes()
    refused(image, name, tmp_path)
    with contextlib.closing(open_source(tmp_path / "unnamed", How(format=name))) as source:
        found = bytearray(MiB)
        source.read(20 * MiB, memoryview(found))
        assert found == disk.read_bytes()[20 * MiB : 21 * MiB]


def test_qcow_of_version_1_is_uploaded_as_the_message_says(
    daemon: Daemon, tls: Settings, disk: Path, new_image: MakeImage
) -> None:
    source = converted(disk, "qcow")
    target = new_image(size=63 * MiB, sparse=True)
    with pytest.raises(Usage, match="looks like qcow: say --format qcow,"):
        upload(source, daemon.url(target.ticket), settings=tls)
    upload(source, daemon.url(target.ticket), settings=tls, format="qcow")
    assert target.content() == disk.read_bytes()


@pytest.mark.parametrize("subformat", ["monolithicFlat", "twoGbMaxExtentSparse"])
def test_descriptor_of_a_vmdk_is_no_disk(tmp_path: Path, disk: Path, subformat: str) -> None:
    refused(converted(disk, "vmdk", "-o", f"subformat={subformat}").read_bytes(), "vmdk", tmp_path)


def test_descriptor_of_a_vmdk_may_have_another_comment(tmp_path: Path) -> None:
    refused(b"# made by hand\n\n\t\nversion=1\nCID=fffffffe\n", "vmdk", tmp_path)


@pytest.mark.parametrize("length", [511, 512])
def test_footer_of_a_fixed_vpc_has_511_or_512_bytes(tmp_path: Path, disk: Path, length: int) -> None:
    path = tmp_path / "unnamed"
    qemu_img("convert", "-f", "raw", "-O", "vpc", "-o", "subformat=fixed,force_size=on", disk, path)
    os.truncate(path, path.stat().st_size - 512 + length)
    with pytest.raises(Usage, match="looks like vpc: say --format vpc"):
        open_source(path)
    with contextlib.closing(open_source(path, How(format="vpc"))) as source:
        assert source.size == 63 * MiB


def test_end_of_a_dmg_is_seen(tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(pattern(4 * KiB) + b"koly".ljust(512, b"\0"))
    with pytest.raises(Usage, match="looks like dmg: say --format dmg"):
        open_source(tmp_path / "disk")


def zipped() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("disk", "disk")
    return packed.getvalue()


#: By a name of the test, with what the message calls it.
PACKED = {
    "gzip": ("gzip", gzip.compress(b"disk")),
    "xz": ("xz", lzma.compress(b"disk")),
    "bzip2": ("bzip2", bz2.compress(b"disk")),
    "zstd": ("zstd", bytes.fromhex("28b52ffd2004210000") + b"disk"),
    "zip": ("zip", zipped()),
    **{f"lzma -{preset}": ("lzma", lzma.compress(b"disk", lzma.FORMAT_ALONE, preset=preset)) for preset in (0, 6, 9)},
    **{
        f"skippable frame {number:x}": ("zstd", bytes((number, 0x2A, 0x4D, 0x18)) + b"\4\0\0\0pzip")
        for number in (0x50, 0x5E, 0x5F)
    },
}


@pytest.mark.parametrize("name", PACKED)
def test_packed_file_is_no_disk(tmp_path: Path, name: str) -> None:
    kind, content = PACKED[name]
    refused(content, kind, tmp_path)


@pytest.mark.parametrize("program", ["lzop", "lz4", "7z", "zip", "compress"])
def test_packed_file_of_the_program_is_no_disk(tmp_path: Path, program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    (tmp_path / "disk").write_bytes(pattern(64 * KiB))
    arguments = {"7z": ["a", "packed", "disk"], "zip": ["packed", "disk"], "compress": ["-f", "disk"]}
    done = arguments.get(program, ["-o", "packed", "disk"] if program == "lzop" else ["disk", "packed"])
    subprocess.run([program, *done], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    (packed,) = (path for path in tmp_path.iterdir() if path.name != "disk")
    refused(packed.read_bytes(), program, tmp_path)


def seventh_edition(size: int = 4) -> bytes:
    """Return the header of an archive as tar wrote it before there was a magic."""
    header = struct.pack(
        "100s8s8s8s12s12s8s1s100s255x", b"disk", *[b"%06o \0" % 0] * 3, b"%011o " % size, b"", b"", b"", b""
    )
    total = sum(header) + 8 * 32
    return header[:148] + b"%06o\0 " % total + header[156:]


def test_tar_without_magic_is_seen_by_its_checksum(tmp_path: Path) -> None:
    archive = seventh_edition() + b"disk".ljust(512, b"\0") + bytes(1024)
    (tmp_path / "a").write_bytes(archive)
    with tarfile.open(tmp_path / "a") as found:
        assert found.getnames() == ["disk"]
    refused(archive, "tar", tmp_path)


def test_wrong_checksum_is_that_of_no_tar(tmp_path: Path) -> None:
    check_raw("disk", FILE, b"x" + seventh_edition()[1:])
    check_raw("disk", FILE, bytes(HEAD))
    check_raw("disk", FILE, seventh_edition()[:-1])


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(bytes(HEAD), id="zeros"),
        pytest.param(b"\xff" * HEAD, id="ones"),
        pytest.param(b"\xeb\x63\x90" + bytes(507) + b"\x55\xaa", id="boot sector"),
        pytest.param(b"\x33\xc0\x8e\xd0\xbc\x00\x7c" + bytes(503) + b"\x55\xaa", id="another boot sector"),
        pytest.param(b"LUKS\xba\xbe\0\2" + bytes(504), id="LUKS"),
        pytest.param(b"hsqs" + bytes(508), id="squashfs"),
        pytest.param(b"\x5d" + bytes(511), id="no lzma: no dictionary"),
        pytest.param(b"# a text\nversion = 1\n", id="no descriptor"),
        pytest.param(b"PK" + bytes(510), id="no zip"),
    ],
)
def test_raw_image_is_taken(content: bytes) -> None:
    check_raw("disk", FILE, content, content)


# What to do


@pytest.mark.parametrize(
    ("place", "content", "remedy"),
    [
        (FILE, b"QFI\xfb\0\0\0\3", "say --format qcow2,"),
        (MEMBER, b"QFI\xfb\0\0\0\3", "say --format qcow2,"),
        (PIPE, b"QFI\xfb\0\0\0\3", "put it into a file of its own first, and say --format qcow2,"),
        (FILE, b"\x1f\x8b\x08", "say --decompress gz,"),
        (PIPE, b"\x1f\x8b\x08", "say --decompress gz,"),
        (MEMBER, b"\x1f\x8b\x08", "put it into a file of its own first, and say --decompress gz,"),
        (DECOMPRESSED, b"\x1f\x8b\x08", "put it into a file of its own first, and say --decompress gz,"),
        (DECOMPRESSED, seventh_edition(), "say --member NAME,"),
        (WITHIN, seventh_edition(), "put it into a file of its own first, and say --member NAME,"),
        (WITHIN, b"PK\3\4", "unpack it with unzip first,"),
    ],
)
def test_message_says_what_helps_there(place: frozenset[str], content: bytes, remedy: str) -> None:
    with pytest.raises(Usage, match=re.escape(remedy)):
        check_raw("disk", place, content.ljust(HEAD, b"\0") if len(content) < HEAD else content)


def test_bytes_of_what_is_decompressed_are_taken_as_the_message_says(tmp_path: Path) -> None:
    (tmp_path / "disk.gz").write_bytes(gzip.compress(zipped()))
    with pytest.raises(Usage, match=r"looks like zip: .*, or say --decompress gz --format raw"):
        open_source(tmp_path / "disk.gz")
    with contextlib.closing(open_source(tmp_path / "disk.gz", How("raw", "gz"))) as source:
        assert source.size == len(zipped())


def test_image_of_another_format_on_a_pipe_has_no_size(tmp_path: Path) -> None:
    with pipe(b"x") as stream, pytest.raises(Usage, match="a size is for what is raw"):
        open_source(stream, How("qcow2", size=1))


def test_format_that_an_image_has_not_is_told(tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(BEGINNINGS["vmdk"])
    with pytest.raises(LocalError, match=r"can't open .*disk: Invalid argument$"):
        open_source(tmp_path / "disk", How("vmdk"))
