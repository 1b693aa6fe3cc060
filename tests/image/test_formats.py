# SPDX-License-Identifier: Apache-2.0
"""Headers that qemu-img made, and what becomes of them with other bytes."""

import os
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imageio_daemon.image import qcow2
from imageio_daemon.image.formats import PARSERS
from imageio_daemon.image.header import Backing, Header, Read

DATA_FILE_BIT = 4


def create(path: Path, image_format: str, *options: str, size: str = "8M") -> Path:
    # A data file of that name is made in the working directory.
    subprocess.check_call(["qemu-img", "create", "-q", "-f", image_format, *options, path, size], cwd=path.parent)
    return path


def reader(data: bytes) -> Read:
    return lambda offset, length: data[offset : offset + length]


def parse(path: Path, image_format: str) -> Header:
    return PARSERS[image_format](reader(path.read_bytes()))


def patched(path: Path, offset: int, data: bytes) -> bytes:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    return bytes(content)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return create(tmp_path / "image.qcow2", "qcow2")


@pytest.fixture
def overlay(tmp_path: Path, image: Path) -> Path:
    path = tmp_path / "overlay.qcow2"
    subprocess.check_call(["qemu-img", "create", "-q", "-f", "qcow2", "-b", image.name, "-F", "qcow2", path])
    return path


@pytest.mark.parametrize(
    ("image_format", "options"),
    [
        ("raw", ()),
        ("qcow2", ()),
        ("qcow2", ("-o", "compat=0.10")),
        ("qcow2", ("-o", "cluster_size=512")),
        ("qcow2", ("-o", "cluster_size=2M,extended_l2=on")),
        ("qcow2", ("-o", "compression_type=zstd")),
        ("vmdk", ()),
        ("vmdk", ("-o", "subformat=streamOptimized")),
        ("vhdx", ()),
        ("vhdx", ("-o", "subformat=fixed")),
        ("vpc", ()),
        ("vpc", ("-o", "subformat=fixed")),
        ("vdi", ()),
        ("vdi", ("-o", "static=on")),
    ],
)
def test_an_image_that_stands_alone_names_nothing(tmp_path: Path, image_format: str, options: tuple[str, ...]) -> None:
    header = parse(create(tmp_path / "image", image_format, *options), image_format)
    assert (header.backing, header.data_file) == (None, None)


@pytest.mark.parametrize(
    ("image_format", "options", "unit"),
    [
        ("qcow2", "cluster_size=512", 512),
        ("qcow2", "cluster_size=64K", 65536),
        ("qcow2", "cluster_size=2M,extended_l2=on", 2 << 20),
        ("qcow2", "compat=0.10", None),
        ("qcow2", "data_file=data,data_file_raw=on", None),
        ("vmdk", "zeroed_grain=on", None),
        ("vdi", "static=off", None),
    ],
)
def test_whole_clusters_of_qcow2_are_zeroed_in_the_metadata(
    tmp_path: Path, image_format: str, options: str, unit: int | None
) -> None:
    assert parse(create(tmp_path / "image", image_format, "-o", options), image_format).zero_unit == unit


@pytest.mark.parametrize("compat", ["0.10", "1.1"])
def test_the_backing_file_is_told_with_its_format(tmp_path: Path, image: Path, compat: str) -> None:
    overlay = create(tmp_path / "overlay", "qcow2", "-o", f"compat={compat}", "-b", str(image), "-F", "qcow2")
    header = parse(overlay, "qcow2")
    assert (header.backing, header.data_file) == (Backing(str(image), "qcow2"), None)


def test_a_backing_file_without_a_format_is_told_so(overlay: Path) -> None:
    content = overlay.read_bytes()
    at = content.index(struct.pack(">I", 0xE2792ACA))
    header = qcow2.parse(reader(patched(overlay, at, b"\x01\x01\x01\x01")))
    assert header.backing == Backing("image.qcow2", "")


def test_the_external_data_file_is_told(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "qcow2", "-o", "data_file=image.data")
    assert parse(path, "qcow2").data_file == "image.data"


def test_a_data_file_that_is_only_a_name_does_not_count(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "qcow2", "-o", "data_file=image.data")
    assert qcow2.parse(reader(patched(path, 72, bytes(8)))).data_file is None


