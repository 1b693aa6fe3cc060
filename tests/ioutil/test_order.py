# SPDX-License-Identifier: Apache-2.0
"""Changes that overlap are made one after the other, in order of arrival, whatever became of who asked for them."""

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ioutil_ext import lib

from .engine_driver import DEADLINE, Control, Engine, Image, aligned, eventually
from .gate import Gate, gated_engine, submit_reads
from .rival import BIG, BLOCK, race
from .syscall_table import real_fallocate, real_pwrite, replaced


@pytest.mark.parametrize("handles", [1, 2])
def test_an_aligned_write_waits_for_an_earlier_one(path: Path, handles: int) -> None:
    with Image(path) as image, Image(path) as second:
        other = image if handles == 1 else second
        overtook = race(
            lambda: image.write(0, aligned(b"1" * BIG)),
            lambda: other.write(BLOCK, aligned(b"2" * BLOCK)),
            inside="pwrite",
        )
    assert not overtook
    assert path.read_bytes() == b"1" * BLOCK + b"2" * BLOCK + b"1" * (BIG - 2 * BLOCK)


def test_a_write_waits_for_an_earlier_zero(path: Path) -> None:
    with Image(path) as image:
        overtook = race(
            lambda: image.zero(0, BIG), lambda: image.write(BLOCK, aligned(b"2" * BLOCK)), inside="fallocate"
        )
    assert not overtook
    assert path.read_bytes() == bytes(BLOCK) + b"2" * BLOCK + bytes(BIG - 2 * BLOCK)


def test_what_only_touches_does_not_wait(path: Path) -> None:
    with Image(path) as image:
        overtook = race(
            lambda: image.write(0, aligned(b"1" * BLOCK)),
            lambda: image.write(BLOCK, aligned(b"2" * BLOCK)),
            inside="pwrite",
        )
    assert overtook


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_an_operation_that_waits_for_a_thread_comes_before_a_later_one(image: Path, gate: Gate) -> None:
    """Order of arrival is order of submission, not that in which threads are to be had."""
    with gated_engine(gate) as engine, Image(image) as other:
        queue = engine.queue()
        handle = queue.open(image)
        gate.hold(image)
        reads = submit_reads(queue, handle, 2)
        gate.wait_for(2)
        first = queue.submit(lib.IOU_WRITE, handle, 0, BIG, buffer=aligned(b"1" * BIG))
        second = in_thread(lambda: other.write(0, aligned(b"2" * BLOCK)))
        second.join(0.1)
        assert second.is_alive()
        gate.release()
        assert [queue.wait(cookie).error for cookie in [*reads, first]] == [0] * 3
        second.join(DEADLINE)
        queue.close_handle(handle)
    assert image.read_bytes()[:BIG] == b"2" * BLOCK + b"1" * (BIG - BLOCK)


class Steps:
    """Calls of fallocate of which the second waits until the test lets it go."""

    def __init__(self) -> None:
        self.made = 0
        self.entered = threading.Event()
        self.leave = threading.Event()

    def fallocate(self, fd: int, mode: int, offset: int, length: int) -> None:
        self.made += 1
        if self.made == 2:
            self.entered.set()
            assert self.leave.wait(DEADLINE)
        real_fallocate(fd, mode, offset, length)


def test_a_canceled_zero_keeps_others_out_until_its_step_has_ended(tmp_path: Path) -> None:
    path, steps, control = tmp_path / "image", Steps(), Control()
    size = 512 * 1024 * 1024
    with path.open("wb") as file:
        file.truncate(size)
    with replaced(fallocate=steps.fallocate), Image(path) as image, Image(path) as other:
        results: list[int] = []
        zero = in_thread(lambda: results.append(image.attempt(lib.IOU_ZERO, 0, size, control=control).error))
        assert steps.entered.wait(DEADLINE)
        control.cancel()
        # Behind what is being zeroed, where nothing will ever be done: the claim is the whole range's.
        write = in_thread(lambda: other.write(size - BLOCK, aligned(b"2" * BLOCK)))
        write.join(0.1)
        assert write.is_alive()
        steps.leave.set()
        for thread in (zero, write):
            thread.join(DEADLINE)
        assert results == [errno.ECANCELED]
        assert other.read(size - BLOCK, BLOCK) == b"2" * BLOCK


def test_what_was_canceled_while_it_waited_touches_nothing(image: Path) -> None:
    before, made = image.read_bytes(), []
    entered, leave = threading.Event(), threading.Event()

    def pwrite(fd: int, buffer: memoryview, offset: int) -> int:
        made.append((offset, len(buffer)))
        entered.set()
        assert leave.wait(DEADLINE)
        return real_pwrite(fd, buffer, offset)

    with replaced(pwrite=pwrite):
        engine = Engine()
        queue = engine.queue()
        handle = queue.open(image)
        control = Control()
        first = queue.submit(lib.IOU_WRITE, handle, 0, BLOCK, buffer=aligned(b"1" * BLOCK))
        assert entered.wait(DEADLINE)
        second = queue.submit(lib.IOU_WRITE, handle, 0, BIG, buffer=aligned(b"2" * BIG), control=control)
        eventually(lambda: engine.stats.queued == 1)
        control.cancel()
        leave.set()
        assert queue.wait(first).error == 0
        assert queue.wait(second).error == errno.ECANCELED
        queue.close_handle(handle)
        assert engine.stop() == 0
        engine.free()
    assert made == [(0, BLOCK)]
    assert image.read_bytes() == b"1" * BLOCK + before[BLOCK:]
