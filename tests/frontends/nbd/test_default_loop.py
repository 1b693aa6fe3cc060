# SPDX-License-Identifier: Apache-2.0
"""The service on the standard library's event loop, whose transports differ from those of uvloop."""

import asyncio
import os

import pytest

from imageio_daemon.nbdproto.constants import Command
from tests.frontends.nbd.world import MiB, World


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """Run on the default loop."""
    return asyncio.DefaultEventLoopPolicy()


@pytest.mark.parametrize("extended", [False, True])
async def test_image_moves_on_the_default_loop(extended: bool) -> None:
    async with World().running() as world:
        assert type(asyncio.get_running_loop()).__module__.startswith("asyncio")
        client = await world.go(extended=extended)
        data = os.urandom(MiB)
        for i in range(4):
            client.send(Command.WRITE, i * MiB, data=data)
        assert not any(result.error for result in (await client.receive_all()).values())
        for i in range(32):
            client.send(Command.READ, i % 4 * MiB, MiB)
        results = await client.receive_all()
        assert len(results) == 32
        assert all(result.data == data for result in results.values())
        client.send(Command.DISC)
        assert await client.at_end()
