# SPDX-License-Identifier: Apache-2.0
"""More connections than C has places for: they take turns, and nobody is served in another way meanwhile."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, MakeDaemon
from tests.support.http_client import Connection, encode_request
from tests.support.images import Image, MakeImage, MiB, make_image, pattern
from tests.support.polling import eventually

FEW_LANES = "tests.support.fewlanes"
RANGE = {"Range": "bytes=0-9"}


@pytest.fixture
def few(make_daemon: MakeDaemon) -> Daemon:
    return make_daemon(program=FEW_LANES, daemon={"inactivity_timeout": 5})


@pytest.fixture
def new(few: Daemon, tmp_path: Path) -> MakeImage:
    return make_image(few, tmp_path)


def opened(daemon: Daemon, new: MakeImage) -> Image:
    image = new(pattern(16 * MiB))
    with daemon.connect("unix") as connection:
        connection.get(image.url, RANGE)
    return image


@pytest.fixture
def image(few: Daemon, new: MakeImage) -> Image:
    """Another one: before the places are held."""
    return opened(few, new)


@pytest.fixture
def held(image: Image, few: Daemon, new: MakeImage) -> Iterator[list[Connection]]:
    """Return connections of several tickets that have all places, in the middle of a request."""
    with ExitStack() as cleanup:
        yield [hold(few, opened(few, new), cleanup.enter_context(few.connect("unix"))) for _ in range(2)]


def hold(daemon: Daemon, image: Image, connection: Connection) -> Connection:
    """Begin a request. Before C has read it, the connection is an idle one, which gives its place away."""
    assert connection.get(image.url, RANGE).status == 206
    head = {"Content-Range": "bytes 0-99/*", "Content-Length": "100"}
    connection.send(encode_request("PUT", image.url, head, b"x"))
    eventually(lambda: daemon.status(image.ticket)["active"], "the request has begun")
    return connection


@pytest.mark.alone
def test_idle_connection_gives_its_place_at_once(few: Daemon, new: MakeImage) -> None:
    images = [opened(few, new) for _ in range(3)]
    with ExitStack() as cleanup:
        connections = [cleanup.enter_context(few.connect("unix")) for _ in images]
        before, began = few.served_by_lane(), time.monotonic()
        for _ in range(2):
            for connection, image in zip(connections, images, strict=True):
                assert connection.get(image.url, RANGE).body == image.read(0, 10)
        assert time.monotonic() - began < 1  # an idle one is given back after a second in any case
        assert few.served_by_lane() == before + 6


def test_connection_waits_for_one_that_is_served(few: Daemon, image: Image, held: list[Connection]) -> None:
    before = few.served_by_lane()
    with few.connect("unix") as connection:
        connection.send(encode_request("GET", image.url, RANGE))
        assert connection.is_silent()
        held[0].send(bytes(99))
        assert held[0].receive(to="PUT").status == 200
        assert connection.receive().body == image.read(0, 10)
        assert few.served_by_lane() == before + 1


def test_connection_that_waits_in_vain_is_told_so(few: Daemon, image: Image, held: list[Connection]) -> None:
    ends = threading.Event()

    def trickle() -> None:
        for _ in range(98):
            for connection in held:
                connection.send(b"x")
            if ends.wait(0.2):
                return

    trickling = threading.Thread(target=trickle)
    trickling.start()
    try:
        with few.connect("unix") as connection:
            answer = connection.put_at(image.url, 0, bytes(4096))
            assert (answer.status, answer.code, answer.closes) == (503, "unavailable", True)
    finally:
        ends.set()
        trickling.join()


def test_connection_that_leaves_while_it_waits_takes_no_place(
    few: Daemon, image: Image, held: list[Connection]
) -> None:
    with few.connect("unix") as gone:
        gone.send(encode_request("GET", image.url, RANGE))
        assert gone.is_silent()
    for connection in held:
        connection.send(bytes(99))
        assert connection.receive(to="PUT").status == 200
    with few.connect("unix") as connection:
        assert connection.get(image.url, RANGE).body == image.read(0, 10)


def test_many_connections_take_turns(few: Daemon, new: MakeImage) -> None:
    images = [opened(few, new) for _ in range(4)]
    failures = []

    def work(image: Image) -> None:
        with few.connect("unix") as connection:
            for at in range(0, 16 * MiB, MiB):
                answer = connection.get(image.url, {"Range": f"bytes={at}-{at + MiB - 1}"})
                if answer.status != 206 or answer.body != image.read(at, MiB):
                    failures.append(at)

    threads = [threading.Thread(target=work, args=(image,)) for image in images for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
