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


async def test_hashing_is_unavailable_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    hashing = Hashing(1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Unavailable):
            await hashing.run(lambda: None, SMALL + 1)
    hashing.stop()
