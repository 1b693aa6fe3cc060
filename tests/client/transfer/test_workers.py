# SPDX-License-Identifier: Apache-2.0
"""Threads that end together."""

import asyncio
import threading
import traceback

import pytest

from imageio_daemon.client.errors import LocalError, Stopped
from imageio_daemon.client.server.stopping import Stop
from imageio_daemon.client.transfer import workers


def test_error_of_one_ends_all() -> None:
    stop = Stop()
    together = threading.Barrier(2)

    def wait() -> None:
        together.wait()
        stop.sleep(1000)

    def fail() -> None:
        together.wait()
        raise LocalError("broken")

    with pytest.raises(LocalError, match="broken"):
        asyncio.run(workers.run([wait, fail], stop))


async def test_cancellation_waits_for_the_threads() -> None:
    stop = Stop()
    started, ended = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        try:
            stop.sleep(1000)
        finally:
            ended.set()

    task = asyncio.create_task(workers.run([wait], stop))
    await asyncio.to_thread(started.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


def test_error_keeps_no_buffer_alive() -> None:
    def fail() -> None:
        buffer = memoryview(bytearray(1))
        try:
            buffer[1] = 0
        except IndexError as e:
            raise LocalError("broken") from e

    with pytest.raises(LocalError) as caught:
        asyncio.run(workers.run([fail], Stop()))
    assert caught.value.__cause__ is not None
    for error in (caught.value, caught.value.__cause__):
        for frame, _ in traceback.walk_tb(error.__traceback__):
            assert not any(isinstance(value, memoryview) for value in frame.f_locals.values())


def test_what_stopped_before_it_started_does_not_start() -> None:
    stop = Stop()
    stop.stop()
    with pytest.raises(Stopped):
        asyncio.run(workers.run([stop.check], stop))
