# SPDX-License-Identifier: Apache-2.0
"""Random operations on images of many kinds, against a model in memory, and against qemu after each round."""

import os
import random
import threading
from pathlib import Path

import pytest

from ioutil_ext import lib

from .disk import Disk, Layer, checked, content
from .golden import IMAGES, NATIVE

LONG = bool(os.environ.get("IMAGEIO_TEST_LONG"))
pytestmark = [pytest.mark.timeout(7200)] if LONG else []
ROUNDS, OPERATIONS = (int(os.environ.get("IMAGEIO_TEST_ROUNDS", "60")), 1000) if LONG else (2, 120)

#: Images that tell something new about writing, and are not too slow for qemu-img.
KINDS = [
    *("default", "v2", "cluster-512", "cluster-4k", "cluster-2M", "small-and-narrow", "small-and-wide", "refcount-2"),
    *("overlay", "overlay-raw", "overlay-odd", "overlay-three", "overlay-512", "overlay-2M"),
    *("compressed", "compressed-512", "compressed-changed", "compressed-narrow", "compressed-zstd"),
    *("snapshot", "snapshot-512", "snapshot-deleted", "zero-flags", "odd-size", "preallocated-metadata"),
]
FLAGS = (0, 0, lib.IOU_ALLOCATE, lib.IOU_FAST_ONLY)


class Model:
    """A disk and what it must hold. Threads have parts of it, which they change alone."""

    def __init__(self, layers: list[Layer], seed: int) -> None:
        self.layers = layers
        self.data = bytearray(content(layers[0].path))
        self.rng = random.Random(seed)
        self.seed = seed

    def step(self, disk: Disk, rng: random.Random, start: int, end: int) -> None:
        """Do one operation inside of a part of the disk."""
        offset = rng.randrange(start, end)
        length = min(rng.choice((1, 512, 4096, 5000, 65536, 300_000)), end - offset)
        if rng.randrange(2):
            offset, length = offset & ~4095, length & ~4095
            offset = max(offset, start)
        match rng.randrange(12):
            case 0 | 1 | 2 | 3 | 4:
                data = rng.randbytes(1) * length if rng.randrange(2) else rng.randbytes(length)
                disk.write(offset, data, rng.choice((0, 0, 0, lib.IOU_FUA)) if rng.randrange(20) == 0 else 0)
                self.data[offset : offset + length] = data
            case 5 | 6:
                flags = rng.choice(FLAGS)
                result = disk.attempt(lib.IOU_ZERO, offset, length, flags)
                assert result.error in ((0, 95) if flags & lib.IOU_FAST_ONLY else (0,)), self.seed
                if not result.error:
                    self.data[offset : offset + length] = bytes(length)
            case 7:
                disk.trim(offset, length)
                found = disk.read(offset, length)
                self.data[offset : offset + length] = found
            case 8:
                if rng.randrange(4) == 0:
                    disk.flush()
            case 9:
                for extent in disk.extents(offset, length):
                    assert not extent.hole or not any(self.data[extent.start :][: extent.length]), self.seed
            case _:
                assert disk.read(offset, length) == self.data[offset : offset + length], self.seed

    def round(self, operations: int, threads: int) -> None:
        with Disk(self.layers) as disk:
            size = len(self.data)
            part = -(-size // threads) & ~511 or size
            failures: list[BaseException] = []

            def work(number: int) -> None:
                rng = random.Random(self.rng.random() if threads == 1 else f"{self.seed} {number}")
                try:
                    for _ in range(operations // threads):
                        self.step(disk, rng, number * part, min((number + 1) * part, size))
                except BaseException as e:  # noqa: BLE001  # told by the test's own thread
                    failures.append(e)

            workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            if failures:
                raise failures[0]
            assert disk.content() == self.data, self.seed


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_model(kind: str, threads: int, tmp_path: Path) -> None:
    golden = IMAGES[kind]
    assert golden.writer == NATIVE
    layers = golden.make(tmp_path)
    seed = random.randrange(1 << 30) if LONG else 1
    model = Model(layers, seed)
    others = [layer.path.read_bytes() for layer in layers[1:]]
    for number in range(ROUNDS):
        model.seed = seed + number
        model.round(OPERATIONS, threads)
        assert content(layers[0].path) == model.data, model.seed
        assert checked(layers[0].path) == golden.checks, model.seed
    assert [layer.path.read_bytes() for layer in layers[1:]] == others
