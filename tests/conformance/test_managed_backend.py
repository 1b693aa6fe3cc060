# SPDX-License-Identifier: Apache-2.0
"""What a managed image adds to that of an NBD server: a process with the same life."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageio_daemon.errors import ServerGone, StorageError
from imageio_daemon.image.chain import QemuImage
from imageio_daemon.image.extents import ExtentList
from imageio_daemon.lifecycle.watching import release_expired
from imageio_daemon.nbdproto.constants import ExportFlag
from imageio_daemon.storage.buffers import BufferPool
from imageio_daemon.storage.engine import Engine
from imageio_daemon.storage.file import FileBackend
from imageio_daemon.storage.nbd import qemu_backend as managed
from imageio_daemon.storage.nbd.client_handshake import ConnectOptions
from imageio_daemon.storage.nbd.process import QemuServer
from imageio_daemon.storage.nbd.qemu_backend import ManagedBackend
from imageio_daemon.storage.operation import Operation
from imageio_daemon.transfers.store import TransferStore
from imageio_daemon.transfers.ticket import Access, Ticket
from tests.support.changes import trim
from tests.support.nbdservers import make_qcow2

from .conftest import NBD_OPTIONS, SIZE
from .test_backend import read, write


@pytest.fixture
def image(tmp_path: Path) -> QemuImage:
    return QemuImage(str(make_qcow2(tmp_path / "image", SIZE)), "qcow2", backing_chain=True, allowed=())


@pytest.fixture
def servers(run_dir: Path) -> Iterator[Path]:
    """The directory in which each running server has one."""
    yield run_dir
    assert not list(run_dir.iterdir())


async def start(
    engine: Engine, image: QemuImage, run_dir: Path, options: ConnectOptions = NBD_OPTIONS
) -> ManagedBackend:
    return await ManagedBackend.start(engine, image, options, QemuServer(str(run_dir), 2, writable=True))


async def test_closing_ends_the_server(engine: Engine, image: QemuImage, servers: Path) -> None:
    backend = await start(engine, image, servers)
    assert len(list(servers.iterdir())) == 1
    await backend.close()


async def test_its_name_in_logs_is_that_of_the_image(engine: Engine, image: QemuImage, servers: Path) -> None:
    backend = await start(engine, image, servers)
    assert backend.name == image.path
    await backend.close()


async def test_what_is_available_is_unknown_when_the_name_is_gone(
    engine: Engine, image: QemuImage, servers: Path
) -> None:
    backend = await start(engine, image, servers)
    assert await backend.available(Operation())
    Path(image.path).unlink()
    assert await backend.available(Operation()) is None
    await backend.close()


async def test_a_new_image_reads_as_zeros_until_it_is_changed(
    engine: Engine, image: QemuImage, servers: Path, pool: BufferPool
) -> None:
    backend = await start(engine, image, servers)
    assert await backend.reads_zero(Operation())
    await write(backend, pool, 5, b"data")
    assert not await backend.reads_zero(Operation())
    await backend.close()


async def test_a_trimmed_image_may_read_as_anything(engine: Engine, image: QemuImage, servers: Path) -> None:
    backend = await start(engine, image, servers)
    await trim(backend, Operation(), 0, SIZE)
    assert not await backend.reads_zero(Operation())
    await backend.close()


@pytest.mark.parametrize(("step", "zero"), [(SIZE // 4, True), (SIZE // 4 - 512, False)])
async def test_a_larger_image_is_asked_for_in_steps_and_no_more_than_so_many(
    engine: Engine, image: QemuImage, servers: Path, monkeypatch: pytest.MonkeyPatch, step: int, *, zero: bool
) -> None:
    monkeypatch.setattr(managed, "MAX_ASKED", 4)
    monkeypatch.setattr(managed, "STEP", step)
    backend = await start(engine, image, servers)
    assert await backend.reads_zero(Operation()) is zero
    await backend.close()


async def test_nothing_is_known_of_an_image_that_tells_less_than_it_is_asked(
    engine: Engine, image: QemuImage, servers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = await start(engine, image, servers)
    ask = backend.list_extents

    async def less(op: Operation, offset: int, length: int, most: int) -> ExtentList:
        return await ask(op, offset, min(length, 512), most)

    monkeypatch.setattr(backend, "list_extents", less)
    assert not await backend.reads_zero(Operation())
    await backend.close()


async def test_nothing_is_known_of_an_image_that_cannot_be_asked(
    engine: Engine, image: QemuImage, servers: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise StorageError(5, "status", "on purpose")

    backend = await start(engine, image, servers)
    monkeypatch.setattr(backend, "list_extents", fail)
    assert not await backend.reads_zero(Operation())
    assert f"not known whether {image.path} reads as zeros" in caplog.text
    monkeypatch.undo()
    assert not await backend.reads_zero(Operation())  # it is not asked again
    await backend.close()


@pytest.mark.parametrize("size", [0, 512, 4096])
async def test_a_small_new_image_reads_as_zeros(engine: Engine, tmp_path: Path, servers: Path, size: int) -> None:
    image = QemuImage(str(make_qcow2(tmp_path / "small", size)), "qcow2", backing_chain=True, allowed=())
    backend = await start(engine, image, servers)
    assert await backend.reads_zero(Operation())
    await backend.close()


async def test_a_server_that_cannot_be_used_is_stopped(
    engine: Engine, image: QemuImage, servers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise ServerGone("nobody", "on purpose")

    monkeypatch.setattr(ManagedBackend, "open", fail)
    with pytest.raises(ServerGone):
        await start(engine, image, servers)


async def test_an_expired_transfer_ends_its_server_and_a_revived_one_starts_another(
    engine: Engine, image: QemuImage, servers: Path, pool: BufferPool
) -> None:
    store = TransferStore(lambda _: start(engine, image, servers), most_tickets=1, most_connections=1)
    ops = (Access.WRITE,)
    ticket = Ticket(ticket_id="x", url="file:///x", size=SIZE, ops=ops, timeout=0, inactivity_timeout=60)
    transfer = store.add(ticket)
    await write(await transfer.backend(), pool, 5, b"data")
    release_expired(store)
    while transfer.end.in_use:
        await asyncio.sleep(0.01)
    assert not list(servers.iterdir())
    transfer.permission.extend(60)
    assert await read(await transfer.backend(), pool, 5, 4) == b"data"
    await store.remove("x", 30)


async def test_it_is_known_to_be_the_file_that_it_is(
    engine: Engine, image: QemuImage, servers: Path, tmp_path: Path
) -> None:
    engine = Engine(1)
    (tmp_path / "link").symlink_to(image.path)
    raw = await FileBackend.open(engine, str(tmp_path / "link"), writable=False)
    backend = await start(engine, image, servers)
    assert backend.info.identity == raw.info.identity
    await backend.close()
    await raw.close()
    await engine.release()
    assert engine.stop(10) == []


async def test_it_can_all_that_clients_ask_for(engine: Engine, image: QemuImage, servers: Path) -> None:
    backend = await start(engine, image, servers)
    wanted = ExportFlag.SEND_FLUSH | ExportFlag.SEND_FUA | ExportFlag.SEND_WRITE_ZEROES | ExportFlag.CAN_MULTI_CONN
    assert backend._client.agreed.flags & wanted == wanted
    await backend.close()
