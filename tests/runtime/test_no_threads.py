# SPDX-License-Identifier: Apache-2.0
"""Blocking functions where the host allows no more threads, or none for a while."""

import asyncio
import threading

import pytest

from imageio_daemon.errors import Unavailable
from imageio_daemon.operations.hashing import SMALL, Hashing
from imageio_daemon.runtime import background
from imageio_daemon.runtime.background import in_thread, start_thread, surely


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_caller_learns_from_the_future_that_there_is_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert isinstance(start_thread(lambda: 1).exception(), Unavailable)


def test_lack_of_threads_is_logged_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "_told", -background.TELL_INTERVAL)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    for _ in range(3):
        start_thread(lambda: 1)
    assert [record.getMessage() for record in caplog.records] == [
        "requests are refused, because the host allows no more: can't start new thread"
    ]


async def test_function_is_not_called_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(Unavailable, match="no thread"):
        await in_thread(lambda: called.append(1))
    assert not called


async def test_what_has_to_end_waits_for_a_thread() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        ended = asyncio.create_task(surely(lambda: in_thread(lambda: 1)))
        await asyncio.wait([ended], timeout=0.01)
        assert not ended.done()
    assert await asyncio.wait_for(ended, 10) == 1


async def test_what_could_not_be_hashed_is_not_hashed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    hashing = Hashing(1)
    called: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Unavailable):
            await hashing.run(lambda: called.append("refused"), SMALL + 1)
    await hashing.run(lambda: called.append("later"), SMALL + 1)
    hashing.stop()
    assert called == ["later"]


async def test_hashing_ends_where_it_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    hashing = Hashing(2)
    entered, leave, begun, end = (threading.Event() for _ in range(4))

    def first() -> None:
        entered.set()
        assert leave.wait(10)

    def second() -> None:
        begun.set()
        assert end.wait(10)

    def refuse_late(_: threading.Thread) -> None:
        leave.set()
        assert begun.wait(10)
        raise RuntimeError("can't start new thread")

    before = asyncio.create_task(hashing.run(first, SMALL + 1))
    await asyncio.wait_for(asyncio.to_thread(entered.wait), 10)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_late)
        running = asyncio.create_task(hashing.run(second, SMALL + 1))
        await asyncio.wait([running], timeout=0.01)
    assert not running.done()
    end.set()
    await asyncio.gather(before, running)
    hashing.stop()


async def test_hashing_is_unavailable_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    hashing = Hashing(1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Unavailable):
            await hashing.run(lambda: None, SMALL + 1)
    hashing.stop()
