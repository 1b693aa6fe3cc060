# SPDX-License-Identifier: Apache-2.0
"""What has changed, as bitmaps of images tell it: as qemu tells it, or not at all."""

import json
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ioutil_ext import lib
from tests.support.nbdservers import qemu_nbd

from ..ioutil.engine_driver import Failed
from .disk import Disk, Judged, Layer, create, joined, qemu_io, run
from .golden import poke
from .test_hostile import u32, u64

MIB = 1 << 20
DIRTY = lib.IOU_EXTENT_DIRTY
BITMAPS = 0x23852875


def u16(value: int) -> bytes:
    return struct.pack(">H", value)


def make(path: Path, granularity: int = 65536, size: str = "64M", *options: str) -> Path:
    """Make an image with a bitmap `b`, beside others, and some changes since."""
    create(path, size, *options)
    qemu_io(path, "write -P 1 5M 1M")
    for name in ("a", "b", "a longer name"):
        run("qemu-img", "bitmap", "--add", "-g", granularity, path, name)
    run("qemu-img", "bitmap", "--disable", path, "a")
    qemu_io(path, "write -P 2 1M 100k", "write -P 3 7654321 1", "write -z 20M 3M", f"write -P 4 {64 * MIB - 512} 512")
    return path


def told(path: Path | list[Layer], bitmap: str = "b") -> list[tuple[int, int, bool]]:
    with Disk(path, writable=False, bitmap=bitmap) as disk:
        assert disk.bitmap == "told"
        found = disk.all_extents(lib.IOU_DIRTY)
        with_holes = [(start, length, kind & lib.IOU_EXTENT_ZERO) for start, length, kind in disk.all_extents()]
        zeros = [(start, length, kind & lib.IOU_EXTENT_ZERO) for start, length, kind in found]
        assert joined(zeros) == joined(with_holes)
    return merged((start, length, bool(kind & DIRTY)) for start, length, kind in found)


def merged(extents: object) -> list[tuple[int, int, bool]]:
    return [(start, length, bool(kind)) for start, length, kind in joined(extents)]  # type: ignore[arg-type]


def told_by_qemu(path: Path, bitmap: str = "b") -> list[tuple[int, int, bool]]:
    with qemu_nbd(path, "qcow2", "--read-only", f"--bitmap={bitmap}") as server:
        words = ["nbdinfo", "--json", f"--map=qemu:dirty-bitmap:{bitmap}", server.uri]
        found = json.loads(subprocess.check_output(words))
    return merged((one["offset"], one["length"], one["type"] & 1) for one in found)


def state(path: Path | list[Layer], bitmap: str) -> str:
    with Disk(path, writable=False, bitmap=bitmap) as disk:
        assert not any(kind & DIRTY for *_, kind in disk.all_extents(lib.IOU_DIRTY)) or disk.bitmap == "told"
        return str(disk.bitmap)


@pytest.mark.parametrize("granularity", [512, 4096, 65536, MIB, 1 << 31])
@pytest.mark.parametrize("cluster", [512, 65536, 2 * MIB])
def test_as_qemu_tells_it(granularity: int, cluster: int, tmp_path: Path) -> None:
    path = make(tmp_path / "image", granularity, "64M", f"cluster_size={cluster}")
    assert told(path) == told_by_qemu(path)
    assert told(path, "a longer name") == told(path)
    assert told(path, "a") == [(0, 64 * MIB, False)]  # it was disabled before the changes


@pytest.mark.parametrize("size", ["1000001", "64M", "1536M"])
def test_whole_and_odd_disks(size: str, tmp_path: Path) -> None:
    """Tables whose entries say that all bits are set, or clear; the last bits are past the end of the disk."""
    path = create(tmp_path / "image", size, "cluster_size=512" if size != "1536M" else "cluster_size=64k")
    run("qemu-img", "bitmap", "--add", "-g", 512, path, "b")
    length = int(json.loads(run("qemu-img", "info", "--output=json", path).stdout)["virtual-size"])
    assert told(path) == [(0, length, False)] == told_by_qemu(path)
    qemu_io(path, f"write -z 0 {length}")
    assert told(path) == [(0, length, True)] == told_by_qemu(path)


def test_a_part_is_told_as_the_whole(tmp_path: Path) -> None:
    path = make(tmp_path / "image", 512)
    with Disk(path, writable=False, bitmap="b") as disk:
        whole = disk.all_extents(lib.IOU_DIRTY)
        for at in (0, 511, MIB - 1, MIB, 7_654_321, 20 * MIB + 5):
            part = [(max(start, at), start + length, kind) for start, length, kind in whole if start + length > at]
            assert disk.all_extents(lib.IOU_DIRTY, at) == [(start, end - start, kind) for start, end, kind in part]


def test_without_the_flag_or_a_name_nothing_is_told_as_changed(tmp_path: Path) -> None:
    path = make(tmp_path / "image")
    with Disk(path, writable=False, bitmap="b") as disk:
        assert not any(kind & DIRTY for *_, kind in disk.all_extents())
    with Disk(path, writable=False) as disk:
        assert disk.bitmap == ""
        assert not any(kind & DIRTY for *_, kind in disk.all_extents(lib.IOU_DIRTY))


