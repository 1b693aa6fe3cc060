# SPDX-License-Identifier: Apache-2.0
"""Writers that meet in one block or at one end of file.

Most tests force the order that goes wrong, the others let threads race on real files.
"""

import random
import threading
from pathlib import Path

import pytest

from ioutil_ext import lib

from .engine_driver import DEADLINE, Image, aligned
from .rival import BIG, BLOCK, race
from .syscall_table import (
    real_ftruncate,
    real_pread,
    real_pwrite,
    real_size,
    replaced,
)

# Aligned writes against edges


@pytest.mark.parametrize("handles", [1, 2])
def test_an_aligned_write_is_not_undone_by_an_edge_that_read_before_it(path: Path, handles: int) -> None:
    with Image(path) as edge, Image(path) as other:
        whole = edge if handles == 1 else other
        race(
            lambda: edge.write(1000, b"e" * 100),
            lambda: whole.write(0, aligned(b"w" * BIG)),
            inside="pread",
        )
    content = path.read_bytes()
    assert content[:1000] == b"w" * 1000
    assert content[1000:1100] in (b"e" * 100, b"w" * 100)
    assert content[1100:] == b"w" * (BIG - 1100)


def test_an_edge_does_not_read_while_an_aligned_write_is_on_its_way(path: Path) -> None:
    with Image(path) as image:
        race(
            lambda: image.write(0, aligned(b"w" * BIG)),
            lambda: image.write(1000, b"e" * 100),
            inside="pwrite",
        )
    content = path.read_bytes()
    assert content[:1000] + content[1100:] == b"w" * (BIG - 100)


def test_two_edges_in_one_block_keep_both(path: Path) -> None:
    with Image(path) as image:
        race(lambda: image.write(100, b"a" * 100), lambda: image.write(300, b"b" * 100), inside="pread")
    assert path.read_bytes()[:500] == bytes(100) + b"a" * 100 + bytes(100) + b"b" * 100 + bytes(100)


def test_a_zero_is_not_undone_by_an_edge_that_read_before_it(path: Path) -> None:
    path.write_bytes(b"o" * BIG)
    with Image(path) as image:
        race(lambda: image.write(1000, b"e" * 100), lambda: image.zero(0, BIG), inside="pread")
    content = path.read_bytes()
    assert content[:1000] + content[1100:] == bytes(BIG - 100)


@pytest.mark.parametrize("flags", [0, lib.IOU_ALLOCATE])
def test_an_unaligned_zero_is_not_undone_by_an_edge_beside_it(path: Path, flags: int) -> None:
    path.write_bytes(b"o" * BIG)
    with Image(path) as image:
        race(lambda: image.write(100, b"e" * 100), lambda: image.zero(300, 50_000, flags), inside="pread")
    assert path.read_bytes() == b"o" * 100 + b"e" * 100 + b"o" * 100 + bytes(50_000) + b"o" * (BIG - 50_300)


def test_a_trim_is_not_undone_by_an_edge_that_read_before_it(path: Path) -> None:
    path.write_bytes(b"o" * BIG)
    with Image(path) as image:
        race(lambda: image.write(1000, b"e" * 100), lambda: image.trim(0, BIG), inside="pread")
    content = path.read_bytes()
    outside = content[:1000] + content[1100:]
    assert outside == bytes(BIG - 100)


def test_writers_of_other_blocks_do_not_wait_for_an_edge(path: Path) -> None:
    done = threading.Event()
    finished: list[bool] = []

    def pread(fd: int, buffer: memoryview, offset: int) -> int:
        if threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=write_elsewhere)
            other.start()
            finished.append(done.wait(DEADLINE))
            other.join(DEADLINE)
        return real_pread(fd, buffer, offset)

    def write_elsewhere() -> None:
        image.write(8 * BLOCK, aligned(b"w" * BLOCK))
        done.set()

    with Image(path) as image, replaced(pread=pread):
        image.write(1000, b"e" * 100)
    assert finished[:1] == [True]


