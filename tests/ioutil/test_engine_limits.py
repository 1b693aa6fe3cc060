# SPDX-License-Identifier: Apache-2.0
"""Quotas, cancellation, shutdown and the life of threads. Operations are held up by reads that wait for the test."""

import errno
import os
import signal
import threading
from pathlib import Path

import pytest

from ioutil_ext import ffi, lib

from .engine_driver import DEADLINE, Control, Engine, aligned, eventually, execute, running_engine
from .gate import Gate, gated_engine, submit_reads
from .syscall_table import real_close, real_open, real_pwrite, replaced

KiB = 1024

# Quotas


def test_one_device_gets_at_most_a_quarter_of_the_threads(image: Path, gate: Gate) -> None:
    with gated_engine(gate, max_threads=12) as engine:
        queue = engine.queue()
        handle = queue.open(image)
        gate.hold(image)
        submit_reads(queue, handle, 10)
        gate.wait_for(3)
        assert gate.nobody_more()
        assert (engine.stats.busy, engine.stats.queued) == (3, 7)
        gate.release()
        assert all(result.error == 0 for result in queue.wait_all())
        queue.close_handle(handle)


def test_a_device_gets_a_thread_even_where_a_quarter_is_none(image: Path) -> None:
    for threads in (1, 2, 3):
        with running_engine(threads) as engine:
            queue = engine.queue()
            handle = queue.open(image)
            queue.run(lib.IOU_STAT, handle)
            queue.close_handle(handle)


def test_a_hung_device_does_not_stop_another(image: Path, other_device_image: Path, gate: Gate) -> None:
    with gated_engine(gate) as engine:
        queue = engine.queue()
        hung = queue.open(image)
        gate.hold(image)
        cookies = submit_reads(queue, hung, 30)
        gate.wait_for(2)
        other = queue.open(other_device_image)
        for _ in range(50):
            queue.run(lib.IOU_READ, other, 0, 4096, buffer=bytearray(4096))
        queue.run(lib.IOU_FLUSH, other)
        queue.close_handle(other)
        assert engine.stats.queued == 28
        gate.release()
        assert all(queue.wait(cookie).error == 0 for cookie in cookies)
        queue.close_handle(hung)


def test_an_open_on_a_hung_mount_does_not_stop_opens_elsewhere(
    image: Path, other_device_image: Path, gate: Gate
) -> None:
    with gated_engine(gate) as engine:
        queue = engine.queue()
        hung = queue.open(image)
        gate.hold(image)
        reads = submit_reads(queue, hung, 2)
        gate.wait_for(2)
        waiting = [queue.submit_open(image) for _ in range(20)]
        other = queue.open(other_device_image)
        queue.close_handle(other)
        assert engine.stats.queued == 20
        gate.release()
        for cookie in waiting:
            queue.close_handle(queue.wait(cookie).handle)
        assert all(queue.wait(cookie).error == 0 for cookie in reads)
        queue.close_handle(hung)


def test_an_open_that_waits_for_a_thread_can_be_canceled(image: Path, gate: Gate) -> None:
    with gated_engine(gate) as engine:
        queue = engine.queue()
        hung = queue.open(image)
        gate.hold(image)
        reads = submit_reads(queue, hung, 2)
        gate.wait_for(2)
        control = Control()
        canceled, other = queue.submit_open(image, control=control), queue.submit_open(image)
        control.cancel()
        assert engine.cancel_queued() == 1
        result = queue.wait(canceled)
        assert (result.error, result.handle) == (errno.ECANCELED, ffi.NULL)
        gate.release()
        queue.close_handle(queue.wait(other).handle)
        assert all(queue.wait(cookie).error == 0 for cookie in reads)
        queue.close_handle(hung)


def test_hung_opens_take_only_a_quarter(image: Path, other_device_image: Path) -> None:
    open_gate = threading.Event()
    entered = threading.Semaphore(0)

    def hanging_open(path: str, flags: int) -> int:
        if path == str(image):
            entered.release()
            assert open_gate.wait(DEADLINE)
        return real_open(path, flags)

    with replaced(open=hanging_open), running_engine(8) as engine:
        try:
            queue = engine.queue()
            cookies = [queue.submit_open(image) for _ in range(10)]
            assert entered.acquire(timeout=DEADLINE)
            assert entered.acquire(timeout=DEADLINE)
            other = queue.open(other_device_image)
            queue.close_handle(other)
            assert not entered.acquire(timeout=0.05)
        finally:
            open_gate.set()
        for cookie in cookies:
            queue.close_handle(queue.wait(cookie).handle)


# Changes that overlap


