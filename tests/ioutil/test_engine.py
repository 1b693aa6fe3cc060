# SPDX-License-Identifier: Apache-2.0
"""Submissions, completions, eventfds and queues."""

import errno
import fcntl
import os
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from ioutil_ext import ffi, lib

from .engine_driver import DEADLINE, Engine, Queue, eventually, running_engine
from .gate import submit_reads

KiB = 1024
SIZE = 256 * KiB

# Submission and completion


def test_what_was_written_is_read(image: Path) -> None:
    with running_engine() as engine:
        queue = engine.queue()
        handle = queue.open(image)
        written = queue.run(lib.IOU_WRITE, handle, 1000, 5000, buffer=b"x" * 5000)
        buffer = bytearray(5002)
        read = queue.run(lib.IOU_READ, handle, 999, 5002, buffer=buffer)
        queue.run(lib.IOU_FLUSH, handle)
        queue.close_handle(handle)
    assert (written.done, read.done) == (5000, 5002)
    assert bytes(buffer) == b"\xe7" + b"x" * 5000 + bytes([6000 % 256])


def test_a_completion_tells_cookie_and_times(image: Path) -> None:
    with running_engine() as engine:
        queue = engine.queue()
        handle = queue.open(image)
        cookie = queue.submit(lib.IOU_READ, handle, 0, 4096, buffer=bytearray(4096))
        result = queue.wait(cookie)
        queue.close_handle(handle)
    assert result.cookie == cookie
    assert 0 < result.elapsed < DEADLINE * 1e9
    assert result.queued < DEADLINE * 1e9
    assert (result.error, result.syscall) == (0, lib.IOU_SYS_NONE)


def test_stat_sees_a_file_grown_by_others(image: Path) -> None:
    with running_engine() as engine:
        queue = engine.queue()
        handle = queue.open(image)
        os.truncate(image, SIZE + 1234)
        queue.run(lib.IOU_STAT, handle)
        info = ffi.new("iou_info *")
        lib.iou_handle_info(handle, info)
        queue.close_handle(handle)
    assert info.size == SIZE + 1234


def test_an_open_that_fails_has_no_handle(tmp_path: Path) -> None:
    with running_engine() as engine:
        queue = engine.queue()
        result = queue.wait(queue.submit_open(tmp_path / "missing"))
    assert (result.error, result.syscall, result.handle) == (errno.ENOENT, lib.IOU_SYS_OPEN, ffi.NULL)


@pytest.mark.parametrize("path", ["/dev/zero", "/tmp", "/"])
def test_only_files_and_block_devices_are_opened(path: str) -> None:
    with running_engine() as engine:
        queue = engine.queue()
        assert queue.wait(queue.submit_open(path, 0)).error in (errno.ENOTBLK,)


def test_a_fifo_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with running_engine() as engine:
        queue = engine.queue()
        for flags in (0, lib.IOU_WRITABLE):
            assert queue.wait(queue.submit_open(tmp_path / "fifo", flags)).error == errno.ENOTBLK


# Eventfd


