# SPDX-License-Identifier: Apache-2.0
"""What storage still does for a client that is gone is done before what comes later: it never undoes that."""

import time
from pathlib import Path

import pytest

from tests.functional.test_lanes import LANES
from tests.support.daemon import Daemon, MakeDaemon, ticket
from tests.support.heldcalls import build_library, held_call
from tests.support.http_client import Connection, encode_request
from tests.support.images import Image, MiB, make_image, pattern
from tests.support.places import Place
from tests.support.polling import eventually

TiB = MiB * MiB

#: Requests of a client that vanishes: of whole blocks, so that nothing is read before. A socket holds the write.
OLD = {
    "write": ("PUT", pattern(MiB // 8, seed=1)),
    "zero": ("PATCH", b'{"op": "zero", "size": %d}' % MiB),
}
NEW = pattern(MiB, seed=2)
#: What aiohttp's way writes at once.
PIECE = 64 * 1024


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("library"))


@pytest.fixture
def preloaded(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let daemons that are started do their calls as the test wants."""
    monkeypatch.setenv("LD_PRELOAD", str(library))


def connected(daemon: Daemon, service: str, image: Image) -> Connection:
    """Connect; C takes over where it does."""
    connection = daemon.connect(service)
    for _ in range(2):
        assert connection.get(image.url, {"Range": "bytes=0-0"}).status == 206
    return connection


@pytest.mark.usefixtures("preloaded")
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("old", OLD)
def test_a_newer_write_waits_for_what_a_client_that_is_gone_has_left(
    make_daemon: MakeDaemon, tmp_path: Path, service_name: str, lane: str, old: str
) -> None:
    daemon, (method, body) = make_daemon(program=LANES[lane]), OLD[old]
    image = make_image(daemon, tmp_path)()
    with connected(daemon, service_name, image) as gone, connected(daemon, service_name, image) as connection:
        with held_call(image.path) as call:
            gone.send(encode_request(method, image.url, None, body))
            call.arrived()
            gone.reset()
            connection.send(encode_request("PUT", image.url, None, NEW))
            assert connection.is_silent(timeout=1), "what came later was answered before"
            assert daemon.status(image.ticket)["active"]
            call.release()
            assert connection.receive().status == 200
        assert connection.get(image.url).body == NEW
    eventually(lambda: not daemon.status(image.ticket)["active"], "nothing runs any more")
    assert image.content() == NEW


@pytest.mark.usefixtures("preloaded")
@pytest.mark.parametrize("lane", LANES)
def test_one_of_another_ticket_waits_too(make_daemon: MakeDaemon, tmp_path: Path, lane: str) -> None:
    daemon = make_daemon(program=LANES[lane])
    image = make_image(daemon, tmp_path)()
    link = tmp_path / "link"
    link.symlink_to(image.path)
    other = Image(Place(link), daemon.put_ticket(ticket(link, MiB)))
    with (
        connected(daemon, "unix", image) as gone,
        connected(daemon, "unix", other) as connection,
        held_call(image.path) as call,
    ):
        gone.send(encode_request("PUT", image.url, None, OLD["write"][1]))
        call.arrived()
        gone.reset()
        connection.send(encode_request("PUT", other.url, None, NEW))
        assert connection.is_silent(timeout=1)
        call.release()
        assert connection.receive().status == 200
    assert image.content() == NEW


@pytest.mark.usefixtures("preloaded")
@pytest.mark.parametrize("lane", LANES)
def test_the_rest_of_a_long_write_is_not_done_for_a_client_that_is_gone(
    make_daemon: MakeDaemon, tmp_path: Path, service_name: str, lane: str
) -> None:
    daemon = make_daemon(program=LANES[lane])
    image = make_image(daemon, tmp_path)()
    with (
        connected(daemon, service_name, image) as gone,
        connected(daemon, service_name, image) as connection,
        held_call(image.path) as call,
    ):
        gone.send_while_accepted(encode_request("PUT", image.url, None, pattern(MiB, seed=1)))
        call.arrived()
        gone.reset()
        fields = {"Content-Range": f"bytes {2 * PIECE}-*/*"}
        connection.send(encode_request("PUT", image.url, fields, NEW[:PIECE]))
        connection.is_silent(timeout=1)  # aiohttp answers, C has all of the old one's first piece in storage
        call.release()
        assert connection.receive().status == 200
    eventually(lambda: not daemon.status(image.ticket)["active"], "nothing runs any more")
    assert image.read(2 * PIECE, PIECE) == NEW[:PIECE]


@pytest.mark.parametrize("lane", LANES)
def test_a_short_write_does_not_wait_for_eight_long_zeros(
    library: Path, make_daemon: MakeDaemon, tmp_path: Path, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one file system, of which a quarter of the threads is eight."""
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("IMAGEIO_TEST_ZERO_RATE", "500")
    daemon = make_daemon(program=LANES[lane], backend_file={"io_threads": 32})
    images = make_image(daemon, tmp_path)
    zeroed = [images(size=TiB, sparse=True) for _ in range(8)]
    connections = [connected(daemon, "unix", image) for image in zeroed]
    try:
        for connection, image in zip(connections, zeroed, strict=True):
            connection.send(encode_request("PATCH", image.url, None, b'{"op": "zero", "size": %d}' % TiB))
        for image in zeroed:
            eventually(lambda image=image: daemon.status(image.ticket)["active"], "it zeroes")  # type: ignore[misc]
        waits = []
        for _ in range(3):
            image = images()
            with daemon.connect("unix") as connection:
                began = time.monotonic()
                assert connection.put(image.url, pattern(4096)).status == 200
                waits.append(time.monotonic() - began)
        assert max(waits) <= 1
        assert all(daemon.status(image.ticket)["active"] for image in zeroed)
        for image in zeroed:
            daemon.remove(image.ticket)
    finally:
        for connection in connections:
            connection.close()
