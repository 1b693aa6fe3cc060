# SPDX-License-Identifier: Apache-2.0
"""Tickets of images that another NBD server has: fast zero is passed on, or refused here."""

import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from imageio_daemon.nbdproto.constants import Command, CommandFlag, ErrorNumber
from tests.nbd.client import Client
from tests.nbd.conftest import MakeNbdDaemon
from tests.nbd.world import MiB
from tests.support.images import pattern
from tests.support.nbdservers import nbdkit, qemu_nbd

SIZE = 4 * MiB
Connect = Callable[[str], Awaitable[Client]]

FAST, NO_HOLE = CommandFlag.FAST_ZERO, CommandFlag.NO_HOLE


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(pattern(SIZE))
    return path


@pytest.fixture
async def connect(make_nbd_daemon: MakeNbdDaemon, image: Path) -> Connect:
    daemon, address = make_nbd_daemon()

    async def make(url: str) -> Client:
        ticket = daemon.add_ticket(image, SIZE, url=url, sparse=True)
        return await (await Client.connect(address)).go(ticket)

    return make


@pytest.mark.skipif(shutil.which("qemu-nbd") is None, reason="qemu-nbd is not installed")
async def test_fast_zero_is_passed_on_to_a_server_that_has_it(connect: Connect, image: Path) -> None:
    with qemu_nbd(image, "raw") as server:
        client = await connect(server.url)
        for offset, flags in ((0, FAST), (MiB, FAST | NO_HOLE)):
            assert (await client.request(Command.WRITE_ZEROES, offset, MiB, flags)).error == 0
        assert (await client.request(Command.READ, 0, 2 * MiB)).data == bytes(2 * MiB)
        assert (await client.request(Command.FLUSH)).error == 0
        await client.close()
    assert image.read_bytes() == bytes(2 * MiB) + pattern(SIZE)[2 * MiB :]


@pytest.mark.skipif(shutil.which("nbdkit") is None, reason="nbdkit is not installed")
async def test_fast_zero_is_refused_here_for_a_server_that_has_it_not(connect: Connect, image: Path) -> None:
    # nbdkit 1.32 ends, all of it, when it gets the flag that its file plugin does not offer.
    with nbdkit("file", os.fspath(image)) as server:
        client = await connect(server.url)
        for flags in (FAST, FAST | NO_HOLE):
            assert (await client.request(Command.WRITE_ZEROES, 0, MiB, flags)).error == ErrorNumber.ENOTSUP
        assert (await client.request(Command.READ, 0, SIZE)).data == pattern(SIZE)
        assert (await client.request(Command.WRITE_ZEROES, 0, MiB)).error == 0
        assert (await client.request(Command.READ, 0, MiB)).data == bytes(MiB)
        await client.close()
