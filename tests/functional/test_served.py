# SPDX-License-Identifier: Apache-2.0
"""The control service tells how much was served, and by whom."""

import ssl
from pathlib import Path

import pytest

from tests.frontends.nbd.client import Client
from tests.support.daemon import Daemon, MakeDaemon
from tests.support.http_client import Connection
from tests.support.images import Image, MiB, make_image, pattern
from tests.support.polling import eventually

SERVICES = {"tls": "remote", "unix": "local"}


@pytest.fixture
def own(make_daemon: MakeDaemon) -> Daemon:
    return make_daemon()


@pytest.fixture
def image(own: Daemon, tmp_path: Path) -> Image:
    return make_image(own, tmp_path)(pattern(8 * MiB))


def hand_over(connection: Connection, image: Image) -> None:
    """Have Python serve what it does before C has the connection."""
    for _ in range(2):
        assert connection.get(image.url, {"Range": "bytes=0-9"}).status == 206


def test_requests_and_bytes_of_a_lane_are_told_while_it_has_the_connection(
    own: Daemon, image: Image, service_name: str
) -> None:
    service = SERVICES[service_name]
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        before, python = own.served(service, "lane"), own.served(service, "python")
        assert connection.put(image.url, pattern(MiB)).status == 200
        assert connection.get(image.url, {"Range": f"bytes=0-{2 * MiB - 1}"}).status == 206
        counts = own.served(service, "lane")
        assert counts["requests"] == before["requests"] + 2
        assert MiB < counts["received"] - before["received"] < MiB + 2000
        assert 2 * MiB < counts["sent"] - before["sent"] < 2 * MiB + 2000
        assert own.served(service, "python") == python


def test_counts_of_a_lane_stay_when_it_has_ended(own: Daemon, image: Image, service_name: str) -> None:
    service = SERVICES[service_name]
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        for _ in range(3):
            assert connection.put(image.url, pattern(4096)).status == 200
        before = own.served(service, "lane")
        assert connection.request("OPTIONS", image.url).status == 200  # gives the connection back
        after = own.served(service, "lane")
        assert after["requests"] == before["requests"]
        assert after["sent"] >= before["sent"]  # the last answer may have come before it was counted
    assert own.served(service, "lane") == after
    assert before["requests"] >= 3


def test_what_c_does_not_serve_counts_as_pythons(own: Daemon, image: Image, service_name: str) -> None:
    service = SERVICES[service_name]
    with own.connect(service_name) as connection:
        for _ in range(3):
            assert connection.request("OPTIONS", image.url).status == 200
        counts = own.served(service, "python")
        assert counts["requests"] == 3
        assert counts["received"] > 100
        assert counts["sent"] > 300
    assert own.served(service, "lane")["requests"] == 0
    assert own.served(service, "python") == counts


def test_services_are_counted_apart(own: Daemon, image: Image) -> None:
    with own.connect("unix") as connection:
        hand_over(connection, image)
        assert connection.put(image.url, pattern(4096)).status == 200
    for by in ("lane", "python"):
        assert own.served("remote", by)["requests"] == 0
    assert own.served("local", "lane")["requests"] > 0
    assert own.served("control", "python")["requests"] > 2
    assert own.served("control", "lane")["requests"] == 0


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_requests_of_nbd_are_counted(make_daemon: MakeDaemon, tmp_path: Path, tls: bool) -> None:
    daemon = make_daemon(nbd={"enable": True, "port": 0, "host": "127.0.0.1", "tls": "optional"})
    path = tmp_path / "image"
    path.write_bytes(pattern(MiB))
    ticket = daemon.add_ticket(path, MiB)
    match = daemon.log.find(r"service=nbd address=.*port=(\d+)")
    assert match is not None
    client = await Client.connect(("localhost", int(match[1])))
    if tls:
        await client.start_tls(ssl.create_default_context(cafile=str(daemon.cafile)))
    await client.go(ticket)
    for _ in range(5):
        assert (await client.request(0, 0, 65536)).data == pattern(MiB)[:65536]
    assert daemon.served("nbd", "lane")["requests"] == 5
    # What is sent is counted when it is with the client already.
    eventually(lambda: daemon.served("nbd", "lane")["sent"] > 5 * 65536, "the last answer is counted")
    assert daemon.served("nbd", "lane")["sent"] < 5 * 65536 + 1000
    await client.close()
    daemon.log.wait_for("connection ended")
    assert daemon.served("nbd", "lane")["requests"] == 5
    assert daemon.served("nbd", "python")["requests"] == 0
