# SPDX-License-Identifier: Apache-2.0
import asyncio
from collections.abc import AsyncIterator

import pytest
import uvloop

from tests.nbd.client import Client
from tests.nbd.world import World


def pytest_configure(config: pytest.Config) -> None:
    # Its successor, a hook, would hold for all tests.
    config.addinivalue_line(
        "filterwarnings", "ignore:Overriding the .event_loop_policy:pytest.PytestDeprecationWarning"
    )


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """Run on the loop of the daemon: transports of the standard library differ."""
    policy: asyncio.AbstractEventLoopPolicy = uvloop.EventLoopPolicy()
    return policy


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World().running() as running:
        yield running


FORMS = {
    "simple": {"structured": False},
    "structured": {"structured": True},
    "extended": {"extended": True},
}


@pytest.fixture(params=FORMS)
async def client(request: pytest.FixtureRequest, world: World) -> Client:
    """A client in the transmission, with each form of replies."""
    return await world.go(**FORMS[request.param])


@pytest.fixture(params=["structured", "extended"])
async def chunked(request: pytest.FixtureRequest, world: World) -> Client:
    """A client that gets chunks."""
    return await world.go(**FORMS[request.param])