def test_readers_do_not_wait_for_an_edge(path: Path) -> None:
    results: list[bytes] = []

    def pread(fd: int, buffer: memoryview, offset: int) -> int:
        if threading.current_thread() is threading.main_thread() and not results:
            reader = threading.Thread(target=lambda: results.append(image.read(0, BLOCK)))
            reader.start()
            reader.join(DEADLINE)
            assert not reader.is_alive()
        return real_pread(fd, buffer, offset)

    with Image(path) as image, replaced(pread=pread):
        image.write(1000, b"e" * 100)
    assert results == [bytes(BLOCK)]


@pytest.mark.parametrize("handles", [1, 2])
def test_racing_aligned_and_small_writes_leave_no_old_byte(path: Path, handles: int) -> None:
    rounds = 600
    barrier = threading.Barrier(2)
    small = random.Random(7)
    places = [small.randrange(0, BIG - 100) for _ in range(rounds)]
    bad: list[int] = []

    with Image(path) as image, Image(path) as second:
        other = image if handles == 1 else second

        def write_small() -> None:
            for turn in range(rounds):
                barrier.wait(DEADLINE)
                other.write(places[turn], bytes([turn % 251 + 1 ^ 0xFF]) * 100)
                barrier.wait(DEADLINE)
                barrier.wait(DEADLINE)

        thread = threading.Thread(target=write_small)
        thread.start()
        for turn in range(rounds):
            data = aligned(bytes([turn % 251 + 1]) * BIG)
            barrier.wait(DEADLINE)
            image.write(0, data)
            barrier.wait(DEADLINE)
            content = image.read(0, BIG)
            place = places[turn]
            if content[:place] + content[place + 100 :] != bytes(data[: BIG - 100]):
                bad.append(turn)
            barrier.wait(DEADLINE)
        thread.join(DEADLINE)
    assert bad == []


# The size of a file


@pytest.mark.parametrize("inside", ["ftruncate", "size", "fallocate"])
@pytest.mark.parametrize("flags", [0, lib.IOU_ALLOCATE])
def test_zeros_past_the_end_cut_nothing_off(path: Path, inside: str, flags: int) -> None:
    with Image(path) as image:
        race(
            lambda: image.zero(BIG, BIG, flags),
            lambda: image.write(4 * BIG, aligned(b"w" * BIG)),
            inside=inside,
        )
    content = path.read_bytes()
    assert len(content) == 5 * BIG
    assert content[4 * BIG :] == b"w" * BIG
    assert content[: 4 * BIG] == bytes(4 * BIG)


@pytest.mark.parametrize("inside", ["ftruncate", "size", "pwrite", "pread"])
@pytest.mark.parametrize("end", [BIG + 1, 4 * BIG + 100])
def test_unaligned_growing_writes_cut_nothing_off(path: Path, inside: str, end: int) -> None:
    with Image(path) as image, Image(path) as other:
        race(
            lambda: image.write(end - 50, b"s" * 50),
            lambda: other.write(8 * BIG, aligned(b"w" * BIG)),
            inside=inside,
        )
    content = path.read_bytes()
    assert len(content) == 9 * BIG
    assert content[end - 50 : end] == b"s" * 50
    assert content[8 * BIG :] == b"w" * BIG


def test_racing_growth_cuts_nothing_off(path: Path) -> None:
    rounds = 400
    barrier = threading.Barrier(2)
    with Image(path) as image, Image(path) as other:

        def grow_by_zeros() -> None:
            for turn in range(rounds):
                barrier.wait(DEADLINE)
                other.zero(BIG + turn * 2 * BLOCK, BLOCK + turn % 100)

        thread = threading.Thread(target=grow_by_zeros)
        thread.start()
        for turn in range(rounds):
            barrier.wait(DEADLINE)
            offset = BIG + turn * 2 * BLOCK + BLOCK + 100
            image.write(offset, b"w" * (BLOCK - 100))
        thread.join(DEADLINE)
    content = path.read_bytes()
    assert len(content) == BIG + rounds * 2 * BLOCK
    for turn in range(rounds):
        offset = BIG + turn * 2 * BLOCK
        assert content[offset : offset + 2 * BLOCK] == bytes(BLOCK + 100) + b"w" * (BLOCK - 100), turn