def test_operations_that_wait_for_an_earlier_change_take_no_thread(image: Path, gate: Gate) -> None:
    """One thread of two is held up in a block; writers of that block wait without the other one."""
    with gated_engine(gate) as engine:
        queue = engine.queue()
        handle = queue.open(image)
        gate.hold(image)
        first = queue.submit(lib.IOU_WRITE, handle, 100, 50, buffer=b"e" * 50)
        gate.wait_for(1)
        waiting = [queue.submit(lib.IOU_WRITE, handle, 0, 4096, buffer=aligned(b"w" * 4096)) for _ in range(10)]
        for _ in range(10):
            queue.run(lib.IOU_WRITE, handle, 8192, 4096, buffer=aligned(b"o" * 4096))
        assert (engine.stats.busy, engine.stats.queued) == (1, 10)
        gate.release()
        assert [queue.wait(cookie).error for cookie in [first, *waiting]] == [0] * 11
        queue.close_handle(handle)
    assert image.read_bytes()[:4096] == b"w" * 4096


def test_operations_that_wait_for_an_earlier_change_can_be_canceled(image: Path, gate: Gate) -> None:
    with gated_engine(gate) as engine:
        queue = engine.queue()
        handle = queue.open(image)
        gate.hold(image)
        first = queue.submit(lib.IOU_WRITE, handle, 100, 50, buffer=b"e" * 50)
        gate.wait_for(1)
        control = Control()
        waiting = [queue.submit(lib.IOU_ZERO, handle, 0, 4096, control=control) for _ in range(5)]
        last = queue.submit(lib.IOU_WRITE, handle, 0, 4096, buffer=aligned(b"w" * 4096))
        eventually(lambda: engine.stats.busy == 1)
        control.cancel()
        assert engine.cancel_queued() == 5
        assert [queue.wait(cookie).error for cookie in waiting] == [errno.ECANCELED] * 5
        gate.release()
        assert [queue.wait(cookie).error for cookie in (first, last)] == [0, 0]
        queue.close_handle(handle)
    assert image.read_bytes()[:4096] == b"w" * 4096


def test_others_go_on_however_many_wait_for_an_earlier_change(image: Path, gate: Gate) -> None:
    with gated_engine(gate) as engine:
        queue = engine.queue()
        handle = queue.open(image)
        gate.hold(image)
        first = queue.submit(lib.IOU_WRITE, handle, 100, 50, buffer=b"e" * 50)
        gate.wait_for(1)
        control = Control()
        waiting = [queue.submit(lib.IOU_ZERO, handle, 0, 4096, control=control) for _ in range(1000)]
        queue.run(lib.IOU_STAT, handle)
        queue.run(lib.IOU_WRITE, handle, 8192, 4096, buffer=aligned(b"o" * 4096))
        assert (engine.stats.busy, engine.stats.queued) == (1, 1000)
        control.cancel()
        assert engine.cancel_queued() == 1000
        assert {queue.wait(cookie).error for cookie in waiting} == {errno.ECANCELED}
        gate.release()
        assert queue.wait(first).error == 0
        queue.close_handle(handle)


def test_stop_ends_operations_that_wait_for_an_earlier_change(image: Path, gate: Gate) -> None:
    with gated_engine(gate) as engine:
        queue = engine.queue()
        handle = queue.open(image)
        gate.hold(image)
        first = queue.submit(lib.IOU_WRITE, handle, 100, 50, buffer=b"e" * 50)
        gate.wait_for(1)
        waiting = [queue.submit(lib.IOU_ZERO, handle, 0, 4096) for _ in range(5)]
        stopping = threading.Thread(target=engine.stop)
        stopping.start()
        assert [queue.wait(cookie).error for cookie in waiting] == [errno.ECANCELED] * 5
        gate.release()
        assert queue.wait(first).error == 0
        stopping.join(DEADLINE)
        assert not stopping.is_alive()
    execute(lib.IOU_CLOSE, handle)


# Cancellation


def test_queued_operations_are_canceled_without_a_thread(image: Path, gate: Gate) -> None:
    with gated_engine(gate) as engine:
        queue = engine.queue()
        handle = queue.open(image)
        gate.hold(image)
        running = submit_reads(queue, handle, 2)
        gate.wait_for(2)
        control = Control()
        queued = submit_reads(queue, handle, 5, control)
        others = submit_reads(queue, handle, 3)
        control.cancel()
        assert engine.cancel_queued() == 5
        assert [queue.wait(cookie).error for cookie in queued] == [errno.ECANCELED] * 5
        assert engine.stats.queued == 3
        assert engine.cancel_queued() == 0
        gate.release()
        assert [queue.wait(cookie).error for cookie in running + others] == [0] * 5
        queue.close_handle(handle)