@pytest.mark.parametrize(
    ("offset", "data"),
    [
        pytest.param(0, b"QFI\0", id="magic"),
        pytest.param(4, struct.pack(">I", 1), id="version 1"),
        pytest.param(4, struct.pack(">I", 4), id="version 4"),
        pytest.param(8, struct.pack(">Q", 8), id="name inside the header"),
        pytest.param(8, struct.pack(">Q", 2**63), id="name far away"),
        pytest.param(16, struct.pack(">I", 0), id="empty name"),
        pytest.param(16, struct.pack(">I", 1024), id="long name"),
        pytest.param(16, struct.pack(">I", 2**32 - 1), id="name without end"),
        pytest.param(20, struct.pack(">I", 8), id="small clusters"),
        pytest.param(20, struct.pack(">I", 22), id="large clusters"),
        pytest.param(32, struct.pack(">I", 2), id="encrypted"),
        pytest.param(72, struct.pack(">Q", 32), id="unknown feature"),
        pytest.param(72, struct.pack(">Q", DATA_FILE_BIT), id="data file without a name"),
        pytest.param(100, struct.pack(">I", 8), id="short header"),
        pytest.param(100, struct.pack(">I", 2**31), id="long header"),
        pytest.param(116, struct.pack(">I", 2**31), id="long extension"),
    ],
)
def test_a_qcow2_header_that_is_not_understood_is_refused(overlay: Path, offset: int, data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each has a message of its own
        qcow2.parse(reader(patched(overlay, offset, data)))


@pytest.mark.parametrize("name", [b"\xff" * 11, "imag\u3000qcow".encode(), b"image\xffqcow2"])
def test_a_name_may_have_any_other_bytes(overlay: Path, name: bytes) -> None:
    at = overlay.read_bytes().index(b"image.qcow2")
    assert qcow2.parse(reader(patched(overlay, at, name))).backing == Backing(os.fsdecode(name), "qcow2")


@pytest.mark.parametrize("name", [b"image\x7fqcow2", b"image\0qcow2", b"image\nqcow2"])
def test_a_name_with_control_characters_is_refused(overlay: Path, name: bytes) -> None:
    at = overlay.read_bytes().index(b"image.qcow2")
    with pytest.raises(ValueError):  # noqa: PT011 - each has a message of its own
        qcow2.parse(reader(patched(overlay, at, name)))


def extension(kind: int, content: bytes) -> bytes:
    return struct.pack(">II", kind, len(content)) + content + bytes(-len(content) % 8)


def test_a_name_that_is_there_twice_is_refused(overlay: Path) -> None:
    twice = extension(0xE2792ACA, b"raw") * 2 + extension(0, b"")
    with pytest.raises(ValueError, match="twice"):
        qcow2.parse(reader(patched(overlay, 112, twice)))


def test_extensions_without_end_are_refused(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "qcow2", "-o", "cluster_size=2M")
    with pytest.raises(ValueError, match="end"):
        qcow2.parse(reader(patched(path, 112, extension(1, bytes(8)) * 10000)))


def test_an_empty_file_is_refused() -> None:
    for name in ("qcow2", "vmdk", "vhdx", "vdi"):
        with pytest.raises(ValueError, match="no"):
            PARSERS[name](reader(b""))


def test_a_header_that_is_cut_is_refused(image: Path) -> None:
    with pytest.raises(ValueError, match="short"):
        qcow2.parse(reader(image.read_bytes()[:50]))


@pytest.mark.parametrize("subformat", ["monolithicFlat", "twoGbMaxExtentSparse"])
def test_a_vmdk_of_several_files_is_refused(tmp_path: Path, subformat: str) -> None:
    path = create(tmp_path / "image.vmdk", "vmdk", "-o", f"subformat={subformat}")
    with pytest.raises(ValueError, match="single-file"):
        parse(path, "vmdk")


def test_a_vmdk_whose_data_is_elsewhere_is_refused(tmp_path: Path) -> None:
    path = create(tmp_path / "image.vmdk", "vmdk")
    with pytest.raises(ValueError, match="other files"):
        PARSERS["vmdk"](reader(patched(path, 12, bytes(8))))


def test_a_vmdk_with_a_parent_is_refused(tmp_path: Path) -> None:
    parent = create(tmp_path / "parent.vmdk", "vmdk")
    path = tmp_path / "image.vmdk"
    subprocess.check_call(["qemu-img", "create", "-q", "-f", "vmdk", "-b", parent, "-F", "vmdk", path])
    with pytest.raises(ValueError, match="parent"):
        parse(path, "vmdk")


def test_a_vmdk_with_a_descriptor_of_more_than_a_mib_is_refused(tmp_path: Path) -> None:
    path = create(tmp_path / "image.vmdk", "vmdk")
    with pytest.raises(ValueError, match="descriptor has 2049 sectors, and may have 2048"):
        PARSERS["vmdk"](reader(patched(path, 36, struct.pack("<Q", 2049))))


@pytest.mark.parametrize("sectors", [21, 128, 2048])
def test_a_vmdk_with_a_large_descriptor_is_read(tmp_path: Path, sectors: int) -> None:
    path = create(tmp_path / "image.vmdk", "vmdk")
    path.write_bytes(patched(path, 36, struct.pack("<Q", sectors)))
    subprocess.check_call(["qemu-io", "-f", "vmdk", "-c", "quit", path])
    assert parse(path, "vmdk") == Header()


def test_a_parent_at_the_end_of_a_large_descriptor_is_seen(tmp_path: Path) -> None:
    path = create(tmp_path / "image.vmdk", "vmdk")
    path.write_bytes(patched(path, 36, struct.pack("<Q", 2048)))
    path.write_bytes(patched(path, 2049 * 512 - 30, b'parentFileNameHint="x"'))
    with pytest.raises(ValueError, match="parent"):
        parse(path, "vmdk")


def test_a_vpc_with_a_parent_is_refused(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "vpc")
    with pytest.raises(ValueError, match="type 4"):
        PARSERS["vpc"](reader(patched(path, 60, struct.pack(">I", 4))))


@pytest.mark.parametrize(
    ("offset", "data"), [(76, struct.pack("<I", 4)), (424, b"\1" * 16), (440, b"\1" * 16)], ids=["type", "link", "uuid"]
)
def test_a_vdi_with_a_parent_is_refused(tmp_path: Path, offset: int, data: bytes) -> None:
    path = create(tmp_path / "image", "vdi")
    with pytest.raises(ValueError, match="parent"):
        PARSERS["vdi"](reader(patched(path, offset, data)))


@pytest.fixture
def vhdx(tmp_path: Path) -> Path:
    return create(tmp_path / "image", "vhdx")


def test_a_vhdx_with_a_parent_is_refused(vhdx: Path) -> None:
    guid = bytes.fromhex("3767a1ca36fa434db3b633f0aa44e76b")
    content = vhdx.read_bytes()
    at = content.index(guid)
    metadata = content.rindex(b"metadata", 0, at)
    (item,) = struct.unpack_from("<I", content, at + 16)
    with pytest.raises(ValueError, match="parent"):
        PARSERS["vhdx"](reader(patched(vhdx, metadata + item + 4, struct.pack("<I", 2))))


@pytest.mark.parametrize(
    ("offset", "data"),
    [(192 * 1024, b"xxxx" + bytes(65532) + b"xxxx"), (192 * 1024 + 8, struct.pack("<I", 2048))],
    ids=["both tables", "many entries"],
)
def test_a_vhdx_with_an_invalid_table_is_refused(vhdx: Path, offset: int, data: bytes) -> None:
    with pytest.raises(ValueError, match="table"):
        PARSERS["vhdx"](reader(patched(vhdx, offset, data)))


def test_a_vhdx_with_one_table_is_read(vhdx: Path) -> None:
    vhdx.write_bytes(patched(vhdx, 256 * 1024, b"xxxx"))
    subprocess.check_call(["qemu-io", "-f", "vhdx", "-c", "quit", vhdx])
    assert parse(vhdx, "vhdx") == Header()


def test_a_vhdx_without_metadata_is_refused(vhdx: Path) -> None:
    with pytest.raises(ValueError, match="lacks"):
        PARSERS["vhdx"](reader(patched(vhdx, 192 * 1024 + 8, struct.pack("<I", 0))))


@given(st.binary(max_size=200))
def test_any_bytes_after_the_magic_are_a_header_or_an_error(junk: bytes) -> None:
    beginnings = {"qcow2": b"QFI\xfb", "vmdk": b"KDMV", "vhdx": b"vhdxfile", "vpc": b"conectix", "vdi": b""}
    for name, beginning in beginnings.items():
        try:
            PARSERS[name](reader(beginning + junk))
        except ValueError:
            continue
