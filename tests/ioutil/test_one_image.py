# SPDX-License-Identifier: Apache-2.0
"""What all handles of one file share: a failed flush, locks, size and generation."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ioutil_ext import ffi, lib

from .engine_driver import DEADLINE, Failed, Image, aligned
from .rival import BIG, BLOCK, race
from .syscall_table import (
    real_fallocate,
    real_fdatasync,
    real_pwrite,
    replaced,
)

# A flush that failed


class FailingFlush:
    """fdatasync that fails as told, then succeeds, as the kernel does."""

    def __init__(self) -> None:
        self.answers: list[int] = []

    def fdatasync(self, fd: int) -> None:
        if self.answers and (number := self.answers.pop(0)):
            raise OSError(number, "writeback failed")
        real_fdatasync(fd)


@pytest.fixture
def failing() -> Iterator[FailingFlush]:
    failing = FailingFlush()
    with replaced(fdatasync=failing.fdatasync):
        yield failing


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_flush_that_failed_fails_for_ever(path: Path, failing: FailingFlush, number: int) -> None:
    with Image(path) as image:
        failing.answers = [number]
        for _ in range(3):
            with pytest.raises(Failed) as failed:
                image.flush()
            assert failed.value.errno == number
            assert failed.value.result.syscall == lib.IOU_SYS_FDATASYNC
        assert image.info.flush_failed == 1


def test_a_failed_flush_fails_every_handle_open_then(path: Path, failing: FailingFlush) -> None:
    with Image(path) as image, Image(path) as other:
        failing.answers = [errno.EIO]
        with pytest.raises(Failed):
            image.flush()
        with pytest.raises(Failed):
            other.flush()
        assert other.info.flush_failed == 1


def test_a_handle_opened_after_a_failed_flush_is_clean(path: Path, failing: FailingFlush) -> None:
    with Image(path) as image:
        failing.answers = [errno.EIO]
        with pytest.raises(Failed):
            image.flush()
        with Image(path) as later:
            assert later.info.flush_failed == 0
            later.flush()
            later.write(0, b"x" * 512, lib.IOU_FUA)
            with pytest.raises(Failed):
                image.flush()


def test_a_failed_flush_fails_fua_of_every_handle_open_then(path: Path, failing: FailingFlush) -> None:
    with Image(path) as image, Image(path) as other:
        failing.answers = [errno.EIO]
        with pytest.raises(Failed):
            image.flush()
        for handle in (image, other):
            data = ffi.from_buffer(b"x" * 512)
            assert handle.attempt(lib.IOU_WRITE, 0, 512, lib.IOU_FUA, buffer=data).error == errno.EIO
            assert handle.attempt(lib.IOU_ZERO, 0, 512, lib.IOU_FUA).error == errno.EIO
            handle.write(0, b"y" * 512)  # without FUA nothing is promised


def test_a_failed_fua_fails_every_later_flush(path: Path, failing: FailingFlush) -> None:
    with Image(path) as image, Image(path) as other:
        failing.answers = [errno.EIO]
        with pytest.raises(Failed):
            image.write(0, b"x" * 512, lib.IOU_FUA)
        for handle in (image, other):
            with pytest.raises(Failed):
                handle.flush()


def test_a_flush_that_ran_beside_a_failing_one_fails_too(path: Path) -> None:
    """The kernel tells a failed writeback once; who did not get it must not take that for success."""
    entered, leave = threading.Event(), threading.Event()
    beside: list[int] = []

    def fdatasync(fd: int) -> None:
        if threading.current_thread() is threading.main_thread():
            raise OSError(errno.EIO, "writeback failed")
        entered.set()
        assert leave.wait(DEADLINE)

    with replaced(fdatasync=fdatasync), Image(path) as image, Image(path) as other:
        thread = threading.Thread(target=lambda: beside.append(other.attempt(lib.IOU_FLUSH).error))
        thread.start()
        assert entered.wait(DEADLINE)
        assert image.attempt(lib.IOU_FLUSH).error == errno.EIO
        leave.set()
        thread.join(DEADLINE)
    assert beside == [errno.EIO]


def test_a_flush_beside_one_that_is_about_to_fail_is_no_success(path: Path) -> None:
    """The kernel has told the first call of the failure, but it has not returned yet: a second one would succeed."""
    entered, second_ended = threading.Event(), threading.Event()
    first: list[int] = []

    def fdatasync(fd: int) -> None:
        if not entered.is_set():
            entered.set()
            second_ended.wait(0.2)
            raise OSError(errno.EIO, "writeback failed")

    with replaced(fdatasync=fdatasync), Image(path) as image:
        thread = threading.Thread(target=lambda: first.append(image.attempt(lib.IOU_FLUSH).error))
        thread.start()
        assert entered.wait(DEADLINE)
        second = image.attempt(lib.IOU_FLUSH).error
        second_ended.set()
        thread.join(DEADLINE)
    assert (first, second) == ([errno.EIO], errno.EIO)


def test_flushes_that_come_while_one_runs_share_the_next_one(path: Path) -> None:
    clients = 10
    written, never = threading.Semaphore(0), threading.Event()
    all_written = threading.Event()
    calls: list[int] = []
    errors: list[int] = []

    def pwrite(fd: int, buffer: memoryview, offset: int) -> int:
        written.release()
        return real_pwrite(fd, buffer, offset)

    def fdatasync(fd: int) -> None:
        calls.append(fd)
        assert all_written.wait(DEADLINE)
        never.wait(0.05)  # as long as a disk takes: the others come meanwhile

    def write_with_fua(number: int) -> None:
        data = ffi.from_buffer(b"x" * 512)
        errors.append(image.attempt(lib.IOU_WRITE, 4096 * number, 512, lib.IOU_FUA, buffer=data).error)

    with replaced(fdatasync=fdatasync, pwrite=pwrite), Image(path) as image:
        threads = [threading.Thread(target=write_with_fua, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert written.acquire(timeout=DEADLINE)
        all_written.set()
        for thread in threads:
            thread.join(DEADLINE)
    assert errors == [0] * clients
    assert len(calls) < clients


# Two tickets on one file


def test_two_paths_of_one_file_are_one_image(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "hard-link"
    os.link(path, link)
    (tmp_path / "symbolic-link").symlink_to(path)
    for name in (link, tmp_path / "symbolic-link"):
        path.write_bytes(bytes(BIG))
        with Image(path) as image, Image(name) as other:
            race(
                lambda image=image: image.write(1000, b"e" * 100),  # type: ignore[misc]
                lambda other=other: other.write(0, aligned(b"w" * BIG)),  # type: ignore[misc]
                inside="pread",
            )
        content = path.read_bytes()
        assert content[:1000] + content[1100:] == b"w" * (BIG - 100)


def test_growth_by_one_handle_is_seen_by_the_other(path: Path) -> None:
    with Image(path) as image, Image(path) as other:
        image.write(BIG, b"x" * 1000)
        assert other.info.size == BIG + 1000
        assert other.read(BIG, 1000) == b"x" * 1000


def test_a_replaced_file_is_another_image(path: Path) -> None:
    with Image(path) as old:
        path.unlink()
        path.write_bytes(b"n" * 512)
        with Image(path) as new:
            assert new.info.size == 512
            assert new.read(0, 512) == b"n" * 512
            old.write(0, b"o" * 512)
            assert new.read(0, 512) == b"n" * 512


@pytest.mark.parametrize("first", ["direct", "buffered"])
def test_direct_and_buffered_handles_keep_out_of_each_others_pages(path: Path, first: str) -> None:
    """A page that was read into the cache before a direct write, and is written back after it, would undo it."""
    with Image(path) as direct, Image(path, buffered=True) as buffered:
        if not direct.info.direct or direct.info.block_size >= BLOCK:
            pytest.skip("a block of direct I/O is a page here")

        def write_direct() -> None:
            direct.write(0, aligned(b"d" * 512))

        def write_buffered() -> None:
            buffered.write(1024, b"b" * 512)

        if first == "direct":
            overtook = race(write_direct, write_buffered, inside="pwrite")
        else:
            overtook = race(write_buffered, write_direct, inside="pwrite")
    assert not overtook
    assert path.read_bytes()[:2048] == b"d" * 512 + bytes(512) + b"b" * 512 + bytes(512)


# Generation


def test_the_generation_changes_with_each_change_and_is_zero_meanwhile(path: Path) -> None:
    during: list[int] = []

    def pwrite(fd: int, buffer: memoryview, offset: int) -> int:
        during.append(image.generation)
        during.append(other.generation)
        return real_pwrite(fd, buffer, offset)

    def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
        during.append(image.generation)
        real_fallocate(fd, mode, offset, length)

    with Image(path) as image, Image(path) as other, replaced(pwrite=pwrite, fallocate=fallocate):
        seen = [image.generation]
        changes: list[Callable[[], object]] = [
            lambda: image.write(0, b"x" * 512),
            lambda: other.zero(0, BLOCK),
            lambda: image.trim(0, BLOCK),
        ]
        for change in changes:
            change()
            seen.append(image.generation)
            assert other.generation == seen[-1]
        image.read(0, 512)
        image.flush()
        assert image.generation == seen[-1]
    assert 0 not in seen
    assert len(set(seen)) == len(seen)
    assert len(during) >= 4
    assert set(during) == {0}


def test_no_generation_comes_again_when_the_image_is_opened_again(path: Path) -> None:
    seen = []
    for _ in range(3):
        with Image(path) as image:
            seen.append(image.generation)
        with Image(path) as image:
            image.write(0, b"x" * 512)
            seen.append(image.generation)
    assert len(set(seen)) == len(seen)


def test_a_write_that_failed_changes_the_generation_too(path: Path) -> None:
    def pwrite(fd: int, buffer: memoryview, offset: int) -> int:
        raise OSError(errno.EIO, "injected")

    with Image(path) as image, replaced(pwrite=pwrite):
        before = image.generation
        assert image.attempt(lib.IOU_ZERO, 0, 1).error in (0, errno.EIO)
        assert image.generation not in (0, before)
