# SPDX-License-Identifier: Apache-2.0
"""The limit on transfers at work: others are told to come again, and work when one has ended."""

from pathlib import Path

import pytest

from tests.support.daemon import DECIDED_PROGRAM, PROGRAM, Daemon, MakeDaemon
from tests.support.http_client import Connection
from tests.support.images import Image, MakeImage, make_image
from tests.support.polling import eventually

RANGE = {"Range": "bytes=0-9"}


@pytest.fixture(params=[PROGRAM, DECIDED_PROGRAM])
def own(request: pytest.FixtureRequest, make_daemon: MakeDaemon) -> Daemon:
    return make_daemon(limits={"transfers": 2}, program=request.param)


@pytest.fixture
def new(own: Daemon, tmp_path: Path) -> MakeImage:
    return make_image(own, tmp_path)


def connections(own: Daemon, images: list[Image]) -> list[Connection]:
    """Return connections that have used these images."""
    made = [own.connect("unix") for _ in images]
    for connection, image in zip(made, images, strict=True):
        assert connection.get(image.url, RANGE).status == 206
    return made


def test_transfer_beyond_the_limit_is_told_when_to_come_again(own: Daemon, new: MakeImage) -> None:
    working = connections(own, [new(), new()])
    third = new()
    with own.connect("unix") as connection:
        answer = connection.get(third.url, RANGE)
        assert (answer.status, answer.code, answer.headers["Retry-After"]) == (503, "too_many_transfers", "10")
    for one in working:
        one.close()


def test_those_at_work_may_open_more_connections(own: Daemon, new: MakeImage) -> None:
    images = [new(), new()]
    for connection in [*connections(own, images), *connections(own, images)]:
        connection.close()


def test_removal_makes_room_at_once(own: Daemon, new: MakeImage) -> None:
    images = [new(), new()]
    for connection in connections(own, images):
        connection.close()
    own.remove(images[0].ticket)
    third = new()

    def served() -> bool:
        with own.connect("unix") as connection:
            return connection.get(third.url, RANGE).status == 206

    eventually(served, "the third works", timeout=20)


def test_without_a_limit_all_work(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    own = make_daemon()
    make = make_image(own, tmp_path)
    for connection in connections(own, [make() for _ in range(8)]):
        connection.close()


def test_unknown_ticket_is_refused_whatever_works(own: Daemon, new: MakeImage) -> None:
    working = connections(own, [new(), new()])
    with own.connect("unix") as connection:
        assert connection.get("/images/unknown", RANGE).status == 403
    for one in working:
        one.close()
