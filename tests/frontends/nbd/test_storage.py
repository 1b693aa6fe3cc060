# SPDX-License-Identifier: Apache-2.0
"""Zeroing, holes and durability on real storage of every type, through the protocol."""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from imageio_daemon.nbdproto.constants import Command, CommandFlag, ErrorNumber
from imageio_daemon.transfers.ticket import Access
from imageio_daemon.units import MAX_OFFSET
from tests.frontends.nbd.client import FORMS, Client
from tests.frontends.nbd.conftest import MakeWorld
from tests.frontends.nbd.world import KiB, MiB, World
from tests.support import large_zeros as large
from tests.support.images import pattern
from tests.support.realstorage import Storage

READ, WRITE, FLUSH, ZERO, STATUS = (
    Command.READ,
    Command.WRITE,
    Command.FLUSH,
    Command.WRITE_ZEROES,
    Command.BLOCK_STATUS,
)
FAST, NO_HOLE, FUA, REQ_ONE = CommandFlag.FAST_ZERO, CommandFlag.NO_HOLE, CommandFlag.FUA, CommandFlag.REQ_ONE
SIZE = 8 * MiB


@pytest.fixture
async def world(file_world: MakeWorld) -> AsyncIterator[World]:
    async with file_world() as running:
        yield running


class Disk:
    """A client of an image on real storage, full of a pattern."""

    def __init__(self, storage: Storage, path: Path, client: Client) -> None:
        self.storage = storage
        self.path = path
        self.client = client

    def content(self) -> bytes:
        with self.path.open("rb") as file:
            return file.read(SIZE)


@pytest.fixture
async def disk(storage: Storage, world: World) -> Disk:
    path = storage.make(SIZE)
    world.add("real", size=SIZE, path=path, sparse=True)
    client = await world.go("real")
    assert (await client.request(WRITE, 0, data=pattern(SIZE))).error == 0
    assert (await client.request(FLUSH)).error == 0
    return Disk(storage, path, client)


@pytest.mark.parametrize(
    ("offset", "length", "flags"),
    [
        *((offset, length, flags) for offset, length in ((0, MiB), (511, 70000)) for flags in (0, NO_HOLE, FUA)),
        *((5, 3, NO_HOLE), (4096, 8192, FUA), (SIZE - 1, 1, 0)),
    ],
)
async def test_zeroed_range_reads_as_zeros_and_neighbours_are_kept(
    disk: Disk, flags: int, offset: int, length: int
) -> None:
    assert (await disk.client.request(ZERO, offset, length, flags)).error == 0
    wanted = bytearray(pattern(SIZE))
    wanted[offset : offset + length] = bytes(length)
    assert (await disk.client.request(READ, 0, SIZE)).data == wanted
    await disk.client.request(FLUSH)
    assert disk.content() == wanted


async def test_fast_zero_is_fast_or_refused_and_changes_nothing(disk: Disk) -> None:
    start = time.monotonic()
    result = await disk.client.request(ZERO, 0, SIZE, FAST)
    elapsed = time.monotonic() - start
    if disk.storage.name == "loop-no-offload":
        assert result.error == ErrorNumber.ENOTSUP
        assert disk.content() == pattern(SIZE)
        assert elapsed < 1.0  # some ms; machines that run tests are busy
        assert (await disk.client.request(ZERO, 0, SIZE)).error == 0
    elif disk.storage.name == "ext2":
        # ext2 punches no holes, so what was written can only be zeroed by writing.
        assert result.error in (0, ErrorNumber.ENOTSUP)
        if result.error:
            assert disk.content() == pattern(SIZE)
    else:
        assert result.error == 0
        assert (await disk.client.request(READ, 0, SIZE)).data == bytes(SIZE)


@pytest.mark.parametrize("flags", [FAST | NO_HOLE, FAST, FAST | FUA])
@pytest.mark.parametrize(("offset", "length"), [(0, MiB), (5, 3), (100, 70000)])
async def test_fast_zero_zeroes_all_or_nothing(disk: Disk, flags: int, offset: int, length: int) -> None:
    result = await disk.client.request(ZERO, offset, length, flags)
    wanted = bytearray(pattern(SIZE))
    if result.error:
        assert result.error == ErrorNumber.ENOTSUP
    else:
        wanted[offset : offset + length] = bytes(length)
    assert (await disk.client.request(READ, 0, SIZE)).data == wanted
    assert (await disk.client.request(ZERO, offset, length, flags & ~FAST)).error == 0


async def test_zero_deallocates_unless_told_not_to(disk: Disk) -> None:
    if disk.storage.is_block or disk.storage.name == "ext2":
        pytest.skip("this storage keeps what is allocated")
    await disk.client.request(ZERO, 0, 4 * MiB, NO_HOLE)
    assert disk.storage.allocated(disk.path) >= SIZE
    await disk.client.request(ZERO, 0, 4 * MiB)
    assert disk.storage.allocated(disk.path) <= SIZE - 3 * MiB


