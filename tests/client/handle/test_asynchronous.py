# SPDX-License-Identifier: Apache-2.0
"""Open images for coroutines."""

import asyncio

import pytest

from imageio_daemon.client import ClientError, Refused, Settings, open_async
from imageio_daemon.client.errors import Usage
from tests.client.handle.test_image import LENGTH, SIZE, abilities
from tests.examples.programs import ScriptedServer
from tests.support.daemon import Daemon
from tests.support.images import MakeImage, MiB, pattern
from tests.support.polling import SOON, eventually_async


async def test_calls_run_at_the_same_time(daemon: Daemon, settings: Settings, new_image: MakeImage) -> None:
    target = new_image(b"\xff" * SIZE, sparse=True)
    buffers = [bytearray(MiB) for _ in range(SIZE // MiB)]
    async with await open_async(daemon.url(target.ticket), settings=settings) as image:
        assert (image.size, image.writable, image.connections) == (SIZE, True, 4)
        assert "extents" in image.features
        await asyncio.gather(*(image.write(n * MiB, pattern(MiB, n)) for n in range(1, len(buffers))))
        await image.zero(0, MiB)
        await image.flush()
        await asyncio.gather(*(image.read(n * MiB, buffer) for n, buffer in enumerate(buffers)))
        extents = await image.extents()
    assert buffers[0] == bytes(MiB)
    assert buffers[1:] == [pattern(MiB, n) for n in range(1, len(buffers))]
    assert extents[0].zero
    assert b"".join(buffers) == target.content()


async def test_errors_are_those_of_the_library(daemon: Daemon, tls: Settings, new_image: MakeImage) -> None:
    async with await open_async(daemon.url(new_image().ticket), settings=tls) as image:
        with pytest.raises(Usage):
            await image.read(image.size, bytearray(1))
    with pytest.raises(Refused, match="403"):
        await open_async(daemon.url("no-such-ticket"), settings=tls)


async def test_call_that_is_cancelled_keeps_the_buffer_until_its_request_has_ended() -> None:
    with ScriptedServer(abilities(), LENGTH, None) as server:
        image = await open_async(server.url, settings=Settings(connections=1))
        running, waiting = (asyncio.create_task(image.read(0, bytearray(10))) for _ in range(2))
        await eventually_async(lambda: len(server.requests) == 3)
        for task in (running, waiting):
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        running.cancel()
        await asyncio.sleep(0)
        assert not running.done()
        await image.close()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_close_ends_calls_that_run() -> None:
    with ScriptedServer(abilities(), LENGTH, None) as server:
        image = await open_async(server.url, settings=Settings(connections=1))
        running = asyncio.create_task(image.read(0, bytearray(10)))
        await eventually_async(lambda: len(server.requests) == 3)
        waiting = asyncio.create_task(image.flush())
        await asyncio.sleep(0)
        await image.close()
        for call in (running, waiting, image.flush()):
            with pytest.raises(ClientError):
                await call


async def test_cancelled_open_ends_at_once() -> None:
    with ScriptedServer(None) as server:
        opening = asyncio.create_task(open_async(server.url, settings=Settings(connections=1)))
        await eventually_async(lambda: server.requests)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(opening, SOON)