def test_missing(tmp_path: Path) -> None:
    path = make(tmp_path / "image")
    for name in ("c", "", "bb", "B", "b" * 2000):
        assert state(path, name) == "missing"
    assert state(create(tmp_path / "other", "1M"), "b") == "missing"
    poke(path, 95, b"\0")  # a program that keeps no bitmaps has written to it
    assert state(path, "b") == "missing"


def test_in_use(tmp_path: Path) -> None:
    path = make(tmp_path / "image")
    qemu_io(path, "write -P 5 3M 1M", "abort", check=False)
    assert state(path, "b") == "in use"
    assert state(path, "a") == "in use"


def test_a_file_below_may_have_it(tmp_path: Path) -> None:
    base = make(tmp_path / "base")
    top = create(tmp_path / "top", "64M", backing=base)
    layers = [Layer(top, str(base)), Layer(base)]
    with pytest.raises(Judged, match="fallback: its bitmap may be in a file below it"):
        Disk(layers, writable=False, bitmap="b")
    run("qemu-img", "bitmap", "--add", top, "b")
    assert told(layers) == [(0, 64 * MIB, False)]


def directory(path: Path) -> tuple[int, int]:
    """Return where the extension of bitmaps and their directory are."""
    data = path.read_bytes()
    at: int = struct.unpack_from(">I", data, 100)[0]
    while struct.unpack_from(">I", data, at)[0] != BITMAPS:
        at += 8 + -(-struct.unpack_from(">I", data, at + 4)[0] // 8) * 8
    return at + 8, struct.unpack_from(">Q", data, at + 24)[0]


#: Where: the extension, the first row, or its table; at which byte; what; the reason.
WRONG: dict[str, tuple[str, int, bytes, str]] = {
    "many": ("extension", 0, u32(65536), "the directory"),
    "long directory": ("extension", 8, u64(1 << 40), "the directory"),
    "short directory": ("extension", 8, u64(20), "the directory"),
    "directory at 0": ("extension", 16, u64(0), "the directory"),
    "directory unaligned": ("extension", 16, u64(65536 * 3 + 8), "the directory"),
    "directory past the end": ("extension", 16, u64(1 << 50), "the directory"),
    "directory far away": ("extension", 16, u64(2**64 - 65536), "the directory"),
    "no name": ("row", 18, u16(0), "a name"),
    "long name": ("row", 18, u16(1024), "a name"),
    "name past the end": ("row", 18, u16(1000), "a name"),
    "reserved flags": ("row", 12, u32(10), "the kind"),
    "other type": ("row", 16, b"\2", "the kind"),
    "small granularity": ("row", 17, b"\x08", "the kind"),
    "large granularity": ("row", 17, b"\x20", "the kind"),
    "short table": ("row", 8, u32(0), "a table"),
    "long table": ("row", 8, u32(2**32 - 1), "a table"),
    "table at 0": ("row", 0, u64(0), "a table"),
    "table past the end": ("row", 0, u64(1 << 40), "a table"),
    "table unaligned": ("row", 0, u64(65536 * 3 + 8), "a table"),
}


@pytest.fixture
def single(tmp_path: Path) -> Path:
    path = create(tmp_path / "image", "64M")
    run("qemu-img", "bitmap", "--add", path, "b")
    qemu_io(path, "write -P 2 1M 100k")
    return path


@pytest.mark.parametrize("name", WRONG)
def test_directory_that_cannot_be_right(name: str, single: Path) -> None:
    """The image is refused to who asks what has changed; who does not ask may read it."""
    where, offset, data, reason = WRONG[name]
    extension, row = directory(single)
    poke(single, {"extension": extension, "row": row}[where] + offset, data)
    with pytest.raises(Judged, match=f"refuse: {reason}.* of its bitmaps cannot be right"):
        Disk(single, writable=False, bitmap="b")
    Disk(single, writable=False).close()


def test_directory_that_has_less_than_the_header_says(single: Path) -> None:
    poke(single, directory(single)[0], u32(2))
    with pytest.raises(Judged, match="refuse: the directory"):
        Disk(single, writable=False, bitmap="c")


def test_data_of_an_unknown_kind_is_left_to_qemu(single: Path) -> None:
    poke(single, directory(single)[1] + 20, u32(8))
    with pytest.raises(Judged, match="fallback: a bitmap of it has data of an unknown kind"):
        Disk(single, writable=False, bitmap="b")


ENTRIES: dict[str, Callable[[int], int]] = {
    "reserved": lambda entry: entry | 1 << 60,
    "set and elsewhere": lambda entry: entry | 1,
    "unaligned": lambda entry: entry + 512,
    "past the end": lambda entry: 1 << 50,
}


@pytest.mark.parametrize("name", ENTRIES)
def test_entry_that_cannot_be_right_is_an_error(name: str, single: Path) -> None:
    with single.open("rb") as file:
        file.seek(directory(single)[1])
        table = struct.unpack(">Q", file.read(8))[0]
        file.seek(table)
        entry = struct.unpack(">Q", file.read(8))[0]
    poke(single, table, u64(ENTRIES[name](entry)))
    with Disk(single, writable=False, bitmap="b") as disk, pytest.raises(Failed, match="Errno 5"):
        disk.all_extents(lib.IOU_DIRTY)