async def test_status_agrees_with_what_is_read(disk: Disk) -> None:
    await disk.client.request(ZERO, MiB, 2 * MiB)
    await disk.client.request(ZERO, 5 * MiB + 100, 64 * KiB)
    extents = (await disk.client.request(STATUS, 0, SIZE)).extents
    assert sum(length for length, _ in extents) == SIZE
    offset = 0
    for length, status in extents:
        if status & 2:
            assert (await disk.client.request(READ, offset, length)).data == bytes(length)
        offset += length


async def test_one_extent_at_a_time_tells_the_same_as_all_at_once(disk: Disk) -> None:
    for i in range(0, 16, 2):
        await disk.client.request(ZERO, i * 64 * KiB, 64 * KiB)
    whole = (await disk.client.request(STATUS, 0, SIZE)).extents
    single = []
    offset = 0
    while offset < SIZE:
        (extent,) = (await disk.client.request(STATUS, offset, SIZE - offset, REQ_ONE)).extents
        single.append(extent)
        offset += extent[0]
    assert single == whole


async def test_status_is_asked_again_after_a_write(disk: Disk) -> None:
    await disk.client.request(ZERO, 0, SIZE)
    await disk.client.request(STATUS, 0, SIZE, REQ_ONE)
    await disk.client.request(WRITE, 0, data=b"new" * 100)
    ((length, status),) = (await disk.client.request(STATUS, 0, SIZE, REQ_ONE)).extents
    assert status == 0 or (await disk.client.request(READ, 0, length)).data == bytes(length)
    assert status == 0


@pytest.mark.parametrize("ops", [(Access.READ,), (Access.WRITE,)])
async def test_an_export_without_a_limit_is_as_large_as_the_image(
    world: World, tmp_path: Path, ops: tuple[Access, ...]
) -> None:
    path = sparse_file(tmp_path)
    world.add("unlimited", size=MAX_OFFSET, declared_size=2**64, path=path, ops=ops)
    client = await world.go("unlimited")
    assert client.export.size == 4 * MiB
    assert (await client.request(READ, 4 * MiB - 512, 512)).data == bytes(512)
    assert (await client.request(READ, 4 * MiB, 512)).error == ErrorNumber.EINVAL


async def test_what_another_process_has_written_into_a_hole_is_told_at_once(world: World, tmp_path: Path) -> None:
    path = sparse_file(tmp_path)
    world.add("sparse", size=4 * MiB, path=path)
    client = await world.go("sparse")
    assert (await client.request(STATUS, 0, 4 * MiB, REQ_ONE)).extents == [(MiB, 3)]
    with path.open("r+b") as file:
        file.seek(2 * MiB)
        file.write(b"new" * 100)
    ((length, status),) = (await client.request(STATUS, MiB, 3 * MiB, REQ_ONE)).extents
    assert (length >= MiB, status) == (True, 0)
    ((_, status),) = (await client.request(STATUS, 2 * MiB, 2 * MiB, REQ_ONE)).extents
    assert status == 0


async def test_data_that_we_have_zeroed_is_told_as_a_hole_at_once(world: World, tmp_path: Path) -> None:
    world.add("sparse", size=4 * MiB, path=sparse_file(tmp_path), sparse=True)
    client = await world.go("sparse")
    assert (await client.request(STATUS, 0, 4 * MiB, REQ_ONE)).extents == [(MiB, 3)]
    await client.request(ZERO, MiB, MiB)
    assert (await client.request(STATUS, MiB, 3 * MiB, REQ_ONE)).extents == [(3 * MiB, 3)]


async def test_status_ends_before_what_another_program_has_cut_off(file_world: MakeWorld) -> None:
    async with file_world() as world:
        assert world.image is not None
        world.put(pattern(4 * MiB))
        client = await world.go()
        assert (await client.request(READ, 0, 4096)).error == 0
        os.truncate(world.image, MiB)
        assert (await client.request(STATUS, 0, 4 * MiB)).extents == [(MiB, 0)]
        assert (await client.request(STATUS, MiB, 3 * MiB)).error == ErrorNumber.EINVAL
        assert (await client.request(READ, MiB, 4096)).error == ErrorNumber.EINVAL


async def test_one_extent_from_inside_of_data_ends_where_that_or_the_range_does(world: World, tmp_path: Path) -> None:
    world.add("sparse", size=4 * MiB, path=sparse_file(tmp_path))
    client = await world.go("sparse")
    for offset, length, told in ((MiB + 5, 2 * MiB, MiB - 5), (MiB + 5, 10, 10), (MiB - 1, 1, 1)):
        await client.request(STATUS, 0, 4 * MiB, REQ_ONE)  # the data after it is found
        ((found, _),) = (await client.request(STATUS, offset, length, REQ_ONE)).extents
        assert found == told