def test_a_canceled_completion_tells_that_nothing_was_done(image: Path, gate: Gate) -> None:
    with gated_engine(gate) as engine:
        queue = engine.queue()
        handle = queue.open(image)
        gate.hold(image)
        submit_reads(queue, handle, 2)
        gate.wait_for(2)
        control = Control()
        cookie = queue.submit(lib.IOU_WRITE, handle, 0, 4096, buffer=bytes(4096), control=control)
        control.cancel()
        engine.cancel_queued()
        result = queue.wait(cookie)
        assert (result.error, result.done, result.syscall) == (errno.ECANCELED, 0, lib.IOU_SYS_NONE)
        gate.release()
        queue.wait_all()
        queue.close_handle(handle)
    assert image.read_bytes()[:4] == b"\0\1\2\3"


def test_an_operation_canceled_before_its_start_ends_without_touching_storage(image: Path) -> None:
    calls: list[int] = []

    def pwrite(fd: int, buffer: memoryview, offset: int) -> int:
        calls.append(offset)
        return real_pwrite(fd, buffer, offset)

    with replaced(pwrite=pwrite), running_engine() as engine:
        queue = engine.queue()
        handle = queue.open(image)
        control = Control()
        control.cancel()
        cookie = queue.submit(lib.IOU_WRITE, handle, 0, 4096, buffer=bytes(4096), control=control)
        assert queue.wait(cookie).error == errno.ECANCELED
        queue.close_handle(handle)
    assert calls == []


def test_progress_of_many_operations_adds_up(image: Path) -> None:
    control = Control()
    with running_engine() as engine:
        queue = engine.queue()
        handle = queue.open(image)
        for cookie in submit_reads(queue, handle, 32, control):
            assert queue.wait(cookie).done == 4096
        queue.close_handle(handle)
    assert control.done == 32 * 4096


# Close and shutdown


def test_close_leaves_descriptors_to_the_operations_that_use_them(image: Path) -> None:
    closed: list[int] = []
    gate = Gate()

    def close(fd: int) -> None:
        closed.append(fd)
        real_close(fd)

    with replaced(pread=gate.pread, close=close), gated_engine(gate) as engine:
        queue = engine.queue()
        handle = queue.open(image)
        gate.hold(image)
        (read,) = submit_reads(queue, handle, 1)
        gate.wait_for(1)
        queue.close_handle(handle)
        assert closed == [], "descriptors in use were closed"
        gate.release()
        assert queue.wait(read).error == 0
    assert len(closed) == len(set(closed)) == 3, "all descriptors, that of the locks among them, once"


def test_operations_submitted_before_a_close_still_run(image: Path, gate: Gate) -> None:
    with gated_engine(gate) as engine:
        queue = engine.queue()
        handle = queue.open(image)
        gate.hold(image)
        reads = submit_reads(queue, handle, 6)
        gate.wait_for(2)
        cookie = queue.submit(lib.IOU_CLOSE, handle)
        gate.release()
        assert [queue.wait(read).error for read in reads] == [0] * 6
        assert queue.wait(cookie).error == 0


def test_stop_ends_queued_operations_and_waits_for_started_ones(image: Path, gate: Gate) -> None:
    with gated_engine(gate) as engine:
        queue = engine.queue()
        handle = queue.open(image)
        gate.hold(image)
        cookies = submit_reads(queue, handle, 5)
        gate.wait_for(2)
        stopping = threading.Thread(target=engine.stop)
        stopping.start()
        assert [queue.wait(cookie).error for cookie in cookies[2:]] == [errno.ECANCELED] * 3
        assert stopping.is_alive()
        gate.release()
        stopping.join(DEADLINE)
        assert not stopping.is_alive()
        assert [queue.wait(cookie).error for cookie in cookies[:2]] == [0, 0]
    # The handle outlives the engine; a call in this thread closes it.
    assert execute(lib.IOU_CLOSE, handle).error == 0


def test_a_stopped_engine_refuses_operations(image: Path) -> None:
    engine = Engine()
    queue = engine.queue()
    handle = queue.open(image)
    queue.close_handle(queue.open(image))
    assert engine.stop() == 0
    with pytest.raises(OSError, match=os.strerror(errno.ESHUTDOWN)) as refused:
        queue.submit_open(image)
    assert refused.value.errno == errno.ESHUTDOWN
    with pytest.raises(OSError, match=os.strerror(errno.ESHUTDOWN)) as refused:
        queue.submit(lib.IOU_STAT, handle)
    assert refused.value.errno == errno.ESHUTDOWN
    assert execute(lib.IOU_CLOSE, handle).error == 0
    queue._pending.clear()
    engine.free()


