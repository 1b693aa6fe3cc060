# SPDX-License-Identifier: Apache-2.0
"""NBD: the same requests get the same answers as from an earlier version, and leave the same images."""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from tests.differential.conftest import BEFORE, MakeScene
from tests.differential.nbd_requests import (
    ABORT,
    FLAGS,
    OPTIONS,
    PLACES,
    cuts,
    endings,
    option,
)
from tests.differential.scene import LARGER, MAIN, READ_ONLY, SMALLER, SPARSE, Scene, Server
from tests.differential.wanted import without_fast_zeros, without_preferred_size
from tests.frontends.nbd.asks import seen, some_apart, some_request
from tests.frontends.nbd.client import FORMS, TIMEOUT, Client
from tests.support.places import KINDS, Place, Trait

if BEFORE is None:
    pytest.skip("IMAGEIO_TEST_BEFORE names no earlier build", allow_module_level=True)

#: Kinds of storage. An image of another server has no export any more (ADR 52), which is wanted.
OTHERS = [kind for kind in KINDS[1:] if Trait.HERE in kind.traits]
TICKETS = {"whole": MAIN, "read-only": READ_ONLY, "sparse": SPARSE, "larger": LARGER, "smaller": SMALLER}


@asynccontextmanager
async def connected(server: Server, way: str, flags: int = 3) -> AsyncIterator[Client]:
    """Connect to the NBD service: on its unix socket, over TLS, or without TLS to the port for TLS."""
    client = await Client.connect(server.nbd_socket if way == "unix" else ("localhost", server.nbd_port), flags)
    try:
        if way == "tls":
            await client.start_tls(ssl.create_default_context(cafile=str(server.daemon.cafile)))
        yield client
    finally:
        await client.close()


async def all_that_comes(client: Client) -> bytes:
    """Return what the server sends until it closes."""
    received = b""
    async with asyncio.timeout(TIMEOUT):
        with suppress(ConnectionError, ssl.SSLError):
            while data := await client.reader.read(65536):
                received += data
    return received


@pytest.fixture(params=["unix", "tls"])
def way(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def scene(make_scene: MakeScene, before: Server, lane: Server) -> Scene:
    """Make the same images on the earlier version and on this one."""
    return make_scene([before, lane])


@pytest.fixture
def scene_of_itself(make_scene: MakeScene, before: Server, before_again: Server) -> Scene:
    """Make the same images on two servers of the earlier version."""
    return make_scene([before, before_again])


@pytest.fixture(params=["before", "now"])
def scenes(request: pytest.FixtureRequest) -> Scene:
    """Compare the earlier version with itself, then with this one."""
    scene: Scene = request.getfixturevalue("scene_of_itself" if request.param == "before" else "scene")
    return scene


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("way", ["unix", "tcp", "tls"])
async def test_options_are_answered_as_before(scenes: Scene, way: str, name: str) -> None:
    for flags in FLAGS if way == "unix" else (3,):
        answers = []
        for server in scenes.servers:
            async with connected(server, way, flags) as client:
                client.writer.write(OPTIONS[name])
                if way == "tls":
                    client.writer.write(option(ABORT) + bytes(64))  # which is no request, either
                else:
                    client.writer.write_eof()
                answers.append(without_preferred_size(await all_that_comes(client)))
        assert answers[1] == answers[0], flags


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ticket", TICKETS)
async def test_each_request_is_answered_as_before(scenes: Scene, way: str, ticket: str, form: str, seed: int) -> None:
    await compare_one_by_one(scenes, way, ticket, form, random.Random(f"{ticket} {form} {seed}"), 80)


@pytest.mark.parametrize("form", ["structured", "extended"])
@pytest.mark.parametrize("ticket", ["whole", "read-only", "larger"])
@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.kind)
async def test_each_request_is_answered_as_before_on_other_storage(
    make_scene: MakeScene, before: Server, lane: Server, kind: type[Place], way: str, ticket: str, form: str
) -> None:
    scene = make_scene([before, lane], kind)
    await compare_one_by_one(scene, way, ticket, form, random.Random(f"{ticket} {form}"), 80)


async def compare_one_by_one(scene: Scene, way: str, ticket: str, form: str, chance: random.Random, count: int) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(server, way)) for server in scene.servers]
        for client in clients:
            await client.go(TICKETS[ticket], **FORMS[form])
        assert clients[1].export == clients[0].export
        for _ in range(count):
            ask = without_fast_zeros(some_request(chance, clients[0].export.size, PLACES), scene.kind.kind)
            answers = []
            for client in clients:
                cookie = ask.send(client)
                answered, result = await client.receive()
                assert answered == cookie
                answers.append(seen(result))
            assert answers[1] == answers[0], ask._replace(data=ask.data[:10])
    check_images(scene)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("form", FORMS)
async def test_many_requests_at_a_time_are_answered_as_before(scenes: Scene, way: str, form: str, seed: int) -> None:
    await compare_at_once(scenes, way, form, random.Random(f"{form} {seed}"))


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.kind)
async def test_many_requests_at_a_time_are_answered_as_before_on_other_storage(
    make_scene: MakeScene, before: Server, lane: Server, kind: type[Place], way: str
) -> None:
    await compare_at_once(make_scene([before, lane], kind), way, "structured", random.Random(0))


async def compare_at_once(scene: Scene, way: str, form: str, chance: random.Random) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(server, way)) for server in scene.servers]
        for client in clients:
            await client.go(MAIN, **FORMS[form])
        for _ in range(4):
            apart = some_apart(chance, clients[0].export.size, PLACES)
            asked = [without_fast_zeros(ask, scene.kind.kind) for ask in apart]
            answers = []
            for client in clients:
                cookies = [ask.send(client) for ask in asked]
                results = await client.receive_all()
                answers.append([seen(results[cookie]) for cookie in cookies])
            assert answers[1] == answers[0]
    check_images(scene)


def raw_cases(form: str, way: str) -> Iterator[tuple[str, bytes]]:
    yield from endings(form)
    if way == "unix":  # TLS has no half-closed connections
        yield from cuts(form)


@pytest.mark.parametrize("form", FORMS)
async def test_connections_end_as_before(scenes: Scene, way: str, form: str) -> None:
    for name, sent in raw_cases(form, way):
        answers = []
        for server in scenes.servers:
            async with connected(server, way) as client:
                await client.go(MAIN, **FORMS[form])
                client.writer.write(sent)
                if way == "unix":
                    client.writer.write_eof()
                answers.append(await all_that_comes(client))
        assert answers[1] == answers[0], name
    check_images(scenes)


def check_images(scene: Scene) -> None:
    assert scene.difference() == ""
    assert scene.status_difference() == ""
