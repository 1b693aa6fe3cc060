# SPDX-License-Identifier: Apache-2.0
import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import uvloop

from tests.ioutil.syscall_table import replaced
from tests.nbd.calls import Calls
from tests.nbd.client import Client
from tests.nbd.world import MiB, World, leaving_nothing
from tests.support.daemon import Certificates, Daemon, Section
from tests.support.images import pattern

#: A daemon with the NBD service, and the address of its unix socket.
MakeNbdDaemon = Callable[..., tuple[Daemon, str]]


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """Run on the loop of the daemon: transports of the standard library differ."""
    policy: asyncio.AbstractEventLoopPolicy = uvloop.EventLoopPolicy()
    return policy


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World().running() as running:
        yield running


#: Makes a world, to be entered; takes what World takes.
MakeWorld = Callable[..., AbstractAsyncContextManager[World]]


@pytest.fixture
def lane_world(tmp_path: Path) -> MakeWorld:
    """Make worlds whose image is a file, and whose connections C serves."""

    @asynccontextmanager
    async def make(**options: Any) -> AsyncIterator[World]:
        async with leaving_nothing(), World(**{"lanes": 64 * MiB, "directory": tmp_path, **options}).running() as world:
            yield world

    return make


@pytest.fixture
def quick_directory() -> Iterator[Path]:
    """Return a directory on storage that does not let a lane sleep."""
    if "tmpfs /dev/shm tmpfs" not in Path("/proc/mounts").read_text() or not os.access("/dev/shm", os.W_OK):
        pytest.skip("needs storage that is quick")
    with TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.fixture(params=["session", "lane"])
def make_world(request: pytest.FixtureRequest, lane_world: MakeWorld) -> MakeWorld:
    """Make worlds whose connections Python serves, and such where C does."""
    return lane_world if request.param == "lane" else lambda **options: World(**options).running()


@pytest.fixture
def calls() -> Iterator[Calls]:
    """What system calls of lanes do; before any world, because none may run when they are put back."""
    calls = Calls()
    with replaced(**calls.table()):
        yield calls


#: What the image of `gated` has.
CONTENT = pattern(16 * MiB)


@pytest.fixture
async def gated(calls: Calls, lane_world: MakeWorld) -> AsyncIterator[World]:
    """A world with lanes on storage that the test controls."""
    async with lane_world(size=len(CONTENT)) as running:
        running.put(CONTENT)
        try:
            yield running
        finally:
            calls.mend()


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

        def make(**options: object) -> tuple[Daemon, str]:
            address = f"/tmp/nbd-{uuid.uuid4().hex[:8]}"
            cleanup.callback(Path(address).unlink, missing_ok=True)
            nbd = {"enable": True, "host": "localhost", "port": 0, "socket": address, **options}
            config: dict[str, Section] = {"daemon": {"loops": 2}, "nbd": nbd}
            return cleanup.enter_context(Daemon(certificates, config)), address

        yield make
