# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from imageio_daemon.buffers import BufferPool
from imageio_daemon.storage.base import Backend
from imageio_daemon.storage.engine import Engine
from imageio_daemon.storage.file import FileBackend
from imageio_daemon.units import MiB
from tests.support.backends import MemoryBackend

#: Size of the image that each backend serves, all zeros at first.
SIZE = MiB


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine(io_threads=8)
    yield engine
    await engine.release_loop()
    assert engine.stop(timeout=10) == []


@pytest.fixture
def pool() -> Iterator[BufferPool]:
    pool = BufferPool(16 * MiB)
    yield pool
    assert pool.lent == 0


@pytest.fixture
def loop_device(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("a loop device needs root")
    backing = tmp_path / "backing"
    backing.touch()
    os.truncate(backing, SIZE)
    device = subprocess.check_output(["losetup", "--find", "--show", backing], text=True).strip()
    yield Path(device)
    subprocess.check_call(["losetup", "--detach", device])


@pytest.fixture(params=["memory", "file", "block"])
async def backend(request: pytest.FixtureRequest, engine: Engine, tmp_path: Path) -> AsyncIterator[Backend]:
    """Serve an image of SIZE zeros by every kind of backend in turn."""
    made: Backend
    if request.param == "memory":
        made = MemoryBackend(bytes(SIZE))
    else:
        path = tmp_path / "image"
        if request.param == "file":
            path.touch()
            os.truncate(path, SIZE)
        else:
            path = request.getfixturevalue("loop_device")
        made = await FileBackend.open(engine, str(path), writable=True)
    yield made
    await made.close()
