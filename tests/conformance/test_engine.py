# SPDX-License-Identifier: Apache-2.0
"""The asyncio side of the C engine: what becomes of completions when loops, tasks and holders end at odd moments."""

import asyncio
import errno
import itertools
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from imageio_daemon.errors import Unavailable
from imageio_daemon.storage import completion_queue, completions, file
from imageio_daemon.storage.completion_queue import CompletionQueue, Submission
from imageio_daemon.storage.engine import Engine
from imageio_daemon.storage.file import FileBackend
from imageio_daemon.storage.operation import Operation
from ioutil_ext import ffi, lib
from tests.ioutil.syscall_table import replaced
from tests.support.polling import eventually, eventually_async
from tests.support.processes import open_files
from tests.support.syscalls import FALLOC_FL_PUNCH_HOLE


class Holder:
    """Call a function when the storage lets go."""

    def __init__(self, on_release: Callable[[], object]) -> None:
        self._on_release = on_release

    def retain(self) -> None:
        pass

    def release(self) -> None:
        self._on_release()


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    """One thread: operations end in the order of submission."""
    engine = Engine(io_threads=1)
    yield engine
    await engine.release()
    assert engine.stop(timeout=10) == []


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(bytes(4096))
    return path


@pytest.fixture
async def handle(engine: Engine, image: Path) -> AsyncIterator[Any]:
    opened = await engine.submit_open(str(image), writable=True)
    yield opened
    await engine.submit(lib.IOU_CLOSE, opened)


def all_but_the_last_can_be_reaped(engine: Engine) -> None:
    """Wait, without giving the loop a turn, until all that was submitted has run."""
    stats = ffi.new("iou_stats *")

    def all_ended() -> bool:
        lib.iou_engine_stats(engine._engine, stats)
        return not stats.busy and not stats.queued

    eventually(all_ended, "all operations end")


async def test_queue_is_not_looked_at_after_it_was_given_up(
    engine: Engine, handle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion_queue, "REAP_BATCH", 1)
    await engine.submit(lib.IOU_STAT, handle)
    await engine.release()
    await asyncio.sleep(0)


async def test_giving_up_a_loop_waits_for_what_its_tasks_submit_meanwhile(engine: Engine, handle: Any) -> None:
    async def stat_twice() -> None:
        await engine.submit(lib.IOU_STAT, handle)
        await engine.submit(lib.IOU_STAT, handle)

    task = asyncio.create_task(stat_twice())
    await asyncio.sleep(0)
    await engine.release()
    await task


async def test_holder_that_fails_does_not_keep_others_from_their_completions(engine: Engine, handle: Any) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def fail() -> None:
        raise ValueError("a bug")

    futures: list[asyncio.Future[Any]] = [
        engine.submit(lib.IOU_STAT, handle, holders=(Holder(fail),)),
        engine.submit(lib.IOU_STAT, handle),
        engine.submit(lib.IOU_STAT, handle),
    ]
    all_but_the_last_can_be_reaped(engine)
    async with asyncio.timeout(10):
        await asyncio.gather(*futures)
    assert [str(context["exception"]) for context in reported] == ["a bug"]


async def test_completion_that_cannot_be_told_of_is_handed_back(
    engine: Engine, handle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def fail(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(completion_queue, "_tell", fail)
    async with asyncio.timeout(10):
        await engine.submit(lib.IOU_STAT, handle)
    monkeypatch.undo()
    assert [str(context["exception"]) for context in reported] == ["a bug"]


def without_threads(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let C refuse the next operations, as where it has no worker and can start none."""
    submit, refused = CompletionQueue.submit, itertools.count()

    def refuse(queue: CompletionQueue, pending: Submission, call: Callable[[Any, int], int]) -> Any:
        return submit(queue, pending, call if next(refused) >= times else lambda *_: -errno.ENOMEM)

    monkeypatch.setattr(CompletionQueue, "submit", refuse)


async def test_image_is_closed_when_there_is_a_thread_again(
    engine: Engine, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = await FileBackend.open(engine, str(image), writable=True)
    without_threads(monkeypatch, 2)
    await asyncio.wait_for(backend.close(), 10)
    assert str(image) not in open_files(os.getpid()).values()


async def test_open_is_unavailable_without_a_thread(
    engine: Engine, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_threads(monkeypatch, 1)
    with pytest.raises(Unavailable, match="no thread"):
        await FileBackend.open(engine, str(image), writable=True)


async def test_method_that_is_given_up_is_logged_once_for_the_image(
    engine: Engine, handle: Any, image: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(fd: int, mode: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP if mode & FALLOC_FL_PUNCH_HOLE else errno.EINVAL, "refused")

    caplog.set_level(logging.INFO, completions.log.name)
    with replaced(fallocate=refuse):
        for _ in range(2):
            await engine.submit(lib.IOU_ZERO, handle, length=4096, name=str(image))
    assert caplog.messages == [
        f"no fallocate(PUNCH_HOLE) on {image}: Operation not supported",
        f"no fallocate(ZERO_RANGE) on {image}: Invalid argument",
    ]


async def test_request_that_c_cannot_express_holds_nothing(engine: Engine, handle: Any) -> None:
    ended: list[Operation] = []
    op = Operation(on_end=ended.append)
    with pytest.raises(OverflowError):
        engine.submit(lib.IOU_TRIM, handle, offset=2**64, length=1, holders=(op,))
    op.release()
    assert ended == [op]


async def test_open_of_a_task_that_is_cancelled_as_it_succeeds_is_closed(
    engine: Engine, handle: Any, image: Path
) -> None:
    fds = len(os.listdir("/proc/self/fd"))
    task = asyncio.create_task(FileBackend.open(engine, str(image), writable=False))
    await asyncio.sleep(0)
    # Reaped in one batch with the open, so the task is cancelled after its result is set and before it sees it.
    engine.submit(lib.IOU_STAT, handle, holders=(Holder(task.cancel),))
    last = engine.submit(lib.IOU_STAT, handle)
    all_but_the_last_can_be_reaped(engine)
    with pytest.raises(asyncio.CancelledError):
        await task
    await last
    await engine.submit(lib.IOU_STAT, handle)
    assert len(os.listdir("/proc/self/fd")) == fds


async def test_open_of_a_task_that_is_cancelled_before_the_identity_is_known_is_closed(
    engine: Engine, handle: Any, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def hang(_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(file, "_lasting", hang)
    fds = len(os.listdir("/proc/self/fd"))
    task = asyncio.create_task(FileBackend.open(engine, str(image), writable=False))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(os.listdir("/proc/self/fd")) == fds


async def test_open_that_hangs_is_closed_in_the_end_although_its_task_is_cancelled_twice(
    engine: Engine, handle: Any, image: Path
) -> None:
    fds = len(os.listdir("/proc/self/fd"))
    hangs, ends = threading.Event(), threading.Event()
    opened: list[int] = []

    def hang(path: str, flags: int) -> int:
        hangs.set()
        ends.wait(30)
        opened.append(os.open(path, flags))
        return opened[0]

    with replaced(open=hang):
        task = asyncio.create_task(FileBackend.open(engine, str(image), writable=False))
        await eventually_async(hangs.is_set)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        ends.set()
        await eventually_async(lambda: opened and len(os.listdir("/proc/self/fd")) == fds)
        await engine.submit(lib.IOU_STAT, handle)
