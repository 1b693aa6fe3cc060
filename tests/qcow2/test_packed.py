# SPDX-License-Identifier: Apache-2.0
"""Disks as qcow2 files that are made as they are read: qemu finds nothing wrong, and reads what the disk has."""

import errno
import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from ioutil_ext import ffi, lib

from ..ioutil.engine_driver import Failed, Image
from .checker import Checked
from .disk import SOUND, Disk, Layer, checked, content, create, qemu_io, run
from .packed import Packed, Told, told_by

KiB, MiB = 1 << 10, 1 << 20


def is_same(path: Path, source: Path, source_format: str = "raw") -> bool:
    words = ("qemu-img", "compare", "-f", "qcow2", "-F", source_format, path, source)
    return run(*words, check=False).returncode == 0


def pieces(rng: random.Random, size: int, most: int) -> list[Told]:
    """Return extents of up to `most` bytes, by turns with data and without."""
    ends = [0]
    while ends[-1] < size:
        ends.append(min(size, ends[-1] + rng.randint(1, most)))
    return [(end, bool(number % 2)) for number, end in enumerate(ends[1:])]


def filled(path: Path, told: list[Told], rng: random.Random) -> Path:
    """Make a raw file with data in these extents."""
    with path.open("wb") as file:
        start = 0
        for end, data in told:
            file.write(rng.randbytes(end - start) if data else bytes(end - start))
            start = end
    return path


@pytest.fixture
def rng() -> random.Random:
    return random.Random(129)


@pytest.mark.parametrize("bits", [9, 12, 16, 21])
@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 100_000, MiB, 3 * MiB + 777])
def test_clusters_of_each_size(size: int, bits: int, rng: random.Random, tmp_path: Path) -> None:
    told = pieces(rng, size, 200_000)
    raw = filled(tmp_path / "raw", told, rng)
    with Image(raw) as disk, Packed(disk, size, told, bits) as packed:
        (tmp_path / "qcow2").write_bytes(packed.content())
    assert checked(tmp_path / "qcow2") == SOUND
    assert is_same(tmp_path / "qcow2", raw)


@pytest.mark.parametrize(("bits", "most"), [(9, 1000), (9, 20_000), (12, 5000), (16, 100_000), (16, 10 * MiB)])
def test_any_range_is_that_of_the_whole(bits: int, most: int, rng: random.Random, tmp_path: Path) -> None:
    size = 6 * MiB + 1234
    told = pieces(rng, size, most)
    with Image(filled(tmp_path / "raw", told, rng)) as disk, Packed(disk, size, told, bits) as packed:
        whole = packed.content()
        for _ in range(500):
            start = rng.randrange(len(whole))
            length = rng.randint(0, min(len(whole) - start, rng.choice((10, 1000, 100_000, len(whole)))))
            assert packed.read(start, length) == whole[start : start + length]


