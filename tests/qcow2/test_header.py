# SPDX-License-Identifier: Apache-2.0
"""Headers that are unusual and right: they open, and what the engine does not know stays as it is."""

import os
from pathlib import Path

import pytest

from ioutil_ext import lib

from ..ioutil.engine_driver import Failed
from .disk import Disk, Judged, Layer, checked, content, create, qemu_io, run
from .golden import poke
from .test_hostile import table_of, u32, u64, verdict

#: An extension that nobody knows, and one that ends the list.
UNKNOWN = u32(0x12345678) + u32(5) + b"hello\0\0\0" + u32(0) + u32(0)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = create(tmp_path / "image", "1M", "cluster_size=4k")
    qemu_io(path, "write -P 5 100k 200k")
    return path


def change(path: Path) -> None:
    with Disk(path) as disk:
        disk.write(5000, b"x" * 100_000)
        disk.zero(120 << 10, 64 << 10)
        disk.flush()


@pytest.mark.parametrize("length", [104, 112, 120])
def test_unknown_fields_and_extensions_survive(length: int, image: Path) -> None:
    """Bytes of a header that is longer than what is known, compatible features, and unknown extensions."""
    poke(image, 100, u32(length))
    if length > 112:
        poke(image, 112, b"\xaa" * (length - 112))
    poke(image, length, UNKNOWN)
    poke(image, 80, u64(1 << 40))  # a compatible feature
    before = image.read_bytes()[:4096]
    change(image)
    assert image.read_bytes()[:4096] == before
    assert content(image)[5000:105_000] == b"x" * 100_000
    assert checked(image) == 0


def test_l1_table_that_is_longer_than_needed(image: Path) -> None:
    poke(image, 36, u32(512))  # a whole cluster of entries
    before = image.read_bytes()[:4096]
    change(image)
    assert image.read_bytes()[:4096] == before
    assert checked(image) == 0


@pytest.mark.parametrize(
    ("extensions", "reason"),
    [
        (2 * (u32(0xE2792ACA) + u32(3) + b"raw\0\0\0\0\0") + u32(0) + u32(0), "there twice"),
        (u32(0xE2792ACA) + u32(16) + b"x" * 16 + u32(0) + u32(0), "backing format is too long"),
        (u32(0x23852875) + u32(16) + bytes(16) + u32(0) + u32(0), "extension of bitmaps has 16 bytes"),
        (u32(0x44415441) + u32(1024) + b"x" * 1024 + u32(0) + u32(0), "data file is too long"),
    ],
)
def test_extension_that_cannot_be_right(extensions: bytes, reason: str, image: Path) -> None:
    poke(image, 112, extensions)
    found = verdict(image)
    assert found.judgment == "refuse"
    assert reason in found.reason


def test_extensions_that_end_with_their_area(image: Path) -> None:
    """Nothing ends the list but the first cluster."""
    poke(image, 112, u32(0x12345678) + u32(4096 - 120) + bytes(4096 - 120))
    assert verdict(image).judgment == "native"


@pytest.mark.parametrize(("size", "name"), [(1024, b"x" * 1024), (3, b"a\0b"), (3, b"a\nb"), (0, b"")])
def test_name_below_it_that_cannot_be_one(size: int, name: bytes, image: Path) -> None:
    poke(image, 8, u64(1024))
    poke(image, 16, u32(size))
    poke(image, 1024, name)
    found = verdict(image)
    assert found.judgment == "refuse"
    assert "the name of the backing file" in found.reason


def test_unknown_compression(image: Path) -> None:
    poke(image, 72, u64(8))
    poke(image, 104, b"\2")
    assert "compression, 2," in verdict(image).reason


def test_size_0_has_nothing_and_takes_nothing(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "0")
    before = path.read_bytes()
    with Disk(path) as disk:
        assert disk.all_extents() == []
        with pytest.raises(Failed, match="No space"):
            disk.write(0, b"x")
        disk.flush()
    assert path.read_bytes() == before


def test_mark_of_zeros_is_an_error_in_version_2(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "1M", "compat=0.10", "cluster_size=4k")
    qemu_io(path, "write -P 5 0 8k")
    _, l2 = table_of(path)
    with path.open("rb") as file:
        entry = os.pread(file.fileno(), 8, l2)
    poke(path, l2 + 7, bytes([entry[7] | 1]))
    with Disk(path, writable=False) as disk:
        with pytest.raises(Failed, match="Errno 5"):
            disk.read(0, 4096)
        assert disk.read(4096, 4096) == b"\5" * 4096
    with pytest.raises(Judged, match="an L2 entry cannot be right"):
        Disk(path)


def test_reader_changes_no_byte_of_an_image_with_autoclear_features(image: Path) -> None:
    poke(image, 88, u64(1 << 20))
    before = image.read_bytes()
    with Disk(image, writable=False) as disk:
        assert disk.read(100 << 10, 4096) == b"\5" * 4096
    assert image.read_bytes() == before


def test_last_cluster_that_the_file_cuts_reads_as_zeros(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "1M", "cluster_size=64k")
    qemu_io(path, "write -P 5 0 64k")
    os.truncate(path, path.stat().st_size - 60_000)
    with Disk(path, writable=False) as disk:
        assert disk.read(0, 65536) == b"\5" * 5536 + bytes(60_000)
    with Disk(path) as disk:
        disk.write(65536, b"n" * 65536)
    assert content(path)[: 2 * 65536] == b"\5" * 5536 + bytes(60_000) + b"n" * 65536
    assert checked(path) == 0


def test_chain_of_files(tmp_path: Path) -> None:
    """As many files as are allowed: each is read; one more is refused before any is opened."""
    layers: list[Layer] = []
    for number in range(lib.IOU_QCOW2_MAX_LAYERS):
        below = layers[0].path if layers else None
        path = create(tmp_path / f"{number}", "512k", "cluster_size=4k", backing=below)
        qemu_io(path, f"write -P {number + 1} {number * 4}k 4k")
        layers.insert(0, Layer(path, str(below) if below else None))
    with Disk(layers) as disk:
        assert disk.read(0, 4 * 65 * 1024 - 4096) == b"".join(bytes([n + 1]) * 4096 for n in range(64))
        disk.write(10, b"top")
    top = create(tmp_path / "more", "512k", backing=layers[0].path)
    with pytest.raises(Failed):
        Disk([Layer(top, str(layers[0].path)), *layers])
    assert run("qemu-img", "check", "-q", layers[0].path).returncode == 0
