# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from imageio_daemon import httpurl
from imageio_daemon.buffers import BufferPool
from imageio_daemon.storage.base import Backend
from imageio_daemon.storage.engine import Engine
from imageio_daemon.storage.file import FileBackend
from imageio_daemon.storage.http import HttpBackend
from imageio_daemon.tls import client_context
from imageio_daemon.units import MiB
from tests.support.backends import MemoryBackend
from tests.support.daemon import Certificates, Daemon

OpenHttp = Callable[[str], Awaitable[HttpBackend]]

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


@pytest.fixture(scope="session")
def other_daemon(certificates: Certificates) -> Iterator[Daemon]:
    """The daemon behind the backends of https urls."""
    with Daemon(certificates) as daemon:
        yield daemon


@pytest.fixture
async def open_http(other_daemon: Daemon) -> AsyncIterator[OpenHttp]:
    """Open backends for tickets of the other daemon, closed after the test: await open_http(ticket_id)."""
    context = client_context(str(other_daemon.cafile))
    async with AsyncExitStack() as cleanup:

        async def make(ticket_id: str) -> HttpBackend:
            address = httpurl.parse(other_daemon.url(ticket_id))
            backend = await HttpBackend.open(address, context=context, max_connections=8)
            cleanup.push_async_callback(backend.close)
            return backend

        yield make


@pytest.fixture(params=["memory", "file", "block", "http"])
async def backend(
    request: pytest.FixtureRequest, engine: Engine, other_daemon: Daemon, open_http: OpenHttp, tmp_path: Path
) -> AsyncIterator[Backend]:
    """Serve an image of SIZE zeros by every kind of backend in turn."""
    made: Backend
    if request.param == "memory":
        made = MemoryBackend(bytes(SIZE))
    elif request.param == "http":
        path = tmp_path / "image"
        path.touch()
        os.truncate(path, SIZE)
        made = await open_http(other_daemon.add_ticket(path, 2 * SIZE))
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
