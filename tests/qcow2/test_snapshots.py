# SPDX-License-Identifier: Apache-2.0
"""Internal snapshots: nothing that the engine does changes what they hold, nor the list of them."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from ioutil_ext import lib

from .disk import Disk, checked, content, create, qemu_io, run
from .golden import poke
from .test_hostile import u32, u64, verdict

MIB = 1 << 20


def held(path: Path, name: str) -> bytes:
    """Return what a snapshot holds, by qemu."""
    raw = path.with_name("snapshot.raw")
    run("qemu-img", "convert", "-l", f"snapshot.name={name}", "-f", "qcow2", "-O", "raw", path, raw)
    return raw.read_bytes()


def listed(path: Path) -> bytes:
    """Return the table of snapshots, byte for byte."""
    data = path.read_bytes()
    count, offset = struct.unpack_from(">IQ", data, 60)
    at = end = offset
    for _ in range(count):
        name, title = struct.unpack_from(">HH", data, at + 12)
        extra = struct.unpack_from(">I", data, at + 36)[0]
        end = at + 40 + extra + name + title  # what follows up to the next multiple of 8 may not be there
        at = -(-end // 8) * 8
    return data[60:72] + data[offset:end]


@pytest.fixture(params=["cluster_size=64k", "cluster_size=4k", "cluster_size=512", "refcount_bits=4", "compat=0.10"])
def image(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = create(tmp_path / "image", "4M", str(request.param))
    qemu_io(path, "write -P 5 0 2M", "write -z 1M 256k")
    run("qemu-img", "snapshot", "-c", "first", path)
    qemu_io(path, "write -P 6 512k 256k")
    run("qemu-img", "snapshot", "-c", "second", path)
    return path


CHANGES: dict[str, Callable[[Disk], object]] = {
    "write a part": lambda disk: [disk.write(at, b"new") for at in range(1000, 4 * MIB, 300_000)],
    "write all": lambda disk: disk.write(0, b"n" * 4 * MIB),
    "zero a part": lambda disk: [disk.zero(at, 5000) for at in range(1000, 4 * MIB - 5000, 200_000)],
    "zero all": lambda disk: disk.zero(0, 4 * MIB),
    "zero and keep": lambda disk: disk.zero(0, 4 * MIB, lib.IOU_ALLOCATE),
    "trim": lambda disk: disk.trim(0, 4 * MIB),
    "zero and write": lambda disk: [disk.zero(0, 2 * MIB), disk.write(5, b"x" * MIB, lib.IOU_FUA)],
}


@pytest.mark.parametrize("change", CHANGES)
def test_snapshots_hold_what_they_held(change: str, image: Path) -> None:
    names = ("first", "second")
    before, rows = [held(image, name) for name in names], listed(image)
    with Disk(image) as disk:
        CHANGES[change](disk)
        disk.flush()
        expected = disk.content()
    assert [held(image, name) for name in names] == before
    assert listed(image) == rows
    assert content(image) == expected
    assert checked(image) == 0
    for name, held_before in zip(names, before, strict=True):
        run("qemu-img", "snapshot", "-a", name, image)
        assert content(image) == held_before
        run("qemu-img", "snapshot", "-d", name, image)
    assert checked(image) == 0


def test_snapshot_of_another_size(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "1M", "cluster_size=4k")
    qemu_io(path, "write -P 5 0 1M")
    run("qemu-img", "snapshot", "-c", "small", path)
    run("qemu-img", "resize", "-q", path, "3M")
    before, rows = held(path, "small"), listed(path)
    with Disk(path) as disk:
        disk.write(500_000, b"n" * 2_000_000)
    assert held(path, "small") == before
    assert listed(path) == rows
    assert checked(path) == 0


def test_snapshot_that_failed_for_want_of_counts_leaves_the_image_as_it_is(tmp_path: Path) -> None:
    """Counts of one bit have no room for a second user; qemu gives up, and may leave leaks."""
    path = create(tmp_path / "image", "1M", "refcount_bits=1", "cluster_size=4k")
    qemu_io(path, "write -P 5 0 512k")
    assert run("qemu-img", "snapshot", "-c", "s", path, check=False).returncode
    status = checked(path)
    assert status in (0, 3)
    with Disk(path) as disk:
        disk.write(1000, b"n" * 600_000)
    assert checked(path) == status
    assert content(path)[1000:601_000] == b"n" * 600_000


#: Fields of the first row, and what they must not say.
ROWS: dict[str, tuple[int, bytes]] = {
    "table unaligned": (0, u64(5000)),
    "table past the end": (0, u64(1 << 40)),
    "table at 0": (0, u64(0)),
    "table is the header's": (0, u64(12288)),
    "table too long": (8, u32(2**32 - 1)),
    "more data than a row has": (36, u32(1 << 20)),
}


@pytest.mark.parametrize("name", ROWS)
def test_row_that_cannot_be_right_is_not_written_past(name: str, tmp_path: Path) -> None:
    path = create(tmp_path / "image", "1M", "cluster_size=4k")
    qemu_io(path, "write -P 5 0 512k")
    run("qemu-img", "snapshot", "-c", "s", path)
    at, data = ROWS[name]
    poke(path, struct.unpack_from(">Q", path.read_bytes(), 64)[0] + at, data)
    before = path.read_bytes()
    assert verdict(path, writable=True).judgment == "refuse"
    assert path.read_bytes() == before
    with Disk(path, writable=False) as disk:
        assert disk.read(0, 512 << 10) == b"\5" * (512 << 10)


def test_entry_into_the_table_of_snapshots(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "1M", "cluster_size=4k")
    qemu_io(path, "write -P 5 0 4k")
    run("qemu-img", "snapshot", "-c", "s", path)
    data = path.read_bytes()
    snapshots = struct.unpack_from(">Q", data, 64)[0]
    l1 = struct.unpack_from(">Q", data, 40)[0]
    l2 = struct.unpack_from(">Q", data, l1)[0] & 0x00FFFFFFFFFFFE00
    poke(path, l2 + 8 * 50, u64(snapshots | 1 << 63))
    assert verdict(path, writable=True).judgment == "refuse"


def test_two_entries_that_lead_to_one_table(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "8M", "cluster_size=4k")
    qemu_io(path, "write -P 5 0 4k", "write -P 6 2M 4k")
    data = path.read_bytes()
    l1 = struct.unpack_from(">Q", data, 40)[0]
    poke(path, l1 + 8, data[l1 : l1 + 8])
    assert verdict(path, writable=True).judgment == "refuse"
