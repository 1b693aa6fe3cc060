# SPDX-License-Identifier: Apache-2.0
"""Images that nobody has made by accident: each number of the header and of tables, and what must not come of it."""

import os
import random
import resource
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from imageio_daemon.image.qcow2 import parse
from ioutil_ext import ffi, lib

from ..ioutil.engine_driver import Failed
from .disk import Disk, Judged, Layer, Verdict, checked, create, qemu_io
from .golden import poke, raw_source

LONG = bool(os.environ.get("IMAGEIO_TEST_LONG"))
MUTANTS = 100_000 if LONG else 1500
OFFSET = 0x00FFFFFFFFFFFE00


def verdict(path: Path, *, writable: bool = False, backing: str | None = None) -> Verdict:
    try:
        Disk([Layer(path, backing)], writable=writable).close()
    except Judged as e:
        return e.verdict
    return Verdict("native", "")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = create(tmp_path / "image", "1M", "cluster_size=4k")
    qemu_io(path, "write -P 5 100k 200k")
    return path


def u32(value: int) -> bytes:
    return struct.pack(">I", value)


def u64(value: int) -> bytes:
    return struct.pack(">Q", value)


HEADERS: dict[str, tuple[int, bytes, str]] = {
    "magic": (0, b"QFI\xfa", "not in the format"),
    "version 1": (4, u32(1), "version of qcow2, 1,"),
    "version 4": (4, u32(4), "version of qcow2, 4,"),
    **{f"cluster bits {n}": (20, u32(n), "invalid cluster size") for n in (0, 8, 22, 63, 2**32 - 1)},
    "size": (24, u64(2**63), "invalid size"),
    "largest size": (24, u64(2**64 - 1), "invalid size"),
    **{f"encryption {n}": (32, u32(n), "encrypted") for n in (1, 2, 3)},
    "no L1": (36, u32(0), "L1 table has an invalid size"),
    "long L1": (36, u32(2**22 + 1), "L1 table has an invalid size"),
    "L1 past the end": (36, u32(2**22), "not inside"),
    "L1 at 0": (40, u64(0), "L1 table is not inside"),
    "L1 unaligned": (40, u64(4097), "L1 table is not inside"),
    "L1 far away": (40, u64(2**63), "L1 table is not inside"),
    "table at 0": (48, u64(0), "table of reference counts is not inside"),
    "table unaligned": (48, u64(512), "table of reference counts is not inside"),
    "no table": (56, u32(0), "table of reference counts has an invalid size"),
    "long table": (56, u32(2049), "table of reference counts has an invalid size"),
    "table past the end": (56, u32(2048), "table of reference counts is not inside"),
    "snapshots": (60, u32(65537), "table of snapshots"),
    "snapshots at 0": (60, u32(1), "table of snapshots"),
    **{f"feature {n}": (72, u64(1 << n), f"bit {n}") for n in (5, 17, 63)},
    "compression": (72, u64(8), "compression, 0,"),
    "subclusters": (72, u64(16), "no subclusters"),
    "count width": (96, u32(7), "width of 2^7"),
    "length 103": (100, u32(103), "length of 103"),
    "length 105": (100, u32(105), "length of 105"),
    "length of a cluster": (100, u32(4097), "length of 4097"),
    "type of compression": (104, b"\1", "compression, 1,"),
    "backing at once": (8, u64(64), "place or length"),
    "backing far away": (8, u64(4097), "place or length"),
    "extension": (112, u32(0x1234) + u32(2**32 - 1), "longer than the header"),
}


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("writable", [False, True])
def test_header(name: str, writable: bool, image: Path) -> None:
    offset, data, reason = HEADERS[name]
    poke(image, offset, data)
    before = image.read_bytes()
    found = verdict(image, writable=writable)
    assert found.judgment == "refuse"
    assert reason in found.reason
    assert image.read_bytes() == before


@pytest.mark.parametrize("length", [0, 3, 71, 103, 500])
def test_file_that_is_cut(length: int, image: Path) -> None:
    os.truncate(image, length)
    assert verdict(image).judgment == "refuse"


def test_name_below_it_that_has_changed(tmp_path: Path) -> None:
    base = create(tmp_path / "base", "1M")
    path = create(tmp_path / "top", "1M", backing=base)
    assert verdict(path, backing=str(base)).judgment == "native"
    for other in (None, "/other"):
        assert verdict(path, backing=other).reason == "the name of its backing file has changed"
    assert verdict(base, backing="/other").reason == "the name of its backing file has changed"


def part(data: bytearray, offset: int, length: int) -> bytes:
    return bytes(data[offset : offset + length])


def test_parsers_agree(tmp_path: Path) -> None:
    """What Python refuses, C does not open; and names that both read are the same."""
    rng = random.Random(None if LONG else 5)
    raw_source(tmp_path / "below", 1 << 20)
    path = create(tmp_path / "image", "1M", "cluster_size=4k", backing=tmp_path / "below", backing_format="raw")
    first = path.read_bytes()
    mutant = tmp_path / "mutant"
    for _ in range(MUTANTS):
        data = bytearray(first)
        for _ in range(rng.choice((1, 1, 2, 5))):
            place = rng.choice((rng.randrange(120), rng.randrange(104, 700)))
            data[place] = rng.choice((0, 1, 0x80, 0xFF, rng.randrange(256)))
        mutant.write_bytes(data)
        try:
            header = parse(partial(part, data))
        except ValueError:
            assert verdict(mutant).judgment != "native", data[:700].hex()
            continue
        backing = header.backing.name if header.backing else None
        assert "has changed" not in verdict(mutant, backing=backing).reason, data[:700].hex()


