# SPDX-License-Identifier: Apache-2.0
"""The ways that tests of HTTP run in are what they say: who serves is seen in the daemon."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.images import Image, MiB, make_image
from tests.support.polling import eventually
from tests.support.ways import C_LANE, WAYS

#: What C serves: of each connection of a test, the first request, too.
PLAIN: tuple[tuple[str, str, dict[str, str], bytes | None, int], ...] = (
    ("GET", "", {"Range": "bytes=0-9"}, None, 206),
    ("PUT", "", {}, b"hello", 200),
    ("PUT", "?flush=n", {"Content-Range": "bytes 5-9/*"}, b"hello", 200),
    ("PATCH", "", {}, b'{"op": "zero", "size": 4096}', 200),
    ("PATCH", "", {}, b'{"op": "flush"}', 200),
)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """Each way."""
    name: str = request.param
    return name


@pytest.fixture
def served_by(daemons: Callable[[str], Daemon], way: str) -> Daemon:
    return daemons(way)


def open_image(daemon: Daemon, directory: Path) -> Image:
    image = make_image(daemon, directory)()
    with daemon.connect("unix") as connection:
        assert connection.request("OPTIONS", image.url).status == 200
    return image


def test_c_serves_each_plain_request_and_in_no_other_way(
    served_by: Daemon, way: str, service_name: str, tmp_path: Path
) -> None:
    start = served_by.log.end()
    image = open_image(served_by, tmp_path)
    for method, query, fields, body, status in PLAIN:
        with served_by.connect(service_name) as connection:
            assert connection.request(method, f"{image.url}{query}", fields, body).status == status
    served_by.remove(image.ticket)
    served_by.log.wait_for(r"transfer ended.* requests=6 ", start=start)
    assert served_by.served_by_lane(start=start) == (len(PLAIN) if way == C_LANE else 0)


def test_c_has_the_connection_again_after_what_it_does_not_serve(
    daemons: Callable[[str], Daemon], service_name: str, tmp_path: Path
) -> None:
    daemon = daemons(C_LANE)
    image, start = open_image(daemon, tmp_path), daemon.log.end()
    with daemon.connect(service_name) as connection:
        for _ in range(3):
            assert connection.get(f"{image.url}/extents").status == 200
            assert connection.get(image.url, {"Range": f"bytes=0-{MiB - 1}"}).status == 206
    eventually(lambda: daemon.served_by_lane(start=start) == 3, "C has served the plain ones")
