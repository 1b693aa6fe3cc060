# SPDX-License-Identifier: Apache-2.0
"""Images as qcow2 files, before a lane reads them; over HTTP: tests/functional/test_packed.py."""

from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

from imageio_daemon.errors import InvalidRequest, Unavailable
from imageio_daemon.operations.packing import packed
from imageio_daemon.storage.backend import Backend
from imageio_daemon.storage.buffers import MIN_BUFFER, BufferPool
from imageio_daemon.storage.engine import Engine
from imageio_daemon.storage.file import FileBackend
from imageio_daemon.transfers.store import TransferStore
from imageio_daemon.transfers.ticket import Access, Ticket
from imageio_daemon.transfers.transfer import Transfer
from imageio_daemon.units import MiB, TiB

SIZE = 4 * MiB


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine(4)
    yield engine
    await engine.release()
    assert not engine.stop(10)


@pytest.fixture
def buffers() -> BufferPool:
    return BufferPool(MiB)


@pytest.fixture
async def transfer(engine: Engine, tmp_path: Path) -> AsyncIterator[Transfer]:
    (tmp_path / "disk").write_bytes(bytes(SIZE))

    async def opened(_: Ticket) -> Backend:
        return await FileBackend.open(engine, str(tmp_path / "disk"), writable=False)

    store = TransferStore(opened, most_tickets=9, most_connections=9)
    ticket = Ticket("secret", "file:///disk", SIZE, (Access.READ,), timeout=300, inactivity_timeout=60)
    transfer = store.add(ticket)
    await transfer.backend()
    yield transfer
    await store.remove("secret", timeout=10)


async def test_the_map_counts_as_memory_of_the_transfer(transfer: Transfer, buffers: BufferPool) -> None:
    async with packed(transfer, buffers, part=False):
        assert buffers.in_use == MIN_BUFFER
    assert buffers.in_use == 0


async def test_without_memory_it_is_refused_at_once(transfer: Transfer) -> None:
    buffers = BufferPool(MIN_BUFFER)
    async with packed(transfer, buffers, part=False):
        with pytest.raises(Unavailable):
            async with packed(transfer, buffers, part=False):
                raise AssertionError("it was laid out")


async def test_it_has_the_generation_of_the_image(transfer: Transfer, buffers: BufferPool) -> None:
    async with packed(transfer, buffers, part=False) as disk:
        assert transfer.opened is not None
        assert 0 < disk.generation == transfer.opened.generation


async def test_an_image_that_changes_meanwhile_has_no_generation(
    transfer: Transfer, buffers: BufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: Iterator[int] = count(1)
    monkeypatch.setattr(FileBackend, "generation", property(lambda _: next(numbers)))
    async with packed(transfer, buffers, part=False) as disk:
        assert disk.generation == 0


async def test_nothing_is_left_of_what_is_refused(
    transfer: Transfer, buffers: BufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imageio_daemon.operations.operations.readable_size", lambda *_: 65 * TiB)
    with pytest.raises(InvalidRequest):
        async with packed(transfer, buffers, part=False):
            raise AssertionError("it was laid out")
    assert (buffers.in_use, transfer.running) == (0, 0)
