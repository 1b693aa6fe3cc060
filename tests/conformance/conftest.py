# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from pathlib import Path

import pytest

from imageio_daemon.image.chain import QemuImage, inspect
from imageio_daemon.storage.backend import Backend
from imageio_daemon.storage.buffers import BufferPool
from imageio_daemon.storage.durable import DurableRecord
from imageio_daemon.storage.engine import Engine
from imageio_daemon.storage.file import FileBackend
from imageio_daemon.storage.nbd.backend import NbdBackend
from imageio_daemon.storage.nbd.client_handshake import ConnectOptions
from imageio_daemon.storage.nbd.process import QemuServer
from imageio_daemon.storage.nbd.qemu_backend import ManagedBackend
from imageio_daemon.storage.nbd.rbd import RbdBackend, RbdImage
from imageio_daemon.storage.operation import Operation
from imageio_daemon.storage.qcow2 import Qcow2Backend
from imageio_daemon.units import MiB
from imageio_daemon.urls import rbd as rbd_url
from imageio_daemon.urls.nbd import parse
from tests.support.backends import MemoryBackend
from tests.support.fakeceph import FakeCeph
from tests.support.nbdservers import NbdServer, make_qcow2, nbdkit, qemu_nbd

NBD_SERVERS = ("qemu-nbd raw", "qemu-nbd qcow2", "nbdkit memory", "nbdkit blocks")
NBD_OPTIONS = ConnectOptions(dirty=False, context=None, timeout=10, greeting_timeout=10)
#: What the filter of nbdkit refuses, and what it tells.
BLOCK_POLICY = ("blocksize-preferred=4096", "blocksize-maximum=65536", "blocksize-error-policy=error")

#: Size of the image that each backend serves, all zeros at first.
SIZE = MiB


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine(io_threads=64)
    yield engine
    await engine.release()
    assert engine.stop(timeout=10) == []


@pytest.fixture
def pool() -> Iterator[BufferPool]:
    pool = BufferPool(16 * MiB)
    yield pool
    assert pool.in_use == 0


@pytest.fixture
def record(tmp_path: Path) -> Iterator[DurableRecord]:
    """A record of which 0..4096 is durable."""
    directory = os.open(tmp_path, os.O_RDONLY)
    made = DurableRecord.new(directory, "journal", "image ticket", [(0, 4096)])
    yield made
    made.end()
    os.close(directory)


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


def serve_nbd(kind: str, directory: Path) -> AbstractContextManager[NbdServer]:
    """Serve SIZE zeros by a server of a kind."""
    if kind == "qemu-nbd raw":
        path = directory / "image.raw"
        path.touch()
        os.truncate(path, SIZE)
        return qemu_nbd(path, "raw")
    if kind == "qemu-nbd qcow2":
        return qemu_nbd(make_qcow2(directory / "image.qcow2", SIZE), "qcow2")
    if kind == "nbdkit blocks":  # of 4 KiB only: every smaller access is to a part of one
        return nbdkit("--filter=blocksize-policy", "memory", str(SIZE), "blocksize-minimum=4096", *BLOCK_POLICY)
    return nbdkit("memory", str(SIZE))


@pytest.fixture(scope="session")
def nbd_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], NbdServer]]:
    """Start the server of a kind, once: its start takes longer than a test."""
    with ExitStack() as servers:
        directory = tmp_path_factory.mktemp("nbd")
        yield cache(lambda kind: servers.enter_context(serve_nbd(kind, directory)))


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for sockets: their paths may have 107 bytes."""
    return tmp_path_factory.mktemp("run")


@pytest.fixture(params=["memory", "file", "block", "qcow2", "managed", "rbd", *NBD_SERVERS])
async def backend(
    request: pytest.FixtureRequest,
    engine: Engine,
    nbd_servers: Callable[[str], NbdServer],
    run_dir: Path,
    tmp_path: Path,
) -> AsyncIterator[Backend]:
    """Serve an image of SIZE zeros by every kind of backend in turn."""
    made: Backend
    if request.param in NBD_SERVERS:
        server = nbd_servers(request.param)
        made = await NbdBackend.open(engine, parse(server.url), NBD_OPTIONS, connections=3, writable=True)
        await made.zero(Operation(), 0, SIZE, allocate=False)
    elif request.param == "memory":
        made = MemoryBackend(bytes(SIZE))
    elif request.param == "managed":
        path = make_qcow2(tmp_path / "image", SIZE)
        image = QemuImage(str(path), "qcow2", backing_chain=True, allowed=())
        made = await ManagedBackend.start(engine, image, NBD_OPTIONS, QemuServer(str(run_dir), 3, writable=True))
    elif request.param == "qcow2":
        path = make_qcow2(tmp_path / "image", SIZE)
        found = inspect(QemuImage(str(path), "qcow2", backing_chain=True, allowed=()))
        made = await Qcow2Backend.start(engine, found, writable=True, shared=False)
    elif request.param == "rbd":
        ceph = FakeCeph(tmp_path / "ceph")
        request.getfixturevalue("monkeypatch").setenv("PATH", ceph.path)
        ceph.create("pool/image", SIZE)
        there = RbdImage(rbd_url.parse("rbd:pool/image"), "/etc/ceph.conf", "me", ("pool",))
        made = await RbdBackend.start(engine, there, NBD_OPTIONS, QemuServer(str(run_dir), 3, writable=True))
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
