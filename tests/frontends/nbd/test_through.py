# SPDX-License-Identifier: Apache-2.0
"""Tickets of images that a server has: what it cannot do is not offered, or refused here."""

import shutil
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from imageio_daemon.nbdproto.constants import Command, CommandFlag, ErrorNumber, ExportFlag
from tests.frontends.nbd.client import Client
from tests.frontends.nbd.conftest import MakeNbdDaemon
from tests.frontends.nbd.world import MiB
from tests.support.images import pattern
from tests.support.nbdservers import NbdServer, nbdkit, qemu_nbd

SIZE = 4 * MiB
OFFERED = ExportFlag.SEND_FLUSH | ExportFlag.SEND_FUA
Connect = Callable[..., Awaitable[Client]]

FAST, NO_HOLE = CommandFlag.FAST_ZERO, CommandFlag.NO_HOLE

needs_qemu = pytest.mark.skipif(shutil.which("qemu-nbd") is None, reason="qemu-nbd is not installed")
needs_nbdkit = pytest.mark.skipif(shutil.which("nbdkit") is None, reason="nbdkit is not installed")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(pattern(SIZE))
    return path


@pytest.fixture
async def connect(make_nbd_daemon: MakeNbdDaemon) -> Connect:
    daemon, address = make_nbd_daemon({"backend_file": {"qcow2": "qemu-nbd"}})

    async def make(path: Path, **fields: object) -> Client:
        ticket = daemon.add_ticket(path, SIZE, sparse=True, **fields)
        return await (await Client.connect(address)).go(ticket)

    return make


@needs_qemu
async def test_fast_zero_of_whole_clusters_of_qcow2_is_passed_on(connect: Connect, image: Path) -> None:
    qcow2 = image.with_suffix(".qcow2")
    subprocess.check_call(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", image, qcow2])
    client = await connect(qcow2, format="qcow2")
    for flags in (FAST, FAST | NO_HOLE):
        for offset, length in ((0, MiB - 512), (512, MiB), (MiB - 512, 1024)):
            assert (await client.request(Command.WRITE_ZEROES, offset, length, flags)).error == ErrorNumber.ENOTSUP
    assert (await client.request(Command.READ, 0, SIZE)).data == pattern(SIZE)
    for offset, flags in ((0, FAST), (MiB, FAST | NO_HOLE)):
        assert (await client.request(Command.WRITE_ZEROES, offset, MiB, flags)).error == 0
    assert (await client.request(Command.READ, 0, SIZE)).data == bytes(2 * MiB) + pattern(SIZE)[2 * MiB :]
    await client.close()


@pytest.mark.parametrize(
    "serve",
    [
        pytest.param(lambda image: qemu_nbd(image, "raw"), marks=needs_qemu, id="qemu-nbd"),
        # nbdkit 1.32 ends, all of it, when it gets the flag that its file plugin does not offer.
        pytest.param(lambda image: nbdkit("file", str(image)), marks=needs_nbdkit, id="nbdkit"),
    ],
)
async def test_fast_zero_is_refused_here_for_an_image_of_another_server(
    connect: Connect, image: Path, serve: Callable[[Path], AbstractContextManager[NbdServer]]
) -> None:
    with serve(image) as server:
        client = await connect(image, url=server.url)
        for flags in (FAST, FAST | NO_HOLE):
            assert (await client.request(Command.WRITE_ZEROES, 0, MiB, flags)).error == ErrorNumber.ENOTSUP
        assert (await client.request(Command.READ, 0, SIZE)).data == pattern(SIZE)
        assert (await client.request(Command.WRITE_ZEROES, 0, MiB)).error == 0
        assert (await client.request(Command.READ, 0, MiB)).data == bytes(MiB)
        await client.close()


@needs_nbdkit
async def test_a_server_that_cannot_flush_is_no_export_that_can(connect: Connect, image: Path) -> None:
    with nbdkit("eval", "get_size=echo 4M", "pread=head -c $3 /dev/zero", "pwrite=cat > /dev/null") as server:
        client = await connect(image, url=server.url)
        assert not client.export.flags & OFFERED
        assert (await client.request(Command.WRITE, 0, data=bytes(512))).error == 0
        assert (await client.request(Command.WRITE, 0, flags=CommandFlag.FUA, data=bytes(512))).error == (
            ErrorNumber.EINVAL
        )
        assert (await client.request(Command.FLUSH)).error == ErrorNumber.EINVAL
        await client.close()


@needs_nbdkit
async def test_a_server_that_can_flush_is_an_export_that_can(connect: Connect, image: Path) -> None:
    with nbdkit("memory", "4M") as server:
        client = await connect(image, url=server.url)
        assert client.export.flags & OFFERED == OFFERED
        assert (await client.request(Command.FLUSH)).error == 0
        await client.close()
