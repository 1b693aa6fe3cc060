# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed while they write qcow2 images, which are sound then, and have all that a flush covered."""

import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.qcow2.disk import checked, content, create
from tests.support.polling import eventually

from .writer import PROGRESS, THREADS, wrong_sectors

LONG = bool(os.environ.get("IMAGEIO_TEST_LONG"))
KILLS = 250 if LONG else 2
SIZE = 3 << 20
#: Kills of one image, before there is a new one.
LIVES = 10


def killed(path: Path, seed: str, progress: Path, seconds: float) -> bytes:
    """Kill a writer so long after each of its threads has changed something, and return how far they have come."""
    progress.write_bytes(bytes(THREADS * PROGRESS.size))
    writer = subprocess.Popen([sys.executable, "-m", "tests.soak.qcow2.writer", str(path), seed, str(progress)])
    try:
        eventually(lambda: writer.poll() is not None or all_have_begun(progress), "all threads work")
        with suppress(subprocess.TimeoutExpired):
            writer.wait(seconds)
        assert writer.poll() is None, "it has failed by itself"
    finally:
        writer.kill()
        writer.wait()
    return progress.read_bytes()


def all_have_begun(progress: Path) -> bool:
    return all(begun for begun, _ in PROGRESS.iter_unpack(progress.read_bytes()))


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("options", ["cluster_size=64k", "cluster_size=4k", "cluster_size=512", "refcount_bits=1"])
def test_an_image_whose_writer_is_killed_is_sound(options: str, tmp_path: Path) -> None:
    rng = random.Random()
    path, progress = tmp_path / "image", tmp_path / "progress"
    for kill in range(KILLS):
        if kill % LIVES == 0:
            path.unlink(missing_ok=True)
            create(path, SIZE, options)
            before = bytes(SIZE)
        seed = str(rng.random())
        told = killed(path, seed, progress, rng.random() * 0.3)
        assert checked(path) in (0, 3), seed
        found = content(path)
        assert not wrong_sectors(found, seed, told, before), seed
        before = found
