# SPDX-License-Identifier: Apache-2.0
"""Fast zeros of images that a server has: done, or refused with every byte as it was and nothing sent."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from imageio_daemon.errors import NotFast, OutOfRange, StorageError
from imageio_daemon.image.chain import QemuImage
from imageio_daemon.nbdproto.constants import Command, CommandFlag, ErrorNumber, ExportFlag
from imageio_daemon.nbdproto.option_payloads import BlockSizes
from imageio_daemon.storage.backend import Backend
from imageio_daemon.storage.buffers import BufferPool
from imageio_daemon.storage.engine import Engine
from imageio_daemon.storage.nbd.backend import NbdBackend
from imageio_daemon.storage.nbd.process import QemuServer
from imageio_daemon.storage.nbd.qemu_backend import ManagedBackend
from imageio_daemon.storage.operation import Operation, ZeroMethod
from imageio_daemon.units import GiB, KiB, MiB
from imageio_daemon.urls.nbd import parse
from tests.support.changes import zero
from tests.support.fakenbd import Asked, FakeNbd, fake_nbd
from tests.support.nbdservers import nbdkit, qemu_nbd
from tests.support.polling import eventually_async
from tests.support.realstorage import Storage

from .conftest import NBD_OPTIONS
from .test_backend import read, write

#: Not whole clusters, so that the last one is a part.
SIZE = 6 * MiB + 512
CLUSTER = 64 * KiB
END = SIZE // CLUSTER * CLUSTER

KINDS = {
    "plain": (),
    "small clusters": ("-o", "cluster_size=512"),
    "large clusters": ("-o", "cluster_size=2M"),
    "subclusters": ("-o", "extended_l2=on"),
    "compressed": ("-c",),
    "zstd": ("-c", "-o", "compression_type=zstd"),
    "version 2": ("-o", "compat=0.10"),
    "data file": ("-o", "data_file=data.raw,data_file_raw=on"),
}
#: Kinds that have no mark for zeros, or none that is enough.
NEVER_FAST = ("version 2", "data file")
#: The others, alone and with a file below; only a conversion makes compressed clusters.
FAST = [
    pytest.param(kind, backed, id=f"{kind}{' backed' if backed else ''}")
    for kind, options in KINDS.items()
    for backed in (False, True)
    if kind not in NEVER_FAST and not (backed and "-c" in options)
]

#: Whole clusters of 2 MiB at least; the last one ends with the image.
WHOLE = [(0, 2 * MiB), (2 * MiB, 4 * MiB), (4 * MiB, SIZE - 4 * MiB), (0, SIZE)]
#: Parts of clusters, of whatever size.
PARTS_OF_512 = [(0, MiB - 1), (1, 2 * MiB), (100, 100), (END, 256), (MiB + 1, 1024)]
PARTS = [
    *PARTS_OF_512,
    (0, MiB - 512),
    (512, MiB),
    (CLUSTER - 512, 1024),
    (CLUSTER + 512, 3 * CLUSTER),
    (512, SIZE - 512),
    (2 * MiB, SIZE - 2 * MiB - 1024),
]

Start = Callable[..., Awaitable[ManagedBackend]]


def qemu_img(*arguments: object) -> None:
    subprocess.check_call(["qemu-img", *map(str, arguments)], stdout=subprocess.DEVNULL)


@pytest.fixture
def content() -> bytes:
    return os.urandom(SIZE)


@pytest.fixture
def make_image(tmp_path: Path, content: bytes) -> Callable[..., Path]:
    """Make qcow2 images with the content: make_image(kind), make_image(kind, backed=True)."""
    raw = tmp_path / "content.raw"
    raw.write_bytes(content)

    def make(kind: str, *, backed: bool = False) -> Path:
        path = tmp_path / "image.qcow2"
        options = [option.replace("data.raw", str(tmp_path / "data.raw")) for option in KINDS[kind]]
        if backed:
            below = tmp_path / "below.qcow2"
            qemu_img("convert", "-f", "raw", "-O", "qcow2", raw, below)
            qemu_img("create", "-f", "qcow2", *options, "-b", below, "-F", "qcow2", path)
        else:
            qemu_img("convert", "-f", "raw", "-O", "qcow2", *options, raw, path)
        return path

    return make


@pytest.fixture
async def start(engine: Engine, run_dir: Path, tmp_path: Path) -> AsyncIterator[Start]:
    """Open managed images that are closed after the test."""
    made: list[ManagedBackend] = []

    async def start_one(path: Path, image_format: str = "qcow2", connections: int = 3) -> ManagedBackend:
        image = QemuImage(str(path), image_format, backing_chain=True, allowed=(str(tmp_path),))
        made.append(
            await ManagedBackend.start(engine, image, NBD_OPTIONS, QemuServer(str(run_dir), connections, writable=True))
        )
        return made[-1]

    yield start_one
    for backend in made:
        await backend.close()


async def attempt(backend: Backend, offset: int, length: int, *, allocate: bool = False) -> bool:
    """Tell whether a fast zero was done; it may only be refused."""
    op = Operation()
    try:
        method = await backend.zero(op, offset, length, allocate=allocate, fast_only=True)
    except NotFast:
        assert op.done == 0
        return False
    assert (method, op.done) == (ZeroMethod.REMOTE, length)
    return True


async def everything(backend: Backend) -> bytes:
    pool = BufferPool(16 * MiB)
    size = backend.info.size
    pieces = [await read(backend, pool, at, min(4 * MiB, size - at)) for at in range(0, size, 4 * MiB)]
    return b"".join(pieces)


@pytest.mark.parametrize("allocate", [False, True], ids=["deallocate", "allocate"])
@pytest.mark.parametrize(("kind", "backed"), FAST)
async def test_qcow2_zeroes_whole_clusters_or_nothing(
    make_image: Callable[..., Path], start: Start, content: bytes, kind: str, backed: bool, allocate: bool
) -> None:
    backend = await start(make_image(kind, backed=backed))
    assert backend.info.can_fast_zero
    assert backend.info.can_fast_allocate
    for offset, length in PARTS_OF_512 if kind == "small clusters" else PARTS:
        assert not await attempt(backend, offset, length, allocate=allocate), (offset, length)
    assert await everything(backend) == content
    expected = bytearray(content)
    for offset, length in WHOLE:
        assert await attempt(backend, offset, length, allocate=allocate), (offset, length)
        expected[offset : offset + length] = bytes(length)
        assert await everything(backend) == expected


@pytest.mark.parametrize("allocate", [False, True], ids=["deallocate", "allocate"])
@pytest.mark.parametrize("kind", NEVER_FAST)
async def test_qcow2_that_has_no_mark_for_zeros_refuses_all(
    make_image: Callable[..., Path], start: Start, content: bytes, kind: str, allocate: bool
) -> None:
    backend = await start(make_image(kind))
    assert not backend.info.can_fast_zero
    assert not backend.info.can_fast_allocate
    for offset, length in PARTS + WHOLE:
        assert not await attempt(backend, offset, length, allocate=allocate)
    assert await everything(backend) == content


@pytest.mark.parametrize("image_format", ["vmdk", "vhdx", "vpc", "vdi"])
async def test_other_formats_refuse_all(start: Start, tmp_path: Path, image_format: str) -> None:
    path = tmp_path / "image"
    qemu_img("create", "-f", image_format, path, 8 * MiB)
    backend = await start(path, image_format)
    pool = BufferPool(16 * MiB)
    await write(backend, pool, 0, b"\xab" * (4 * MiB))
    before = await everything(backend)
    assert not backend.info.can_fast_zero
    for offset, length in PARTS[:4] + WHOLE[:2]:
        assert not await attempt(backend, offset, length)
    assert await everything(backend) == before


async def test_a_range_outside_is_told_as_such(make_image: Callable[..., Path], start: Start) -> None:
    backend = await start(make_image("plain"))
    with pytest.raises(OutOfRange):
        await backend.zero(Operation(), 0, SIZE + CLUSTER, allocate=False, fast_only=True)


# Servers that somebody else started: what they do before they refuse is not known


@pytest.fixture
async def server() -> AsyncIterator[FakeNbd]:
    async with fake_nbd() as server:
        await server.start()
        yield server


async def opened(engine: Engine, url: str, zero_unit: int | None = None, connections: int = 1) -> NbdBackend:
    return await NbdBackend.open(
        engine, parse(url), NBD_OPTIONS, connections=connections, writable=True, zero_unit=zero_unit
    )


@pytest.mark.parametrize("fast", [True, False])
async def test_a_server_of_an_unknown_image_is_not_asked(engine: Engine, server: FakeNbd, fast: bool) -> None:
    server.flags |= ExportFlag.SEND_FAST_ZERO
    server.flags &= ~(0 if fast else ExportFlag.SEND_FAST_ZERO)
    backend = await opened(engine, f"nbd:unix:{server.socket}")
    assert not backend.info.can_fast_zero
    assert not backend.info.can_fast_allocate
    for allocate in (False, True):
        assert not await attempt(backend, 0, CLUSTER, allocate=allocate)
    assert not server.commands(Command.WRITE_ZEROES)
    await backend.close()


async def test_a_server_without_the_flag_is_not_asked(engine: Engine, server: FakeNbd) -> None:
    server.flags &= ~ExportFlag.SEND_FAST_ZERO
    backend = await opened(engine, f"nbd:unix:{server.socket}", zero_unit=CLUSTER)
    assert not backend.info.can_fast_zero
    assert not await attempt(backend, 0, CLUSTER)
    assert not server.commands(Command.WRITE_ZEROES)
    await backend.close()


async def test_whole_units_are_asked_for_with_the_flags(engine: Engine, server: FakeNbd) -> None:
    backend = await opened(engine, f"nbd:unix:{server.socket}", zero_unit=CLUSTER)
    assert await attempt(backend, CLUSTER, CLUSTER, allocate=True)
    (asked,) = server.commands(Command.WRITE_ZEROES)
    assert (asked.range, asked.header.flags) == ((CLUSTER, CLUSTER), CommandFlag.FAST_ZERO | CommandFlag.NO_HOLE)
    await backend.close()


async def test_a_fast_zero_with_fua_that_is_refused_fails_no_flush(engine: Engine, server: FakeNbd) -> None:
    server.refused[Command.WRITE_ZEROES] = ErrorNumber.ENOTSUP
    backend = await opened(engine, f"nbd:unix:{server.socket}", zero_unit=CLUSTER)
    with pytest.raises(StorageError, match="ENOTSUP"):
        await zero(backend, Operation(), CLUSTER, CLUSTER, allocate=True, fua=True, fast_only=True)
    (asked,) = server.commands(Command.WRITE_ZEROES)
    assert asked.header.flags & CommandFlag.FUA
    await backend.flush(Operation())
    await backend.close()


async def test_whole_units_that_are_parts_of_blocks_are_refused(engine: Engine, server: FakeNbd) -> None:
    server.sizes = BlockSizes(4096, 4096, MiB)
    backend = await opened(engine, f"nbd:unix:{server.socket}", zero_unit=512)
    assert not await attempt(backend, 4096, 512)
    assert not await attempt(backend, 512, 4096)
    assert not server.commands(Command.WRITE_ZEROES)
    assert await attempt(backend, 4096, 4096)
    await backend.close()


async def test_a_refusal_does_not_wait_for_other_changes(engine: Engine, server: FakeNbd, pool: BufferPool) -> None:
    go_on = asyncio.Event()

    async def late(asked: Asked) -> bytes:
        await go_on.wait()
        return server.success(asked)

    backend = await opened(engine, f"nbd:unix:{server.socket}", zero_unit=CLUSTER)
    server.answer = late
    writing = asyncio.ensure_future(write(backend, pool, 0, b"x"))
    await eventually_async(lambda: server.commands(Command.WRITE))
    assert not await attempt(backend, 0, 512)
    assert not writing.done()
    go_on.set()
    await writing
    await backend.close()


async def test_a_refusal_of_the_server_is_a_fault_for_something_may_have_changed(
    engine: Engine, server: FakeNbd
) -> None:
    async def refuse(asked: Asked) -> bytes:
        return server.failure(asked, ErrorNumber.ENOTSUP)

    backend = await opened(engine, f"nbd:unix:{server.socket}", zero_unit=CLUSTER)
    server.answer = refuse
    with pytest.raises(StorageError):
        await backend.zero(Operation(), 0, CLUSTER, allocate=False, fast_only=True)
    server.answer = None
    await backend.close()


@pytest.mark.parametrize("allocate", [False, True], ids=["deallocate", "allocate"])
async def test_a_raw_file_that_qemu_nbd_has_keeps_its_bytes(
    engine: Engine, file_storage: Storage, allocate: bool
) -> None:
    """On ext2 it punches a hole, and then refuses because it cannot allocate."""
    path = file_storage.make(2 * MiB)
    content = os.urandom(2 * MiB)
    path.write_bytes(content)
    with qemu_nbd(path, "raw") as qemu:
        backend = await opened(engine, qemu.url)
        assert not await attempt(backend, 0, MiB, allocate=allocate)
        assert await everything(backend) == content
        await backend.close()


async def test_memory_of_nbdkit_keeps_its_bytes(engine: Engine) -> None:
    with nbdkit("memory", str(2 * MiB)) as kit:
        backend = await opened(engine, kit.url)
        pool = BufferPool(4 * MiB)
        await write(backend, pool, 0, b"\xab" * MiB)
        assert not await attempt(backend, 0, MiB)
        assert await everything(backend) == b"\xab" * MiB + bytes(MiB)
        await backend.close()


@pytest.mark.parametrize(("connections", "most"), [(1, 2**32 - 64 * KiB), (2, 128 * MiB)])
async def test_what_does_not_fit_into_one_request_is_refused(
    engine: Engine, server: FakeNbd, connections: int, most: int
) -> None:
    server.flags |= ExportFlag.SEND_FAST_ZERO
    server.size = 10 * GiB
    backend = await opened(engine, f"nbd:unix:{server.socket}", zero_unit=CLUSTER, connections=connections)
    asked = len(server.asked)
    assert not await attempt(backend, 0, most + CLUSTER)
    assert not await attempt(backend, MiB, 128 * MiB) or connections == 1
    assert await attempt(backend, 0, most)
    assert [one.range for one in server.asked[asked:] if one.header.command == Command.WRITE_ZEROES][-1] == (0, most)
    await backend.close()
