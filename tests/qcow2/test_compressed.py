# SPDX-License-Identifier: Apache-2.0
"""Compressed clusters that somebody else has made: too short, too long, or by a decoder's worst input."""

import errno
import resource
import zlib
from pathlib import Path

import pytest

from ioutil_ext import ffi, lib

from .disk import Disk, create, qemu_io
from .golden import poke
from .test_hostile import table_of, u64

CLUSTER = 65536
NUMBERS = b"".join(b"%07d\n" % n for n in range(CLUSTER // 8))


def deflated(data: bytes) -> bytes:
    encoder = zlib.compressobj(9, zlib.DEFLATED, -12)
    return encoder.compress(data) + encoder.flush()


def image_with(path: Path, stream: bytes, *, zstd_type: bool = False, at: int = 0) -> Path:
    """Make an image whose first cluster is this stream, and whose second is compressed. at: where in the file's."""
    create(path, "1M", f"compression_type={'zstd' if zstd_type else 'zlib'}")
    qemu_io(path, "write -c -P 6 64k 64k")
    end = -(-path.stat().st_size // CLUSTER) * CLUSTER
    with path.open("r+b") as file:
        file.truncate(end + CLUSTER * 2)
    poke(path, end + at, stream)
    sectors = -(-(at % 512 + len(stream)) // 512) - 1
    poke(path, table_of(path)[1], u64(1 << 62 | sectors << 54 | (end + at)))
    return path


def first(path: Path) -> bytes | None:
    """Return the first cluster; None: it cannot be read. The second one can."""
    with Disk(path, writable=False) as disk:
        assert disk.read(CLUSTER, CLUSTER) == b"\6" * CLUSTER
        memory = ffi.new("char[]", CLUSTER)
        error = disk.attempt(lib.IOU_READ, 0, CLUSTER, buffer=memory).error
        assert error in (0, errno.EIO)
        return None if error else bytes(ffi.buffer(memory))


@pytest.mark.parametrize("at", [0, 1, 77, 511, 512, 65_000])
def test_anywhere_in_the_file(at: int, tmp_path: Path) -> None:
    assert first(image_with(tmp_path / "image", deflated(NUMBERS), at=at)) == NUMBERS


def test_less_than_a_cluster(tmp_path: Path) -> None:
    assert first(image_with(tmp_path / "image", deflated(b"short" * 100))) is None
    assert first(image_with(tmp_path / "other", deflated(NUMBERS)[:5000])) is None


def test_what_is_longer_than_a_cluster_ends_with_it(tmp_path: Path) -> None:
    """As for qemu: whoever has made it has put something else behind."""
    assert first(image_with(tmp_path / "image", deflated(b"x" * 3 * CLUSTER))) == b"x" * CLUSTER


def test_garbage(tmp_path: Path) -> None:
    assert first(image_with(tmp_path / "image", b"\xff" * 3000)) is None
    assert first(image_with(tmp_path / "other", b"\xff" * 3000, zstd_type=True)) is None


def test_zstd_frame_with_a_window_of_2_gib_takes_no_memory(tmp_path: Path) -> None:
    """Magic, a descriptor without a size of content, a window of 2^31 bytes, and a block of 128 KiB of one byte."""
    block = (1 | 1 << 1 | (128 << 10) << 3).to_bytes(3, "little") + b"x"
    frame = b"\x28\xb5\x2f\xfd" + b"\0" + bytes([(31 - 10) << 3]) + block
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert first(image_with(tmp_path / "image", frame, zstd_type=True)) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