def test_each_cluster_is_counted_once_and_what_is_zero_takes_none(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.write_bytes(bytes(64 * KiB) + b"x" * 64 * KiB + bytes(MiB))
    size = raw.stat().st_size
    told = [(64 * KiB, False), (128 * KiB, True), (size, False)]
    with Image(raw) as disk, Packed(disk, size, told) as packed:
        data = packed.content()
    found = Checked(data)
    assert not found.wrong
    assert found.leaks == 0
    assert found.content() == raw.read_bytes()
    # Header, table of counts, their block, L1, L2, data: nothing else, and each is used.
    assert len(data) == 6 * 64 * KiB
    assert set(found.uses) == set(range(6))
    assert found.copied == {4, 5}


def test_a_disk_without_data_has_no_l2_table(tmp_path: Path) -> None:
    raw, size = tmp_path / "raw", 1 << 40
    raw.touch()
    os.truncate(raw, size)
    with Image(raw) as disk, Packed(disk, size, [(size, False)]) as packed:
        (tmp_path / "qcow2").write_bytes(packed.content())
    assert (tmp_path / "qcow2").stat().st_size == 4 * 64 * KiB
    assert checked(tmp_path / "qcow2") == SOUND


def test_counts_that_take_several_blocks_and_their_table_several_clusters(tmp_path: Path) -> None:
    """With clusters of 512 bytes, a block counts 128 KiB, and a cluster of its table 8 MiB."""
    raw = tmp_path / "raw"
    size = 20 * MiB
    raw.write_bytes(random.Random(7).randbytes(size))
    with Image(raw) as disk, Packed(disk, size, [(size, True)], 9) as packed:
        (tmp_path / "qcow2").write_bytes(packed.content())
    header = (tmp_path / "qcow2").read_bytes()[:112]
    assert struct.unpack_from(">I", header, 56)[0] > 1
    assert checked(tmp_path / "qcow2") == SOUND
    assert is_same(tmp_path / "qcow2", raw)


def test_data_of_tebibytes_is_found(tmp_path: Path) -> None:
    """Offsets past 2^40, in the disk and in the file: nobody reads more than their ends."""
    raw, size = tmp_path / "raw", 1 << 40
    raw.touch()
    with raw.open("r+b") as file:
        file.truncate(size)
        file.seek(size - 100)
        file.write(b"e" * 100)
    with Image(raw) as disk, Packed(disk, size, [(size, True)]) as packed:
        length = packed.info.size
        assert length > size
        assert packed.read(length - 200, 200) == bytes(100) + b"e" * 100
        # The last entry of the last L2 table leads to the last cluster.
        header = packed.read(0, 112)
        (l1,) = struct.unpack_from(">Q", header, 40)
        (entries,) = struct.unpack_from(">I", header, 36)
        (table,) = struct.unpack(">Q", packed.read(l1 + 8 * (entries - 1), 8))
        (entry,) = struct.unpack(">Q", packed.read((table & ~(1 << 63)) + 64 * KiB - 8, 8))
        assert entry == (1 << 63) | (length - 64 * KiB)


def test_a_chain_with_zeros_and_compressed_clusters(tmp_path: Path) -> None:
    base = create(tmp_path / "base", "8M")
    qemu_io(base, "write -P 1 0 3M", "write -c -P 2 4M 1M")
    top = create(tmp_path / "top", "9M", backing=base)
    qemu_io(top, "write -z 1M 64k", "write -P 3 2M 1000", "write -P 4 8M 64k")
    with (
        Disk([Layer(top, str(base)), Layer(base)], writable=False) as disk,
        Packed(disk, 9 * MiB, told_by(disk)) as packed,
    ):
        (tmp_path / "qcow2").write_bytes(packed.content())
    assert checked(tmp_path / "qcow2") == SOUND
    assert content(tmp_path / "qcow2") == content(top)


def test_data_is_that_of_the_time_of_the_read(tmp_path: Path) -> None:
    """The file stays sound when the disk changes: new data in clusters of the map, and none elsewhere."""
    raw, size = tmp_path / "raw", 4 * 64 * KiB
    raw.write_bytes(b"a" * 64 * KiB + bytes(size - 64 * KiB))
    with Image(raw) as disk, Packed(disk, size, [(64 * KiB, True), (size, False)]) as packed:
        first = packed.read(0, 1000)
        disk.write(0, b"b" * 128 * KiB)
        (tmp_path / "qcow2").write_bytes(first + packed.read(1000, packed.info.size - 1000))
    assert checked(tmp_path / "qcow2") == SOUND
    assert content(tmp_path / "qcow2") == b"b" * 64 * KiB + bytes(size - 64 * KiB)


def test_a_disk_that_was_cut_is_an_error(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.write_bytes(b"a" * MiB)
    with Image(raw) as disk, Packed(disk, MiB, [(MiB, True)]) as packed:
        os.truncate(raw, MiB // 2)
        with pytest.raises(Failed) as failed:
            packed.content()
    assert failed.value.errno == errno.ENODATA


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Image]:
    (tmp_path / "raw").write_bytes(b"x" * MiB)
    with Image(tmp_path / "raw") as image:
        yield image


@pytest.mark.parametrize(
    ("code", "size", "told", "bits"),
    [
        (errno.EINVAL, MiB, [], 8),
        (errno.EINVAL, MiB, [], 22),
        (errno.EINVAL, (1 << 64) - 1, [], 16),
        (errno.EFBIG, (1 << 25 << 16) + 1, [], 16),
        (errno.EFBIG, 1 << 62, [], 21),
        (errno.ENODATA, MiB, [], 16),
        (errno.ENODATA, MiB, [(MiB - 1, True)], 16),
        (errno.EINVAL, MiB, [(MiB + 1, True)], 16),
        (errno.EINVAL, MiB, [(MiB, True), (MiB, True)], 16),
        (errno.EINVAL, MiB, [(MiB // 2, True), (10, True)], 16),
    ],
)
def test_what_is_refused(code: int, size: int, told: list[Told], bits: int, disk: Image) -> None:
    with pytest.raises(OSError, match=r"\[Errno") as failed:
        Packed(disk, size, told, bits)
    assert failed.value.errno == code


def test_nothing_is_told_after_the_end(disk: Image) -> None:
    with Packed(disk, MiB, [(MiB, True)]) as packed:
        for late in (packed.place, lambda: packed.tell([(MiB, False)])):
            with pytest.raises(OSError, match=r"\[Errno 22\]"):
                late()


@pytest.mark.parametrize("kind", [lib.IOU_STAT, lib.IOU_FLUSH, lib.IOU_EXTENTS, lib.IOU_WRITE, lib.IOU_ZERO])
def test_it_can_only_be_read(kind: int, disk: Image) -> None:
    with Packed(disk, MiB, [(MiB, True)]) as packed:
        result = packed.attempt(kind, 0, 512, buffer=ffi.new("char[]", 512), buffer_size=512)
    assert result.error in (errno.EINVAL, errno.ENOTSUP)


def test_a_read_past_its_end(disk: Image) -> None:
    with Packed(disk, MiB, [(MiB, True)]) as packed, pytest.raises(Failed):
        packed.read(packed.info.size, 1)


def test_the_disk_stays_open_as_long_as_its_file(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(b"x" * MiB)
    disk = Image(tmp_path / "raw")
    packed = Packed(disk, MiB, [(MiB, True)])
    disk.close()
    with packed:
        assert packed.content()[-MiB:] == b"x" * MiB
