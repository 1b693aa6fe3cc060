# SPDX-License-Identifier: Apache-2.0
"""Long operations let others go first between their steps."""

import errno
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ioutil_ext import lib

from .engine_driver import Control, Engine, Queue, aligned, eventually, execute, running_engine
from .fake_image import Call, HugeImage

MiB = 1024 * 1024
TiB = MiB * MiB
#: What a write may wait for zeros, in seconds.
SOON = 1.0
#: How the storage zeroes: calls that it does not know.
CANNOT: dict[str, list[str]] = {
    "by a call": [],
    "by writing": ["punch_hole", "zero_range", "fallocate", "blkzeroout"],
}


class SlowImage(HugeImage):
    """Storage that zeroes at 1 GB/s and writes long pieces at 100 MB/s."""

    def _enter(self, name: str, offset: int, length: int) -> None:
        super()._enter(name, offset, length)
        if name in ("punch_hole", "zero_range"):
            threading.Event().wait(length / 1e9)
        elif name == "pwrite" and length > 4096:
            threading.Event().wait(length / 1e8)


@contextmanager
def slow_engine(placeholder: Path, how: str) -> Iterator[tuple[Engine, Queue, Any, SlowImage]]:
    """Run an engine of two threads for a device, on one slow image."""
    image = SlowImage(placeholder, TiB, is_block=False)
    with image.installed(), running_engine(max_threads=8) as engine:
        queue = engine.queue()
        handle = queue.open(placeholder)
        image.faults = dict.fromkeys(CANNOT[how], errno.EOPNOTSUPP)
        yield engine, queue, handle, image
        queue.close_handle(handle)


@pytest.mark.parametrize(
    ("kind", "how"), [(lib.IOU_ZERO, "by a call"), (lib.IOU_ZERO, "by writing"), (lib.IOU_TRIM, "by a call")]
)
def test_a_short_write_does_not_wait_for_eight_long_ones(placeholders: dict[str, Path], kind: int, how: str) -> None:
    with slow_engine(placeholders["file"], how) as (_, queue, handle, image):
        control = Control()
        part = TiB // 16
        long = [queue.submit(kind, handle, i * part, part, control=control) for i in range(8)]
        eventually(lambda: control.done)
        waits = []
        for turn in range(3):
            began = time.monotonic()
            offset = TiB - (turn + 1) * 4096
            assert queue.wait(queue.submit(lib.IOU_WRITE, handle, offset, 4096, buffer=aligned(bytes(4096)))).error == 0
            waits.append(time.monotonic() - began)
        control.cancel()
        assert {queue.wait(cookie).error for cookie in long} == {errno.ECANCELED}
    assert max(waits) < SOON
    starts = {call.offset // part for call in image.calls if call.length > 4096}
    assert len(starts) == 8, "they take turns among themselves, too"


def test_what_overlaps_waits_for_all_turns(placeholders: dict[str, Path]) -> None:
    with slow_engine(placeholders["file"], "by a call") as (_, queue, handle, image):
        zero = queue.submit(lib.IOU_ZERO, handle, 0, 512 * MiB)
        write = queue.submit(lib.IOU_WRITE, handle, 511 * MiB, 4096, buffer=aligned(bytes(4096)))
        assert queue.wait(write).error == 0
        assert queue.wait(zero).done == 512 * MiB
    assert image.calls.index(Call("pwrite", 511 * MiB, 4096)) == len(image.calls) - 1


def test_a_long_one_between_two_turns_is_canceled(placeholders: dict[str, Path]) -> None:
    with slow_engine(placeholders["file"], "by a call") as (engine, queue, handle, _):
        control = Control()
        long = [queue.submit(lib.IOU_ZERO, handle, i * TiB // 8, TiB // 8, control=control) for i in range(8)]
        eventually(lambda: control.done > 2048 * MiB)
        control.cancel()
        engine.cancel_queued()
        results = [queue.wait(cookie) for cookie in long]
        assert {result.error for result in results} == {errno.ECANCELED}
        assert sum(result.done for result in results) == control.done
        assert lib.iou_handle_generation(handle), "nothing is under way any more"


def test_the_engine_lets_long_ones_that_have_begun_end(placeholders: dict[str, Path]) -> None:
    image = SlowImage(placeholders["file"], TiB, is_block=False)
    with image.installed():
        engine = Engine(max_threads=4)
        queue = engine.queue()
        handle = queue.open(placeholders["file"])
        zero = queue.submit(lib.IOU_ZERO, handle, 0, 1024 * MiB)
        eventually(lambda: any(call.name == "punch_hole" for call in image.calls))
        assert engine.stop() == 0
        assert queue.wait(zero).done == 1024 * MiB
        assert execute(lib.IOU_CLOSE, handle).error == 0
        engine.free()
