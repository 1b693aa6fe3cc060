# SPDX-License-Identifier: Apache-2.0
import asyncio
import os
import ssl
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import uvloop

from imageio_daemon.nbdproto.server_negotiation import Tls
from tests.frontends.nbd.calls import Calls
from tests.frontends.nbd.client import FORMS, Client
from tests.frontends.nbd.world import MiB, World, leaving_nothing
from tests.ioutil.syscall_table import replaced
from tests.support.daemon import Certificates, Daemon, Section
from tests.support.images import pattern
from tests.support.tls import server_context

#: A daemon with the NBD service, and the address of its unix socket.
MakeNbdDaemon = Callable[..., tuple[Daemon, str]]


#: Makes a world, to be entered; takes what World takes.
MakeWorld = Callable[..., AbstractAsyncContextManager[World]]


#: Types of storage that are used through TLS, too, which lies above them.
THROUGH_TLS = ("ext4", "loop4096")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out TLS on storage of every type: lanes do the same there without it."""
    items[:] = [item for item in items if _is_wanted(item)]


def _is_wanted(item: pytest.Item) -> bool:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return params.get("file_world") != "secure" or "storage" not in params or params["storage"].name in THROUGH_TLS


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """Run on the loop of the daemon: transports of the standard library differ."""
    policy: asyncio.AbstractEventLoopPolicy = uvloop.EventLoopPolicy()
    return policy


@pytest.fixture
async def world(remote_world: MakeWorld) -> AsyncIterator[World]:
    """Serve an image of an NBD server, which fails on demand."""
    async with remote_world() as running:
        yield running


@pytest.fixture
def lane_world(tmp_path: Path) -> MakeWorld:
    """Make worlds whose image is a file."""

    @asynccontextmanager
    async def make(**options: Any) -> AsyncIterator[World]:
        async with leaving_nothing(), World(**{"directory": tmp_path, **options}).running() as world:
            yield world

    return make


@pytest.fixture
def quick_directory() -> Iterator[Path]:
    """Return a directory on storage that does not let a lane sleep."""
    if "tmpfs /dev/shm tmpfs" not in Path("/proc/mounts").read_text() or not os.access("/dev/shm", os.W_OK):
        pytest.skip("needs storage that is quick")
    with TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.fixture
def secure_world(lane_world: MakeWorld, certificates: Certificates) -> MakeWorld:
    """Make the same worlds, whose clients start TLS."""
    context = server_context(certificates)
    trust = ssl.create_default_context(cafile=str(certificates.cafile))
    return lambda **options: lane_world(**{"tls": Tls.OPTIONAL, "context": context, "trust": trust, **options})


@pytest.fixture
def remote_world() -> MakeWorld:
    """Make worlds whose image an NBD server has."""

    @asynccontextmanager
    async def make(**options: Any) -> AsyncIterator[World]:
        async with leaving_nothing(), World(**options).running() as world:
            yield world

    return make


@pytest.fixture(params=["lane", "secure"])
def file_world(request: pytest.FixtureRequest, lane_world: MakeWorld, secure_world: MakeWorld) -> MakeWorld:
    """Make worlds whose image is a file, and the same with TLS."""
    return {"lane": lane_world, "secure": secure_world}[request.param]


@pytest.fixture(params=["lane", "secure", "remote"])
def make_world(
    request: pytest.FixtureRequest, lane_world: MakeWorld, secure_world: MakeWorld, remote_world: MakeWorld
) -> MakeWorld:
    """Make worlds whose image is a file, the same with TLS, and worlds whose image an NBD server has."""
    return {"lane": lane_world, "secure": secure_world, "remote": remote_world}[request.param]


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
    """Start a daemon of the test's own with an NBD service: with these options of it, and other sections."""
    with ExitStack() as cleanup:

        def make(sections: dict[str, Section] | None = None, **options: object) -> tuple[Daemon, str]:
            address = f"/tmp/nbd-{uuid.uuid4().hex[:8]}"
            cleanup.callback(Path(address).unlink, missing_ok=True)
            nbd = {"enable": True, "host": "localhost", "port": 0, "socket": address, **options}
            config: dict[str, Section] = {"nbd": nbd, **(sections or {})}
            return cleanup.enter_context(Daemon(certificates, config)), address

        yield make
