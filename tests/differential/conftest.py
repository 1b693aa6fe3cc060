# SPDX-License-Identifier: Apache-2.0
"""The servers that are compared."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.differential.scene import Scene, Server, start
from tests.support.daemon import DECIDED_PROGRAM, Certificates, Daemon
from tests.support.places import Place

MakeScene = Callable[..., Scene]

#: A built work tree of an earlier version, with which this one is compared.
BEFORE = os.environ.get("IMAGEIO_TEST_BEFORE")


@pytest.fixture(scope="package")
def lane(certificates: Certificates) -> Iterator[Server]:
    """Start a daemon of this tree with its defaults."""
    with start(certificates) as daemon:
        yield Server("lane", daemon, has_lane=True)


@pytest.fixture(scope="package")
def decided(certificates: Certificates) -> Iterator[Server]:
    """Start a daemon of this tree in which Python decides all requests."""
    with start(certificates, program=DECIDED_PROGRAM) as daemon:
        yield Server("decided", daemon, has_lane=False)


@contextmanager
def started_before(certificates: Certificates, name: str) -> Iterator[Server]:
    """Start the earlier version."""
    if BEFORE is None:
        pytest.skip("IMAGEIO_TEST_BEFORE names no built work tree of an earlier version")
    with start(certificates, Path(BEFORE).resolve()) as daemon:
        yield Server(name, daemon, has_lane=True)


@pytest.fixture(scope="package")
def before(certificates: Certificates) -> Iterator[Server]:
    """Start the earlier version, or skip the test."""
    with started_before(certificates, "before") as server:
        yield server


@pytest.fixture(scope="package")
def before_again(certificates: Certificates) -> Iterator[Server]:
    """Start the earlier version a second time: behaviour that is the same twice is not chance."""
    with started_before(certificates, "before, again") as server:
        yield server


@pytest.fixture
def make_scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeScene]:
    """Return a function that makes the same images on servers: make_scene(servers, kind)."""
    made = []

    def make(servers: Sequence[Server], kind: type[Place] = Place) -> Scene:
        def other() -> Daemon:
            daemon: Daemon = request.getfixturevalue("other_daemon")
            return daemon

        scene = Scene(servers, tmp_path, kind, other)
        made.append(scene)
        scene.renew()
        return scene

    yield make
    for scene in made:
        scene.close()
    for server in {id(server): server for scene in made for server in scene.servers}.values():
        server.daemon.check_log()
