# SPDX-License-Identifier: Apache-2.0
"""What reaches the kernel, and when: flushes before replies, and fast zeros that write nothing."""

import asyncio
import errno
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from imageio_daemon.nbdproto.constants import Command, CommandFlag, ErrorNumber
from tests.frontends.nbd.client import Client
from tests.frontends.nbd.conftest import MakeNbdDaemon, MakeWorld
from tests.frontends.nbd.world import KiB, MiB, World
from tests.ioutil.syscall_table import real_fallocate, real_fdatasync, real_open, real_pwrite, replaced
from tests.support.images import pattern
from tests.support.realstorage import STORAGE_TYPES, Storage, StorageType

READ, WRITE, FLUSH, ZERO, STATUS = (
    Command.READ,
    Command.WRITE,
    Command.FLUSH,
    Command.WRITE_ZEROES,
    Command.BLOCK_STATUS,
)
FAST, NO_HOLE, FUA = CommandFlag.FAST_ZERO, CommandFlag.NO_HOLE, CommandFlag.FUA
SIZE = 4 * MiB


class Disk:
    """A disk with a cache that forgets: only what completed before a flush began is on it after the flush."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.stable = bytearray(SIZE)
        self.refuses_fallocate = False
        self._lock = threading.Lock()
        self._cached: list[tuple[int, bytes]] = []

    def pwrite(self, fd: int, buffer: memoryview, offset: int) -> int:
        data = bytes(buffer)
        count = real_pwrite(fd, buffer, offset)
        self._completed("pwrite", offset, data[:count])
        return count

    def fallocate(self, fd: int, mode: int, offset: int, length: int) -> None:
        if self.refuses_fallocate:
            raise OSError(errno.EOPNOTSUPP, "not here")
        real_fallocate(fd, mode, offset, length)
        self._completed("fallocate", offset, bytes(length))

    def fdatasync(self, fd: int) -> None:
        with self._lock:
            covered = len(self._cached)
        real_fdatasync(fd)
        with self._lock:
            self.calls.append("fdatasync")
            for offset, data in self._cached[:covered]:
                self.stable[offset : offset + len(data)] = data
            del self._cached[:covered]

    def _completed(self, name: str, offset: int, data: bytes) -> None:
        with self._lock:
            self.calls.append(name)
            self._cached.append((offset, data))


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    with replaced(pwrite=disk.pwrite, fallocate=disk.fallocate, fdatasync=disk.fdatasync):
        yield disk


@pytest.fixture
async def world(disk: Disk, file_world: MakeWorld) -> AsyncIterator[World]:
    # After the disk: when the table is put back no operation may run.
    async with file_world() as running:
        yield running


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(pattern(SIZE))
    return path


@pytest.fixture
async def client(disk: Disk, world: World, image: Path) -> Client:
    disk.stable[:] = pattern(SIZE)
    world.add("real", size=SIZE, path=image, sparse=True)
    client = await world.go("real")
    disk.calls.clear()
    return client


# Flush and FUA


async def test_flush_reaches_the_disk_before_its_reply(disk: Disk, client: Client) -> None:
    assert (await client.request(FLUSH)).error == 0
    assert disk.calls == ["fdatasync"]


@pytest.mark.parametrize("length", [4096, 100, 70000])
async def test_write_with_fua_reaches_the_disk_before_its_reply(disk: Disk, client: Client, length: int) -> None:
    data = b"x" * length
    assert (await client.request(WRITE, 8192, data=data, flags=FUA)).error == 0
    assert disk.stable[8192 : 8192 + length] == data
    assert (await client.request(WRITE, 0, data=data)).error == 0
    assert disk.calls[-1] == "pwrite"  # without the flag nothing is flushed


@pytest.mark.parametrize("flags", [FUA, FUA | FAST, FUA | FAST | NO_HOLE])
async def test_zero_with_fua_reaches_the_disk_before_its_reply(disk: Disk, client: Client, flags: int) -> None:
    result = await client.request(ZERO, 4096, MiB, flags)
    if result.error:
        assert flags & FAST
        pytest.skip("this storage has no fast way")
    assert disk.stable[4096 : 4096 + MiB] == bytes(MiB)
    assert disk.calls[-1] == "fdatasync"


async def test_what_was_answered_before_a_flush_survives_a_loss_of_power(
    disk: Disk, world: World, client: Client
) -> None:
    chance = random.Random(1)
    other = await world.go("real")
    wanted = bytearray(pattern(SIZE))
    answered: list[tuple[int, bytes]] = []
    for _ in range(20):
        places = chance.sample(range(64), 16)  # no two writes of the same bytes at once
        writes = {}
        for place in places:
            offset, data = (
                place * 64 * KiB + chance.choice([0, 100, 4096]),
                chance.randbytes(chance.choice([512, 9999])),
            )
            writes[chance.choice([client, other]), offset] = data
        cookies = {(at, at.send(WRITE, offset, data=data)): (offset, data) for (at, offset), data in writes.items()}
        for at in (client, other):
            for cookie, result in (await at.receive_all()).items():
                assert result.error == 0
                answered.append(cookies[at, cookie])
        assert (await other.request(FLUSH)).error == 0
        for offset, data in answered:
            wanted[offset : offset + len(data)] = data
        answered.clear()
        assert disk.stable == wanted


@pytest.mark.parametrize("name", ["xfs", "loop4096"])
async def test_what_was_flushed_survives_a_daemon_that_is_killed(
    make_nbd_daemon: MakeNbdDaemon, make_storage: Callable[[StorageType], Storage], name: str
) -> None:
    (storage_type,) = [each for each in STORAGE_TYPES if each.name == name]
    daemon, address = make_nbd_daemon()
    path = make_storage(storage_type).make(SIZE)
    ticket = daemon.add_ticket(path, SIZE)
    client = await Client.connect(address)
    await client.go(ticket)
    data = pattern(MiB, 3)
    for i in range(4):
        client.send(WRITE, i * MiB, data=data)
    assert not any(result.error for result in (await client.receive_all()).values())
    assert (await client.request(FLUSH)).error == 0
    await asyncio.to_thread(daemon.kill)
    assert await client.at_end()
    await client.close()
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(fd, SIZE, 0) == 4 * data
    finally:
        os.close(fd)


# Fast zero


@pytest.mark.parametrize("flags", [FAST, FAST | NO_HOLE])
async def test_fast_zero_writes_no_data(disk: Disk, client: Client, flags: int) -> None:
    if (await client.request(ZERO, 0, SIZE, flags)).error == 0:
        assert (await client.request(READ, 0, SIZE)).data == bytes(SIZE)
    assert "pwrite" not in disk.calls


@pytest.mark.parametrize("flags", [FAST, FAST | NO_HOLE])
async def test_fast_zero_without_fallocate_is_refused_at_once(
    disk: Disk, client: Client, image: Path, flags: int
) -> None:
    disk.refuses_fallocate = True
    for offset, length in ((0, SIZE), (5, 3), (SIZE - 1, 1)):
        start = time.monotonic()
        assert (await client.request(ZERO, offset, length, flags)).error == ErrorNumber.ENOTSUP
        assert time.monotonic() - start < 1.0  # below 1 ms; machines that run tests are busy
    assert disk.calls == []
    assert image.read_bytes() == pattern(SIZE)


async def test_zero_without_fallocate_and_without_the_flag_writes(disk: Disk, client: Client) -> None:
    disk.refuses_fallocate = True
    for flags in (0, NO_HOLE, FUA):
        assert (await client.request(ZERO, 5, MiB, flags)).error == 0
    assert (await client.request(READ, 5, MiB)).data == bytes(MiB)


async def test_fast_zero_of_a_device_is_a_hole_or_refused(world: World, block_storage: Storage) -> None:
    world.add("device", size=SIZE, path=block_storage.make(SIZE), sparse=True)
    client = await world.go("device")
    assert (await client.request(WRITE, 0, data=pattern(SIZE))).error == 0
    assert (await client.request(ZERO, 0, SIZE, FAST | NO_HOLE)).error == ErrorNumber.ENOTSUP
    assert (await client.request(READ, 0, SIZE)).data == pattern(SIZE)
    result = await client.request(ZERO, 0, SIZE, FAST)
    assert result.error == (0 if block_storage.offload else ErrorNumber.ENOTSUP)
    assert (await client.request(READ, 0, SIZE)).data == (pattern(SIZE) if result.error else bytes(SIZE))


# Several connections


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "buffered"])
async def test_connections_agree_after_a_flush_under_load(world: World, image: Path, direct: bool) -> None:
    def open_buffered(path: str, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct I/O here")
        return real_open(path, flags)

    async def load(client: Client, place: int) -> None:
        for i in range(100):
            await client.request(WRITE, place + i % 7 * 9000, data=bytes([i]) * 8999)

    with replaced(**({} if direct else {"open": open_buffered})):
        world.add("shared", size=SIZE, path=image)
        writer, flusher, reader, *others = [await world.go("shared") for _ in range(5)]
        loads = [asyncio.create_task(load(other, 2 * MiB + i * MiB)) for i, other in enumerate(others)]
        for i in range(50):
            data = pattern(5000, i)
            await writer.request(WRITE, i * 5000, data=data)
            await flusher.request(FLUSH)
            assert (await reader.request(READ, i * 5000, 5000)).data == data
        await asyncio.gather(*loads)
        await world.store.remove("shared", 10)


async def test_status_is_true_while_others_write(world: World, image: Path) -> None:
    block, count = 64 * KiB, SIZE // (64 * KiB)
    world.add("busy", size=SIZE, path=image, sparse=True)
    started, ended = [0] * count, [0] * count  # writes to each block
    chance = random.Random(2)

    async def change(client: Client) -> None:
        for i in range(300):
            place = chance.randrange(count)
            if i % 2:
                await client.request(ZERO, place * block, block)
            else:
                started[place] += 1
                await client.request(WRITE, place * block, data=b"x" * block)
                ended[place] += 1

    asker, *writers = [await world.go("busy") for _ in range(3)]
    changes = [asyncio.create_task(change(writer)) for writer in writers]
    while not all(task.done() for task in changes):
        before = list(ended)  # a write that is under way may be seen by the read only
        offset = 0
        for length, status in (await asker.request(STATUS, 0, SIZE)).extents:
            if status & 2:
                data = (await asker.request(READ, offset, length)).data
                for place in range(offset // block, -(-(offset + length) // block)):
                    low, high = max(offset, place * block), min(offset + length, (place + 1) * block)
                    zero = not any(data[low - offset : high - offset])
                    assert zero or started[place] > before[place], "told as zeros, read as data"
            offset += length
        assert offset == SIZE
    await asyncio.gather(*changes)
