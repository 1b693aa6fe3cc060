# SPDX-License-Identifier: Apache-2.0
"""Clusters that have 32 parts, each with its own kind: what is read of them, whatever is beside what."""

import random
import struct
from pathlib import Path

import pytest

from ..ioutil.engine_driver import Failed
from .disk import Disk, Layer, content, create, qemu_extents, qemu_io
from .golden import poke, raw_source
from .test_hostile import table_of, u64

CLUSTER, PART = 65536, 2048


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("below", [False, True])
def test_any_kinds_beside_each_other(below: bool, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    raw = raw_source(tmp_path / "raw", 1 << 20)
    backing = {"backing": raw, "backing_format": "raw"} if below else {}
    path = create(tmp_path / "image", "1M", "extended_l2=on", "cluster_size=64k", **backing)  # type: ignore[arg-type]
    commands = []
    for _ in range(120):
        start = rng.randrange(0, 1 << 20, PART)
        length = min(rng.choice((PART, PART, 3 * PART, CLUSTER)), (1 << 20) - start)
        kind = rng.choice((f"write -P {rng.randrange(1, 256)}", "write -z", "write -z -u", "discard"))
        commands.append(f"{kind} {start} {length}")
    qemu_io(path, *commands)
    layers = [Layer(path, str(raw) if below else None), *([Layer(raw, raw=True)] if below else [])]
    expected = content(path)
    with Disk(layers, writable=False) as disk:
        assert disk.content() == expected
        assert disk.all_extents() == qemu_extents(path)
        for _ in range(200):
            at = rng.randrange(1 << 20)
            length = min(rng.randrange(1, 3 * CLUSTER), (1 << 20) - at)
            assert disk.read(at, length) == expected[at : at + length]


@pytest.mark.parametrize("marks", [1 | 1 << 32, 1 << 5 | 1 << 37, 1 << 31 | 1 << 63])
def test_part_that_is_allocated_and_zero_is_an_error_alone(marks: int, tmp_path: Path) -> None:
    path = create(tmp_path / "image", "1M", "extended_l2=on", "cluster_size=64k")
    qemu_io(path, "write -P 5 0 128k")
    _, l2 = table_of(path)
    words = struct.unpack_from(">Q", path.read_bytes(), l2 + 8)[0]
    poke(path, l2 + 8, u64(words | marks))
    bad = (marks & 0xFFFFFFFF).bit_length() - 1
    with Disk(path, writable=False) as disk:
        for part in range(32):
            if part == bad:
                with pytest.raises(Failed, match="Errno 5"):
                    disk.read(part * PART, PART)
            else:
                assert disk.read(part * PART, PART) == b"\5" * PART
        assert disk.read(CLUSTER, CLUSTER) == b"\5" * CLUSTER
        assert disk.counts.corrupt > 0


def test_part_without_a_cluster_is_an_error(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "1M", "extended_l2=on", "cluster_size=64k")
    qemu_io(path, "write -P 5 0 64k")
    _, l2 = table_of(path)
    poke(path, l2 + 16, u64(0) + u64(1 << 3))
    with Disk(path, writable=False) as disk:
        with pytest.raises(Failed, match="Errno 5"):
            disk.read(CLUSTER + 3 * PART, 1)
        assert disk.read(CLUSTER, 3 * PART) == bytes(3 * PART)


def test_compressed_cluster_with_marks_of_parts_is_an_error(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "1M", "extended_l2=on", "cluster_size=64k")
    qemu_io(path, "write -c -P 5 0 64k")
    _, l2 = table_of(path)
    poke(path, l2 + 8, u64(1))
    with Disk(path, writable=False) as disk, pytest.raises(Failed, match="Errno 5"):
        disk.read(0, 1)
