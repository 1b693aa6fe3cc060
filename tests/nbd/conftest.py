# SPDX-License-Identifier: Apache-2.0
import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import uvloop

from tests.nbd.client import Client
from tests.nbd.world import World
from tests.support.daemon import Certificates, Daemon

#: A daemon with the NBD service, and the address of its unix socket.
MakeNbdDaemon = Callable[[], tuple[Daemon, str]]


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


@pytest.fixture
def make_nbd_daemon(certificates: Certificates) -> Iterator[MakeNbdDaemon]:
    """Start a daemon of the test's own with an NBD service."""
    with ExitStack() as cleanup:

        def make() -> tuple[Daemon, str]:
            address = f"/tmp/nbd-{uuid.uuid4().hex[:8]}"
            cleanup.callback(Path(address).unlink, missing_ok=True)
            config = {"nbd": {"enable": True, "host": "localhost", "port": 0, "socket": address}}
            return cleanup.enter_context(Daemon(certificates, config)), address

        yield make