# Tables


def table_of(path: Path) -> tuple[int, int]:
    """Return where the L1 table and the first L2 table are."""
    with path.open("rb") as file:
        l1: int = struct.unpack_from(">Q", file.read(64), 40)[0]
        file.seek(l1)
        return l1, struct.unpack(">Q", file.read(8))[0] & OFFSET


TABLES: dict[str, Callable[[int, int], tuple[int, int]]] = {
    # where, and the entry
    "L1 to itself": lambda l1, l2: (l1, l1 | 1 << 63),
    "L1 to the header": lambda l1, l2: (l1, 1 << 63),
    "L1 reserved": lambda l1, l2: (l1, l2 | 1 << 63 | 1),
    "L1 unaligned": lambda l1, l2: (l1, (l2 + 512) | 1 << 63),
    "L1 past the end": lambda l1, l2: (l1, 1 << 50 | 1 << 63),
    "L2 to the header": lambda l1, l2: (l2, 1 << 63),
    "L2 to L1": lambda l1, l2: (l2, l1 | 1 << 63),
    "L2 to L2": lambda l1, l2: (l2, l2 | 1 << 63),
    "L2 to the table of counts": lambda l1, l2: (l2, 4096 | 1 << 63),
    "L2 to a block of counts": lambda l1, l2: (l2, 8192 | 1 << 63),
    "L2 reserved": lambda l1, l2: (l2, 1 << 60),
    "L2 unaligned": lambda l1, l2: (l2, 4608 | 1 << 63),
    "L2 past the end": lambda l1, l2: (l2, 1 << 40 | 1 << 63),
    "compressed past the end": lambda l1, l2: (l2, 1 << 62 | 1 << 40),
    "compressed into a table": lambda l1, l2: (l2, 1 << 62 | l1),
    "compressed and marked": lambda l1, l2: (l2, 3 << 62 | 40960),
    "counts reserved": lambda l1, l2: (4096, 8193),
    "counts unaligned": lambda l1, l2: (4096, 8704),
    "counts past the end": lambda l1, l2: (4096, 1 << 40),
    "no counts": lambda l1, l2: (4096, 0),
    "low count": lambda l1, l2: (8192 + 2 * 8, 0),
    "high count": lambda l1, l2: (8192 + 2 * 8, 0x0002_0002_0002_0002),
}


@pytest.mark.parametrize("name", TABLES)
def test_table(name: str, image: Path) -> None:
    l1, l2 = table_of(image)
    where, entry = TABLES[name](l1, l2)
    poke(image, where, u64(entry))
    before = image.read_bytes()
    assert verdict(image, writable=True).judgment == "refuse", name
    assert image.read_bytes() == before
    with Disk(image, writable=False) as disk:  # what can be read of it, is
        memory = ffi.new("char[]", 4096)
        parts = range(0, 1 << 20, 4096)
        errors = {disk.attempt(lib.IOU_READ, at, 4096, buffer=memory, buffer_size=4096).error for at in parts}
        assert errors <= {0, 5}
        if "count" in name:
            assert disk.read(100 << 10, 200 << 10) == b"\5" * (200 << 10)


def test_compressed_cluster_that_claims_more_than_the_file_has(tmp_path: Path) -> None:
    """What comes to lie there would be freed with it."""
    path = create(tmp_path / "image", "1M")
    qemu_io(path, "write -c -P 6 64k 64k")
    second = table_of(path)[1] + 8
    entry = struct.unpack_from(">Q", path.read_bytes(), second)[0]
    poke(path, second, u64(entry | 255 << 54))  # sectors: those of two clusters
    assert checked(path) == 2
    assert verdict(path, writable=True).reason == "an entry leads past the end of the file (0x50000)"
    with Disk(path, writable=False) as disk:
        assert disk.read(65536, 65536) == b"\6" * 65536


def test_truncated_data_is_an_error_and_not_zeros(image: Path) -> None:
    os.truncate(image, image.stat().st_size - 65536)
    with Disk(image, writable=False) as disk, pytest.raises(Failed):
        disk.read(100 << 10, 200 << 10)


def test_claims_cost_nothing(tmp_path: Path) -> None:
    """A short file that claims the largest tables is refused at once, and so is one that is long and empty."""
    path = create(tmp_path / "image", "1M")
    for offset, data in ((36, u32(2**22)), (56, u32(128)), (60, u32(65536)), (64, u64(1 << 40))):
        poke(path, offset, data)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    for _ in range(10):
        assert verdict(path, writable=True).judgment == "refuse"
    assert time.process_time() - start < 0.5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096


def test_too_many_clusters_are_left_to_qemu(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "1M", "cluster_size=512")
    os.truncate(path, 1 << 36)
    assert verdict(path, writable=True) == Verdict("fallback", "its file has too many clusters to be checked")
    assert verdict(path).judgment == "native"


def test_garbage_that_is_compressed(tmp_path: Path) -> None:
    """A cluster that does not decode is an error; the others are read."""
    for kind in ("zlib", "zstd"):
        path = create(tmp_path / kind, "1M", f"compression_type={kind}")
        qemu_io(path, "write -c -P 5 0 64k", "write -c -P 6 64k 64k")
        with path.open("r+b") as file:
            _, l2 = table_of(path)
            file.seek(l2)
            place = struct.unpack(">Q", file.read(8))[0] & ((1 << 54) - 1)
            file.seek(place)
            file.write(b"\xff" * 16)
        with Disk(path, writable=False) as disk:
            with pytest.raises(Failed):
                disk.read(0, 4096)
            assert disk.read(65536, 65536) == b"\6" * 65536