def test_stop_names_what_hangs(image: Path) -> None:
    gate = Gate()
    with replaced(pread=gate.pread):
        engine = Engine()
        queue = engine.queue()
        handle = queue.open(image)
        gate.hold(image)
        cookie = queue.submit(lib.IOU_READ, handle, 8192, 4096, buffer=bytearray(4096))
        gate.wait_for(1)
        try:
            assert engine.stop(timeout=0.05) == 1
            (hung,) = engine.running()
            assert (hung.cookie, hung.kind, hung.offset, hung.length) == (cookie, lib.IOU_READ, 8192, 4096)
            assert ffi.string(hung.path).decode() == str(image)
            assert hung.elapsed >= 50_000_000
            assert lib.iou_engine_free(engine.engine) == -errno.EBUSY
        finally:
            gate.release()
        assert queue.wait(cookie).error == 0


def test_running_tells_the_longest_first_and_no_more_than_asked(image: Path, gate: Gate) -> None:
    with gated_engine(gate, max_threads=16) as engine:
        queue = engine.queue()
        handle = queue.open(image)
        gate.hold(image)
        cookies = []
        for _ in range(3):
            cookies += submit_reads(queue, handle, 1)
            gate.wait_for(1)
        assert [record.cookie for record in engine.running()] == cookies
        assert [record.cookie for record in engine.running(most=2)] == cookies[:2]
        gate.release()
        queue.wait_all()
        queue.close_handle(handle)


def test_a_long_path_is_cut_to_fit_in_what_runs(tmp_path: Path, gate: Gate) -> None:
    directory = tmp_path / ("d" * 200)
    directory.mkdir()
    image = directory / ("f" * 200)
    image.write_bytes(bytes(8192))
    with gated_engine(gate) as engine:
        queue = engine.queue()
        handle = queue.open(image)
        gate.hold(image)
        submit_reads(queue, handle, 1)
        gate.wait_for(1)
        (record,) = engine.running()
        name = ffi.string(record.path).decode()
        assert len(name) == 255
        gate.release()
        queue.wait_all()
        queue.close_handle(handle)


def test_stop_twice_is_harmless() -> None:
    engine = Engine()
    assert engine.stop() == 0
    assert engine.stop() == 0
    engine.free()


# Threads


def test_threads_grow_on_demand_and_end_when_idle(image: Path, gate: Gate) -> None:
    with gated_engine(gate, max_threads=16) as engine:
        assert engine.stats.threads <= 1
        queue = engine.queue()
        handle = queue.open(image)
        gate.hold(image)
        submit_reads(queue, handle, 4)
        gate.wait_for(4)
        assert 4 <= engine.stats.threads <= 16
        gate.release()
        queue.wait_all()
        eventually(lambda: engine.stats.threads == 0)
        queue.run(lib.IOU_STAT, handle)
        queue.close_handle(handle)


def test_the_workers_block_every_signal(image: Path, gate: Gate) -> None:
    """Python's handlers run in the main thread; a worker that takes the signal would be interrupted for nothing."""
    with gated_engine(gate) as engine:
        queue = engine.queue()
        handle = queue.open(image)
        python_threads = set(os.listdir("/proc/self/task"))
        gate.hold(image)
        submit_reads(queue, handle, 2)
        gate.wait_for(2)
        workers = set(os.listdir("/proc/self/task")) - {str(os.getpid())}
        blocked = [signals_blocked(worker) for worker in workers if worker not in python_threads] or [
            signals_blocked(worker) for worker in workers
        ]
        assert any(signal.SIGTERM in signals for signals in blocked)
        gate.release()
        queue.wait_all()
        queue.close_handle(handle)


def signals_blocked(thread: str) -> set[int]:
    for line in Path("/proc/self/task", thread, "status").read_text().splitlines():
        if line.startswith("SigBlk:"):
            mask = int(line.split()[1], 16)
            return {number for number in range(1, 65) if mask & 1 << (number - 1)}
    raise AssertionError("no SigBlk")


def test_many_operations_leave_no_descriptor_and_no_thread(image: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    before = descriptors(), threads()
    total = 100_000
    with running_engine(max_threads=8, idle_ms=50) as engine:
        queue = engine.queue()
        handle = queue.open(image)
        buffer = bytearray(512)
        submitted = reaped = 0
        while reaped < total:
            while submitted < total and submitted - reaped < 256:
                queue.submit(lib.IOU_READ, handle, submitted % 512 * 512, 512, buffer=buffer)
                submitted += 1
            assert queue.readable(DEADLINE)
            results = queue.reap()
            assert all(result.error == 0 for result in results)
            for result in results:
                queue._reaped.pop(result.cookie)
            reaped += len(results)
        queue.close_handle(handle)
        eventually(lambda: engine.stats.threads == 0)
        assert engine.idle
    assert (descriptors(), threads()) == before


def test_opening_and_closing_leaves_no_descriptor(image: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with running_engine() as engine:
        queue = engine.queue()
        for _ in range(500):
            queue.close_handle(queue.open(image))
            queue.wait(queue.submit_open("/nonexistent"))
            queue.wait(queue.submit_open("/dev/zero", 0))
    assert len(os.listdir("/proc/self/fd")) == before
