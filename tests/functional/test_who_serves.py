# SPDX-License-Identifier: Apache-2.0
"""C serves each plain request, and none of Python's: the daemon counts who serves."""

from pathlib import Path

from tests.support.daemon import Daemon
from tests.support.http_client import encode_request
from tests.support.images import Image, MiB, make_image, pattern

#: What C serves: of each connection of a test, the first request, too.
PLAIN: tuple[tuple[str, str, dict[str, str], bytes | None, int], ...] = (
    ("GET", "", {}, None, 200),
    ("GET", "", {"Range": "bytes=0-9"}, None, 206),
    ("GET", "", {"Range": "bytes=1000-"}, None, 206),
    ("GET", "", {"Origin": "https://ui"}, None, 200),
    ("GET", "", {"Range": "bytes=0-9", "Origin": "https://ui", "Connection": "Keep-Alive"}, None, 206),
    ("PUT", "", {}, b"hello", 200),
    ("PUT", "", {"Origin": "https://ui"}, b"hello", 200),
    ("PUT", "?flush=n", {"Content-Range": "bytes 5-9/*"}, b"hello", 200),
    ("PATCH", "", {}, b'{"op": "zero", "size": 4096}', 200),
    ("PATCH", "", {}, b'{"op": "flush"}', 200),
)


def open_image(daemon: Daemon, directory: Path) -> Image:
    image = make_image(daemon, directory)()
    with daemon.connect("unix") as connection:
        assert connection.request("OPTIONS", image.url).status == 200
    return image


def test_c_serves_each_plain_request(shared_daemon: Daemon, service_name: str, tmp_path: Path) -> None:
    before = shared_daemon.served_by_lane()
    image = open_image(shared_daemon, tmp_path)
    for method, query, fields, body, status in PLAIN:
        with shared_daemon.connect(service_name) as connection:
            assert connection.request(method, f"{image.url}{query}", fields, body).status == status
    assert shared_daemon.served_by_lane() - before == len(PLAIN)


def test_c_serves_an_upload_that_waits_to_be_told(shared_daemon: Daemon, service_name: str, tmp_path: Path) -> None:
    before = shared_daemon.served_by_lane()
    image = open_image(shared_daemon, tmp_path)
    with shared_daemon.connect(service_name) as connection:
        for expected in ("100-continue", "100-Continue"):
            upload = encode_request("PUT", image.url, {"Expect": expected, "Content-Length": str(MiB)})
            connection.send(upload)
            assert connection.receive(to="PUT").status == 100
            connection.send(pattern(MiB, seed=3))
            assert connection.receive(to="PUT").status == 200
    assert image.content() == pattern(MiB, seed=3)
    assert shared_daemon.served_by_lane() - before == 2


def test_an_upload_that_is_refused_is_not_told_to_come(
    shared_daemon: Daemon, service_name: str, tmp_path: Path
) -> None:
    """Where C would serve it, C has looked at it first."""
    image = open_image(shared_daemon, tmp_path)
    with shared_daemon.connect(service_name) as connection:
        assert connection.get(image.url, {"Range": "bytes=0-9"}).status == 206
        fields = {"Expect": "100-continue", "Content-Length": "10", "Content-Range": f"bytes {MiB}-*/*"}
        connection.send(encode_request("PUT", image.url, fields))
        answer = connection.receive(to="PUT")
        assert (answer.status, answer.closes) == (416, True)


def test_c_has_the_connection_again_after_what_it_does_not_serve(
    shared_daemon: Daemon, service_name: str, tmp_path: Path
) -> None:
    daemon = shared_daemon
    image, before = open_image(daemon, tmp_path), daemon.served_by_lane()
    with daemon.connect(service_name) as connection:
        for _ in range(3):
            assert connection.get(f"{image.url}/extents").status == 200
            assert connection.get(image.url, {"Range": f"bytes=0-{MiB - 1}"}).status == 206
    assert daemon.served_by_lane() - before == 3
