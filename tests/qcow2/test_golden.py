# SPDX-License-Identifier: Apache-2.0
"""Images that qemu has made, of each feature: the verdict, what is read, what is written."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .disk import Disk, Judged, Layer, checked, content, qemu_extents
from .golden import IMAGES, NATIVE

MIB = 1 << 20
#: Kinds of extents.
DATA, ZEROS = 0, 1

#: Too large to be read whole.
LARGE = {"large"}


@pytest.fixture(params=sorted(IMAGES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def verdict(layers: list[Layer], *, writable: bool) -> str:
    try:
        Disk(layers, writable=writable).close()
    except Judged as e:
        return e.verdict.judgment if e.verdict.reason else "no reason"
    return NATIVE


def compared(
    here: list[tuple[int, int, int]], there: list[tuple[int, int, int]]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the parts of two lists of extents, with the kinds in each."""
    at = 0
    while here or there:
        (start, length, kind), (other_start, other_length, other) = here[0], there[0]
        end = min(start + length, other_start + other_length)
        assert start <= at >= other_start
        yield at, end, kind, other
        here, there = (rest[end == rest[0][0] + rest[0][1] :] for rest in (here, there))
        at = end


def test_verdict_and_content(name: str, tmp_path: Path) -> None:
    golden = IMAGES[name]
    layers = golden.make(tmp_path)
    before = layers[0].path.read_bytes() if name not in LARGE else b""
    assert verdict(layers, writable=False) == golden.reader
    if golden.reader != NATIVE:
        assert verdict(layers, writable=True) == golden.writer
        return
    with Disk(layers, writable=False) as disk:
        data = b"" if name in LARGE else disk.content()
        for start, end, here, there in compared(disk.all_extents(), qemu_extents(layers[0].path, len(layers) - 1)):
            # Clusters of data in a hole of the file read as zeros. The engine looks for them in a file that is longer
            # than what it has, qemu in one that has less than the clusters that are counted, which are fewer.
            is_found = (here, there) == (ZEROS, DATA) and data[start:end] == bytes(end - start)
            assert here == there or is_found, (start, end, here, there)
        assert name in LARGE or data == content(layers[0].path)
    assert name in LARGE or layers[0].path.read_bytes() == before
    assert verdict(layers, writable=True) == golden.writer


def test_writing(name: str, tmp_path: Path) -> None:
    golden = IMAGES[name]
    if golden.writer != NATIVE or name in LARGE:
        return
    layers = golden.make(tmp_path)
    path = layers[0].path
    model = bytearray(content(path))
    others = [(layer.path, layer.path.read_bytes()) for layer in layers[1:]]
    with Disk(layers) as disk:
        size = disk.info.size

        def write(offset: int, data: bytes) -> None:
            if offset + len(data) <= size:
                disk.write(offset, data)
                model[offset : offset + len(data)] = data

        def zero(offset: int, length: int, flags: int = 0) -> None:
            if offset + length <= size:
                disk.zero(offset, length, flags)
                model[offset : offset + length] = bytes(length)

        write(MIB + 5000, b"a" * 100)
        write(4 * MIB - 7, b"b" * 300_000)
        write(0, b"c" * 70_000)
        zero(5 * MIB, 700_000)
        zero(100, 5000)
        write(5 * MIB + 65536, b"d" * 4096)
        zero(3 * MIB, MIB, 2)
        write(size - min(size, 600), b"e" * min(size, 600))
        disk.flush()
        assert disk.content() == model
    assert content(path) == model
    assert checked(path) == golden.checks
    assert [(path, path.read_bytes()) for path, _ in others] == others
