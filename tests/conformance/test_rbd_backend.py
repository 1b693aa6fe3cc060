# SPDX-License-Identifier: Apache-2.0
"""What an image on Ceph adds to that of an NBD server. Files take the place of Ceph; tests/lab/ceph has one."""

import asyncio
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageio_daemon.errors import NotFast, NotFound, StorageError
from imageio_daemon.storage.backend import Context
from imageio_daemon.storage.engine import Engine, async_io_error
from imageio_daemon.storage.nbd import rbd
from imageio_daemon.storage.nbd.process import QemuServer
from imageio_daemon.storage.nbd.rbd import RbdBackend, RbdImage
from imageio_daemon.storage.operation import Operation
from imageio_daemon.urls.rbd import parse
from tests.support.fakeceph import FakeCeph, diff
from tests.support.polling import eventually_async

from .conftest import NBD_OPTIONS, SIZE


@pytest.fixture
def ceph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCeph:
    made = FakeCeph(tmp_path / "ceph")
    monkeypatch.setenv("PATH", made.path)
    made.create("pool/disk", SIZE)
    return made


@pytest.fixture
def servers(run_dir: Path) -> Iterator[Path]:
    """The directory in which each running server has one."""
    yield run_dir
    assert not list(run_dir.iterdir())


async def start(
    engine: Engine,
    url: str,
    run_dir: Path,
    *,
    since: str | None = None,
    writable: bool = True,
    allowed: tuple[str, ...] = ("pool",),
) -> RbdBackend:
    image = RbdImage(parse(url), "/etc/ceph.conf", "me", allowed, since)
    return await RbdBackend.start(engine, image, NBD_OPTIONS, QemuServer(str(run_dir), 2, writable))


async def test_qemu_gets_the_node_with_user_and_configuration(engine: Engine, ceph: FakeCeph, servers: Path) -> None:
    backend = await start(engine, "rbd:pool/disk", servers)
    assert backend.info.size == SIZE
    await backend.close()
    node = {"driver": "rbd", "pool": "pool", "image": "disk", "conf": "/etc/ceph.conf", "user": "me"}
    starts = 2 if async_io_error() else 1  # the image is a file here, and qemu-nbd starts again with threads
    assert ceph.asked() == [node] * starts


async def test_its_name_in_logs_is_its_address(engine: Engine, ceph: FakeCeph, servers: Path) -> None:
    backend = await start(engine, "rbd:pool/disk", servers)
    assert backend.name == "rbd:pool/disk"
    await backend.close()


async def test_pool_that_is_not_allowed_is_never_asked_for(engine: Engine, ceph: FakeCeph, servers: Path) -> None:
    with pytest.raises(StorageError, match="allowed_pools") as failure:
        await start(engine, "rbd:pool/disk", servers, allowed=("poo", "pool/disk"))
    assert failure.value.errno == errno.EPERM
    with pytest.raises(FileNotFoundError):
        ceph.asked()


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ("error connecting: No such file or directory", errno.ENOENT),
        ("error connecting: Permission denied", errno.EACCES),
        ("error opening pool pool: Operation not permitted", errno.EPERM),
        ("namespace 'x' does not exist", errno.ENOENT),
    ],
)
async def test_failure_has_the_error_number_that_qemu_tells(
    engine: Engine, ceph: FakeCeph, servers: Path, said: str, number: int
) -> None:
    ceph.fail(said)
    with pytest.raises(StorageError) as failure:
        await start(engine, "rbd:pool/disk", servers)
    assert failure.value.errno == number
    assert said in str(failure.value)


@pytest.mark.parametrize(
    ("said", "remedy"),
    [("Unknown driver 'rbd'", "qemu-block-extra"), ("error connecting: No such file or directory", "key")],
)
async def test_failure_tells_what_helps(engine: Engine, ceph: FakeCeph, servers: Path, said: str, remedy: str) -> None:
    ceph.fail(said)
    with pytest.raises(StorageError, match=remedy):
        await start(engine, "rbd:pool/disk", servers)


async def test_fast_zero_that_keeps_space_is_refused_and_other_is_done(
    engine: Engine, ceph: FakeCeph, servers: Path
) -> None:
    backend = await start(engine, "rbd:pool/disk", servers)
    assert backend.info.can_fast_zero
    assert not backend.info.can_fast_allocate
    with pytest.raises(NotFast):
        await backend.zero(Operation(), 0, 4096, allocate=True, fast_only=True)
    await backend.zero(Operation(), 0, 4096, allocate=True)
    await backend.zero(Operation(), 0, 4096, allocate=False, fast_only=True)
    await backend.close()


async def test_changes_are_those_since_the_snapshot(engine: Engine, ceph: FakeCeph, servers: Path) -> None:
    ceph.answer(diff((0, 4096, True), (8192, 8 * SIZE, False)))
    ceph.create("pool/disk@t", SIZE)
    backend = await start(engine, "rbd:pool/disk@t", servers, since="s", writable=False)
    told = [e async for found in backend.extents(Operation(), 0, 2 * SIZE, Context.DIRTY) for e in found]
    assert [(e.start, e.length, e.dirty, e.zero) for e in told] == [
        (0, 4096, True, False),
        (4096, 4096, False, False),
        (8192, SIZE - 8192, True, True),
    ]
    assert [e async for found in backend.extents(Operation(), 0, SIZE, Context.ZERO) for e in found]
    await backend.close()
    assert ceph.asked()[-1] == [
        *("diff", "--format=json", "--whole-object", "--from-snap=s", "--pool=pool", "--image=disk", "--snap=t"),
        *("--conf=/etc/ceph.conf", "--id=me"),
    ]


async def test_ticket_without_a_snapshot_tells_no_changes(engine: Engine, ceph: FakeCeph, servers: Path) -> None:
    backend = await start(engine, "rbd:pool/disk", servers)
    with pytest.raises(NotFound):
        [found async for found in backend.extents(Operation(), 0, SIZE, Context.DIRTY)]
    await backend.close()


async def test_image_is_known_by_its_address(engine: Engine, ceph: FakeCeph, servers: Path) -> None:
    backend = await start(engine, "rbd:pool/disk", servers)
    assert backend.info.identity == backend.info.lasting == "rbd /etc/ceph.conf rbd:pool/disk"
    await backend.close()


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let qemu-nbd wait, and take no signal, as librados does. Returns the file that it makes at its start."""
    program = tmp_path / "qemu-nbd"
    program.write_text(f"#!/bin/sh\ntrap '' TERM\n: >{tmp_path}/begun\nwhile :; do sleep 0.1; done\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "begun"


async def test_cluster_that_does_not_answer_is_given_up(
    engine: Engine, servers: Path, waiting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rbd, "ANSWER_TIMEOUT", 0.1)
    began = time.monotonic()
    with pytest.raises(StorageError) as failure:
        await start(engine, "rbd:pool/disk", servers)
    assert failure.value.errno == errno.ETIMEDOUT
    assert time.monotonic() - began < 5


async def test_who_waits_for_a_cluster_can_be_cancelled(engine: Engine, servers: Path, waiting: Path) -> None:
    """The removal of a ticket and the end of the daemon wait for it."""
    opening = asyncio.create_task(start(engine, "rbd:pool/disk", servers))
    await eventually_async(waiting.exists)
    began = time.monotonic()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert time.monotonic() - began < 5