def test_the_eventfd_is_non_blocking_and_close_on_exec() -> None:
    with running_engine() as engine:
        queue = engine.queue()
        assert fcntl.fcntl(queue.fd, fcntl.F_GETFL) & os.O_NONBLOCK
        assert fcntl.fcntl(queue.fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_the_eventfd_is_readable_only_while_there_are_completions(image: Path) -> None:
    with running_engine() as engine:
        queue = engine.queue()
        assert not queue.readable()
        cookie = queue.submit_open(image)
        assert queue.readable(DEADLINE)
        assert queue.readable(), "looking does not clear it"
        assert len(queue.reap()) == 1
        assert not queue.readable()
        queue.close_handle(queue.wait(cookie).handle)


def test_a_part_of_a_batch_leaves_the_eventfd_readable(image: Path) -> None:
    with running_engine() as engine:
        queue = engine.queue()
        handle = queue.open(image)
        cookies = submit_reads(queue, handle, 10)
        eventually(lambda: engine.idle)
        sizes = []
        while queue.readable():
            sizes.append(len(queue.reap(most=4)))
        assert sizes == [4, 4, 2]
        assert all(queue.wait(cookie).error == 0 for cookie in cookies)
        queue.close_handle(handle)


def test_an_exactly_full_batch_loses_no_wakeup(image: Path) -> None:
    with running_engine() as engine:
        queue = engine.queue()
        handle = queue.open(image)
        submit_reads(queue, handle, 8)
        eventually(lambda: engine.idle)
        assert len(queue.reap(most=8)) == 8
        # Either cleared, or readable once more with nothing behind it: both let the reader wait again.
        assert queue.reap() == []
        assert not queue.readable()
        queue.run(lib.IOU_STAT, handle)
        queue.close_handle(handle)


def test_reaping_nothing_is_harmless() -> None:
    with running_engine() as engine:
        assert engine.queue().reap() == []


# Queues


def test_each_queue_gets_its_own_completions(image: Path) -> None:
    with running_engine() as engine:
        queues = [engine.queue() for _ in range(5)]
        handle = queues[0].open(image)
        submitted = [submit_reads(queue, handle, 20) for queue in queues]
        for queue, cookies in zip(queues, submitted, strict=True):
            assert [queue.wait(cookie).cookie for cookie in cookies] == cookies
        queues[0].close_handle(handle)


def test_queues_used_from_several_threads(image: Path) -> None:
    failures: list[str] = []

    def work(queue: Queue, handle: Any, number: int) -> None:
        for turn in range(200):
            data = bytes([number, turn % 256]) * 256
            queue.run(lib.IOU_WRITE, handle, number * 4096, 512, buffer=data)
            buffer = bytearray(512)
            queue.run(lib.IOU_READ, handle, number * 4096, 512, buffer=buffer)
            if buffer != data:
                failures.append(f"thread {number}, turn {turn}")

    with running_engine(16) as engine:
        first = engine.queue()
        handle = first.open(image)
        threads = [threading.Thread(target=work, args=(engine.queue(), handle, n)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
        first.close_handle(handle)
    assert failures == []


def test_a_queue_with_operations_not_reaped_is_not_freed(image: Path) -> None:
    with running_engine() as engine:
        queue = engine.queue()
        cookie = queue.submit_open(image)
        assert lib.iou_queue_free(queue.queue) == -errno.EBUSY
        handle = queue.wait(cookie).handle
        queue.close_handle(handle)
        queue.free()
        engine.queues.remove(queue)


def test_an_engine_with_queues_or_not_stopped_is_not_freed() -> None:
    engine = Engine()
    assert lib.iou_engine_free(engine.engine) == -errno.EBUSY
    queue = engine.queue()
    assert engine.stop() == 0
    assert lib.iou_engine_free(engine.engine) == -errno.EBUSY
    queue.free()
    assert lib.iou_engine_free(engine.engine) == 0


# Engines


def test_threads_that_may_not_be_idle_still_do_all_the_work(image: Path) -> None:
    with running_engine(max_threads=4, idle_ms=0) as engine:
        queue = engine.queue()
        handle = queue.open(image)
        for _ in range(300):
            queue.run(lib.IOU_READ, handle, 0, 512, buffer=bytearray(512))
        queue.close_handle(handle)


def test_one_thread_does_everything(image: Path) -> None:
    """Edges included: what waits for one takes no thread, so there is nothing to wait for in vain."""
    with running_engine(max_threads=1) as engine:
        queue = engine.queue()
        handle = queue.open(image)
        cookies = [queue.submit(lib.IOU_WRITE, handle, 7 * n, 5000, buffer=b"x" * 5000) for n in range(50)]
        cookies += [queue.submit(lib.IOU_FLUSH, handle) for _ in range(3)]
        assert all(queue.wait(cookie).error == 0 for cookie in cookies)
        queue.close_handle(handle)
    assert image.read_bytes()[: 49 * 7 + 5000] == b"x" * (49 * 7 + 5000)


def test_two_engines_share_the_image_of_a_file(image: Path) -> None:
    with running_engine() as first, running_engine() as second:
        queues = [first.queue(), second.queue()]
        handles = [queue.open(image) for queue in queues]
        for turn in range(100):
            cookies = [
                queue.submit(lib.IOU_WRITE, handle, 100 * number, 100, buffer=bytes([2 * turn % 256 + number]) * 100)
                for number, (queue, handle) in enumerate(zip(queues, handles, strict=True))
            ]
            assert [queue.wait(cookie).error for queue, cookie in zip(queues, cookies, strict=True)] == [0, 0]
            content = image.read_bytes()[:200]
            assert content == bytes([2 * turn % 256]) * 100 + bytes([2 * turn % 256 + 1]) * 100
        for queue, handle in zip(queues, handles, strict=True):
            queue.close_handle(handle)


def test_engines_come_and_go(image: Path) -> None:
    for turn in range(100):
        with running_engine(max_threads=4) as engine:
            queue = engine.queue()
            handle = queue.open(image)
            submit_reads(queue, handle, turn % 5)
            queue.submit(lib.IOU_CLOSE, handle)


# Fork


def test_a_forked_child_is_refused_and_the_parent_goes_on(image: Path) -> None:
    with running_engine() as engine:
        queue = engine.queue()
        handle = queue.open(image)
        with warnings.catch_warnings():
            # Python 3.12 warns of exactly this: a fork beside threads.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            opening = lib.iou_submit_open(queue.queue, 99, str(image).encode(), 0, ffi.NULL)
            reading = lib.iou_submit(queue.queue, 99, handle, lib.IOU_STAT, 0, 0, 0, ffi.NULL, 0, ffi.NULL)
            os._exit(0 if (opening, reading) == (-errno.ECHILD, -errno.ECHILD) else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        queue.run(lib.IOU_READ, handle, 0, 512, buffer=bytearray(512))
        queue.close_handle(handle)


# Names


def test_names_are_never_null() -> None:
    for function in (lib.iou_syscall_name, lib.iou_kind_name):
        for number in (0, 1, 5, 14, 15, 1000):
            assert ffi.string(function(number))
    for number in (-1, -(2**31)):
        assert ffi.string(lib.iou_syscall_name(number))
