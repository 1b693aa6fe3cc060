# SPDX-License-Identifier: Apache-2.0
"""Zeroing and trimming: what they change, what they leave alone, and what is free after them."""

import errno
import time
from pathlib import Path

import pytest

from ioutil_ext import lib

from .crash import Recorder
from .disk import Disk, Layer, checked, content, create, qemu_io, run
from .golden import overlay
from .test_faults import Fault

MIB = 1 << 20
CLUSTER = 65536


@pytest.fixture
def compressed(tmp_path: Path) -> Path:
    """A disk of 1 MiB, whose clusters are compressed and share clusters of the file."""
    (tmp_path / "source").write_bytes(b"".join(b"%07d\n" % n for n in range(MIB // 8)))
    run("qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2", tmp_path / "source", tmp_path / "image")
    return tmp_path / "image"


def test_zeroing_nothing_changes_nothing(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "8M")
    before = path.read_bytes()
    with Disk(path) as disk:
        disk.zero(0, 8 * MIB)
        disk.zero(5000, 100)
        disk.trim(0, 8 * MIB)
        disk.flush()
        assert disk.counts.allocated == 0
    assert path.read_bytes().rstrip(b"\0") == before.rstrip(b"\0")  # its last cluster is whole now


def test_zeroed_clusters_are_free(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "8M")
    with Disk(path) as disk:
        disk.write(0, b"x" * 8 * MIB)
        disk.flush()
        full = path.stat().st_blocks * 512
        disk.zero(0, 8 * MIB)
        disk.flush()
        assert full - path.stat().st_blocks * 512 >= 7 * MIB
        assert disk.counts.freed == 8 * MIB // CLUSTER
        assert disk.counts.frees_waiting == 0
    assert checked(path) == 0
    assert path.stat().st_size < MIB


def test_a_file_below_does_not_show_through_zeros(tmp_path: Path) -> None:
    layers = overlay()(tmp_path)
    with Disk(layers) as disk:
        disk.zero(0, 3 * MIB)
        disk.zero(4 * MIB + 777, 100_000)
        assert not any(disk.read(0, 3 * MIB))
        expected = disk.content()
        assert not any(expected[4 * MIB + 777 :][:100_000])
    assert content(layers[0].path) == expected
    assert checked(layers[0].path) == 0


def test_zeros_that_are_allocated_have_their_space(tmp_path: Path) -> None:
    path = create(tmp_path / "image", 4 * MIB)
    recorder = Recorder(path, path.read_bytes())
    with recorder.installed():
        disk = Disk([Layer(path)], shared=True)
        disk.write(MIB, b"x" * 100_000)
        disk.zero(0, 4 * MIB, lib.IOU_ALLOCATE)
        disk.flush()
        recorder.fault = Fault("fallocate", errno.ENOSPC, 0, for_ever=True)
        for at in range(0, 4 * MIB, CLUSTER):
            disk.write(at + 100, b"y" * 5000)
        disk.flush()
        disk.close()


@pytest.mark.parametrize(("offset", "length"), [(100, 1000), (CLUSTER - 1, 2), (5 * CLUSTER + 4096, 8192)])
def test_fast_request_for_a_part_of_what_is_shared_changes_nothing(offset: int, length: int, compressed: Path) -> None:
    before = content(compressed)
    with Disk(compressed) as disk:
        assert disk.attempt(lib.IOU_ZERO, offset, length, lib.IOU_FAST_ONLY).error == errno.ENOTSUP
        assert disk.content() == before
        assert disk.counts.allocated == 0
    assert content(compressed) == before
    assert checked(compressed) == 0


def test_zeros_to_the_end_of_the_disk_are_those_of_a_whole_cluster(tmp_path: Path) -> None:
    path = create(tmp_path / "image", MIB + 512)
    qemu_io(path, f"write -P 5 0 {MIB + 512}")
    with Disk(path) as disk:
        assert disk.attempt(lib.IOU_ZERO, MIB, 512, lib.IOU_FAST_ONLY).error == 0
        disk.flush()
        assert disk.counts.freed == 1
        assert disk.content() == b"\5" * MIB + bytes(512)
    assert checked(path) == 0


def test_trim_of_a_part_changes_nothing_and_of_clusters_leaves_zeros(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "4M")
    qemu_io(path, "write -P 5 0 4M")
    with Disk(path) as disk:
        disk.trim(100, 5000)
        disk.trim(CLUSTER - 512, 1024)
        assert disk.content() == b"\5" * 4 * MIB
        disk.trim(MIB - 100, MIB + 200)
        assert disk.content() == b"\5" * MIB + bytes(MIB) + b"\5" * 2 * MIB
    assert checked(path) == 0


def test_clusters_that_share_one_of_the_file_are_freed_one_by_one(compressed: Path) -> None:
    data = bytearray(content(compressed))
    with Disk(compressed) as disk:
        for number in (3, 2, 9, 10, 11):
            disk.zero(number * CLUSTER, CLUSTER)
            data[number * CLUSTER : (number + 1) * CLUSTER] = bytes(CLUSTER)
            disk.flush()
            assert disk.content() == data
    assert checked(compressed) == 0
    assert content(compressed) == data


def test_a_disk_of_1_pib_is_zeroed_at_once(tmp_path: Path) -> None:
    path = create(tmp_path / "image", "1P", "cluster_size=2M")
    qemu_io(path, "write -P 5 500T 1M")
    start = time.process_time()
    with Disk(path) as disk:
        disk.zero(0, 1 << 50)
        assert disk.all_extents()[0][:2] == (0, 1 << 50) or all(kind & 1 for *_, kind in disk.all_extents())
    assert time.process_time() - start < 1.0
    assert checked(path) == 0