# The tail of an image of odd size


@pytest.fixture(params=[10_000, 12_289, 4096 * 3 + 511, 100])
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "odd"
    path.write_bytes(b"o" * int(request.param))
    return path


def test_the_size_is_right_at_every_moment(odd: Path) -> None:
    size = odd.stat().st_size
    seen: set[int] = set()

    def pwrite(fd: int, buffer: memoryview, offset: int) -> int:
        count = real_pwrite(fd, buffer, offset)
        seen.add(real_size(fd))
        return count

    def ftruncate(fd: int, new: int) -> None:
        real_ftruncate(fd, new)
        seen.add(real_size(fd))

    with Image(odd) as image, replaced(pwrite=pwrite, ftruncate=ftruncate):
        image.write(size - 50, b"t" * 50)
        image.write(size - 1, b"u")
        image.write(0, b"w" * size)
        image.zero(size - 70, 70)
        image.zero(0, size, lib.IOU_ALLOCATE)
        image.write(size - 60, b"x" * 30)
        image.flush()
        assert image.info.size == size
    assert seen <= {size}
    assert odd.read_bytes() == bytes(size - 60) + b"x" * 30 + bytes(30)


def test_a_write_over_the_odd_end_grows_right_to_the_byte(odd: Path) -> None:
    size = odd.stat().st_size
    seen: list[int] = []

    def pwrite(fd: int, buffer: memoryview, offset: int) -> int:
        count = real_pwrite(fd, buffer, offset)
        seen.append(real_size(fd))
        return count

    with Image(odd) as image, replaced(pwrite=pwrite):
        image.write(size - 10, b"t" * 20_011)
    assert odd.stat().st_size == size + 20_001
    assert seen == sorted(seen)
    assert max(seen) == size + 20_001
    assert odd.read_bytes() == b"o" * (size - 10) + b"t" * 20_011


def test_the_tail_reads_what_was_written(odd: Path) -> None:
    size = odd.stat().st_size
    with Image(odd) as image:
        for turn in range(50):
            image.write(size - 90, bytes([turn]) * 90)
            assert image.read(size - 90, 90) == bytes([turn]) * 90
            assert image.read(0, size)[size - 90 :] == bytes([turn]) * 90


def test_the_tail_is_written_with_its_whole_page_held(tmp_path: Path) -> None:
    """It goes through the page cache: a direct write of another block of that page must stay out meanwhile."""
    path = tmp_path / "odd"
    path.write_bytes(b"o" * 10_000)
    with Image(path) as image:
        overtook = race(
            lambda: image.write(9_900, b"t" * 100),
            lambda: image.write(2 * BLOCK, aligned(b"w" * 512)),
            inside="pwrite",
        )
    assert not overtook
    assert path.read_bytes() == b"o" * 2 * BLOCK + b"w" * 512 + b"o" * (9_900 - 2 * BLOCK - 512) + b"t" * 100


def test_racing_writers_of_the_tail_keep_each_other(tmp_path: Path) -> None:
    size = 3 * BLOCK + 8 * 100
    path = tmp_path / "odd"
    path.write_bytes(bytes(size))
    start = size - 8 * 100
    failures: list[str] = []

    with Image(path) as image:

        def work(number: int) -> None:
            offset = start + number * 100
            for turn in range(150):
                data = bytes([number * 16 + turn % 16]) * 100
                image.write(offset, data)
                if image.read(offset, 100) != data:
                    failures.append(f"writer {number}, turn {turn}")

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for turn in range(200):
            image.write(2 * BLOCK, aligned(bytes([turn]) * BLOCK))
        for thread in threads:
            thread.join(DEADLINE)
    assert failures == []
    assert path.stat().st_size == size