def sparse_file(directory: Path) -> Path:
    """Make an image of 4 MiB that has data in its second MiB."""
    path = directory / "sparse"
    with path.open("wb") as file:
        file.truncate(4 * MiB)
        file.seek(MiB)
        file.write(b"x" * MiB)
    return path


async def test_what_the_image_has_lost_is_invalid_and_not_zeros(world: World, tmp_path: Path) -> None:
    path = sparse_file(tmp_path)
    world.add("short", size=4 * MiB, path=path)
    client = await world.go("short")
    os.truncate(path, MiB + 4096)
    for _ in range(2):
        assert (await client.request(READ, 2 * MiB, 4096)).error == ErrorNumber.EINVAL
        assert (await client.request(STATUS, 2 * MiB, 4096)).error == ErrorNumber.EINVAL
    assert (await client.request(READ, MiB, 4096)).data == b"x" * 4096


async def test_many_extents_are_told_in_several_replies(world: World, tmp_path: Path) -> None:
    path = tmp_path / "image"
    count = 2500
    with path.open("wb") as file:
        file.truncate(count * 8192)
        for i in range(count):
            os.pwrite(file.fileno(), b"x" * 4096, i * 8192)
    world.add("many", size=count * 8192, path=path)
    client = await world.go("many")
    offset, extents = 0, 0
    while offset < count * 8192:
        ((length, _),) = (await client.request(STATUS, offset, count * 8192 - offset, REQ_ONE)).extents
        offset += length
        extents += 1
    assert offset == count * 8192
    assert extents == len((await client.request(STATUS, 0, count * 8192)).extents)


async def test_extents_of_more_than_4_gib(world: World, tmp_path: Path) -> None:
    size = 9 << 30
    path = tmp_path / "image"
    with path.open("wb") as file:
        file.truncate(size)
    world.add("huge", size=size, path=path)
    compact, extended = await world.go("huge"), await world.go("huge", extended=True)
    path.unlink()  # it is going to be allocated: nothing of that may outlive the test
    for offset, length in ((0, 2**32 - 1), (1, 2**32 - 1), (0, 2**32 - 512), (size - 1, 1)):
        ((told, status),) = (await compact.request(STATUS, offset, length)).extents
        assert status == 3
        assert told <= length
    assert (await extended.request(STATUS, 0, size)).extents == [(size, 3)]
    assert (await extended.request(ZERO, 0, size)).error == 0
    assert (await compact.request(ZERO, 1, 2**32 - 1)).error == 0
    assert (await compact.request(Command.TRIM, 1, 2**32 - 1)).error == 0


async def test_connections_see_each_others_writes_after_a_flush(disk: Disk, world: World) -> None:
    others = [await world.go("real") for _ in range(3)]
    for i in range(20):
        writer, flusher, reader = (others[(i + k) % 3] for k in range(3))
        data = pattern(5000, i)
        await writer.request(WRITE, i * 5000, data=data)
        await flusher.request(FLUSH)
        assert (await reader.request(READ, i * 5000, 5000)).data == data


async def test_unaligned_writes_side_by_side_keep_each_other(disk: Disk) -> None:
    data = pattern(100 * 777, 3)
    for i in range(100):
        disk.client.send(WRITE, 1000 + i * 777, data=data[i * 777 : (i + 1) * 777])
    assert not any(result.error for result in (await disk.client.receive_all()).values())
    assert (await disk.client.request(READ, 1000, len(data))).data == data


@pytest.mark.parametrize("form", ["simple", "extended"])
async def test_zeros_of_more_than_4_gib_leave_no_old_content(storage: Storage, world: World, form: str) -> None:
    # Where zeros are written, as many as can be in the time of a test.
    length = large.LENGTH if storage.offload and storage.type.filesystem != "ext2" else 132 * MiB
    borders = [border for border in large.BORDERS if border < length - len(large.OLD)] + [length - len(large.OLD)]
    path = storage.make(large.SIZE)
    world.add("real", size=large.SIZE, path=path, sparse=True)
    client = await world.go("real", **FORMS[form])
    around = [large.START - len(large.OLD), large.START + length]
    for offset in [*around, *(large.START + border for border in borders)]:
        assert (await client.request(WRITE, offset, data=large.OLD)).error == 0
    offset, left = large.START, length
    while left:
        count = left if form == "extended" else min(left, 4 * 1024 * MiB - 4096)  # 32 bits
        assert (await client.request(ZERO, offset, count, FUA)).error == 0
        offset, left = offset + count, left - count
    with path.open("rb") as file:

        def read(offset: int) -> bytes:
            return os.pread(file.fileno(), len(large.OLD), offset)

        assert [read(offset) for offset in around] == [large.OLD] * 2
        assert [border for border in borders if read(large.START + border) != bytes(len(large.OLD))] == []
