# SPDX-License-Identifier: Apache-2.0
"""A daemon whose images are on another daemon."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.addresses import link_local
from tests.support.daemon import Certificates, Daemon, MakeDaemon, ticket
from tests.support.http_client import Connection, DisconnectedError
from tests.support.images import Image, KiB, MiB, pattern
from tests.support.places import Place
from tests.support.polling import eventually
from tests.support.ports import unused_port


@pytest.fixture(scope="module")
def storage_daemon(certificates: Certificates) -> Iterator[Daemon]:
    """The daemon that has the images."""
    with Daemon(certificates) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def proxy(certificates: Certificates) -> Iterator[Daemon]:
    """The daemon that clients reach."""
    with Daemon(certificates, {"backend_http": {"ca_file": certificates.cafile}}) as daemon:
        yield daemon
        daemon.check_log()


@pytest.fixture
def image(storage_daemon: Daemon, proxy: Daemon, tmp_path: Path) -> Image:
    return make_image(storage_daemon, proxy, tmp_path / "image", pattern(MiB))


@pytest.fixture
def client(proxy: Daemon) -> Iterator[Connection]:
    with proxy.connect("tls") as connection:
        yield connection


def make_image(storage_daemon: Daemon, proxy: Daemon, path: Path, content: bytes, **fields: object) -> Image:
    """Make an image on the one daemon with a ticket on each."""
    path.write_bytes(content)
    behind = storage_daemon.add_ticket(path, len(content), **fields)
    proxy.hide(behind)
    return Image(
        Place(path), proxy.put_ticket({**ticket("", len(content), **fields), "url": storage_daemon.url(behind)})
    )


def test_download(client: Connection, image: Image) -> None:
    assert client.get(image.url).body == image.content()
    answer = client.get(image.url, {"Range": "bytes=1000-700000"})
    assert answer.headers["Content-Range"] == f"bytes 1000-700000/{MiB}"
    assert answer.body == image.content()[1000:700001]


@pytest.mark.skipif(link_local() is None, reason="this host has no link-local address")
def test_server_is_reached_by_an_address_with_a_zone(
    certificates: Certificates, make_daemon: MakeDaemon, proxy: Daemon, client: Connection, tmp_path: Path
) -> None:
    host = str(link_local())
    storage_daemon = make_daemon(tls=certificates.issue(tmp_path, host.partition("%")[0]))
    path = tmp_path / "image"
    path.write_bytes(pattern(MiB))
    behind = storage_daemon.add_ticket(path, MiB)
    proxy.hide(behind)
    url = storage_daemon.url(behind, host=f"[{host.replace('%', '%25')}]")
    assert client.get(f"/images/{proxy.put_ticket({**ticket('', MiB), 'url': url})}").body == pattern(MiB)


def test_upload(client: Connection, image: Image) -> None:
    content = pattern(MiB, seed=1)
    assert client.put(image.url, content).status == 200
    assert image.content() == content


def test_upload_of_more_than_the_buffers_hold(
    client: Connection, storage_daemon: Daemon, proxy: Daemon, tmp_path: Path
) -> None:
    content = pattern(20 * MiB)
    image = make_image(storage_daemon, proxy, tmp_path / "large", bytes(len(content)))
    assert client.put(image.url, content).status == 200
    assert image.content() == content
    assert client.get(image.url).body == content


def test_any_offset_and_length(client: Connection, image: Image) -> None:
    expected = bytearray(image.content())
    for offset, length in [(0, 1), (1, 511), (4095, 2), (100 * KiB + 7, 300 * KiB), (MiB - 1, 1)]:
        data = pattern(length, seed=offset)
        assert client.put_at(image.url + "?flush=n", offset, data).status == 200
        expected[offset : offset + length] = data
    assert client.patch(image.url, {"op": "flush"}).status == 200
    assert image.content() == expected
    assert client.get(image.url).body == expected


def test_zero(client: Connection, image: Image) -> None:
    expected = bytearray(image.content())
    expected[10:200010] = bytes(200000)
    assert client.patch(image.url, {"op": "zero", "offset": 10, "size": 200000, "flush": True}).status == 200
    assert image.content() == expected


def test_extents(client: Connection, storage_daemon: Daemon, proxy: Daemon, tmp_path: Path) -> None:
    image = make_image(storage_daemon, proxy, tmp_path / "sparse", b"")
    with image.path.open("r+b") as file:
        file.truncate(3 * MiB)
        file.seek(MiB)
        file.write(pattern(MiB))
    behind = storage_daemon.add_ticket(image.path, 3 * MiB)
    proxied = proxy.put_ticket({**ticket("", 3 * MiB), "url": storage_daemon.url(behind)})
    with storage_daemon.connect("tls") as direct:
        expected = direct.get(f"/images/{behind}/extents").json()
    assert len(expected) == 3
    assert client.get(f"/images/{proxied}/extents").json() == expected


def test_list_of_digests_is_not_passed_on(client: Connection, image: Image) -> None:
    assert not {"checksum_blocks", "nbd", "qcow2"} & set(client.request("OPTIONS", image.url).json()["features"])
    answer = client.get(f"{image.url}/checksum?blocks=1048576")
    assert (answer.status, b"are not passed on" in answer.body) == (400, True)


def test_a_qcow2_file_is_not_passed_on(client: Connection, image: Image) -> None:
    answer = client.get(f"{image.url}?format=qcow2")
    assert (answer.status, b"not sent as a qcow2 file" in answer.body) == (400, True)
    assert client.get(f"{image.url}?format=raw").body == image.content()


def test_checksum(client: Connection, image: Image, storage_daemon: Daemon) -> None:
    with storage_daemon.connect("tls") as direct:
        behind = storage_daemon.add_ticket(image.path, MiB)
        expected = direct.get(f"/images/{behind}/checksum").json()
    assert client.get(f"{image.url}/checksum").json() == expected


def test_options(client: Connection, image: Image) -> None:
    answer = client.request("OPTIONS", image.url)
    assert answer.headers["Allow"] == "OPTIONS,GET,PUT,PATCH"
    assert answer.json()["max_writers"] == 8


def test_a_small_ticket_in_front_of_a_large_one(
    client: Connection, storage_daemon: Daemon, proxy: Daemon, tmp_path: Path
) -> None:
    path = tmp_path / "image"
    path.write_bytes(pattern(MiB))
    behind = storage_daemon.add_ticket(path, MiB)
    proxied = proxy.put_ticket({**ticket("", 4096), "url": storage_daemon.url(behind)})
    assert client.get(f"/images/{proxied}").body == pattern(MiB)[:4096]
    assert client.put_at(f"/images/{proxied}", 4096, b"x").status == 416


def test_a_large_ticket_in_front_of_a_small_one(
    client: Connection, storage_daemon: Daemon, proxy: Daemon, tmp_path: Path
) -> None:
    path = tmp_path / "image"
    path.write_bytes(pattern(8192))
    behind = storage_daemon.add_ticket(path, 8192)
    proxied = proxy.put_ticket({**ticket("", MiB), "url": storage_daemon.url(behind)})
    assert client.get(f"/images/{proxied}").body == pattern(8192)
    assert client.put_at(f"/images/{proxied}", 8192, b"x").status == 416


def test_a_ticket_that_the_other_server_does_not_know_is_refused(
    client: Connection, proxy: Daemon, storage_daemon: Daemon
) -> None:
    proxy.hide("unknown-to-the-other")
    proxied = proxy.put_ticket({**ticket("", MiB), "url": storage_daemon.url("unknown-to-the-other")})
    assert client.get(f"/images/{proxied}").status == 403


def test_removing_the_ticket_closes_the_connections(
    client: Connection, image: Image, proxy: Daemon, storage_daemon: Daemon
) -> None:
    assert client.get(image.url).status == 200

    def connections() -> int:
        tickets = storage_daemon.control("GET", "/tickets/").json()
        return sum(each["connections"] for each in tickets if each["url"] == f"file://{image.path}")

    assert connections() > 0
    proxy.remove(image.ticket)
    eventually(lambda: connections() == 0, "the other server's connections are closed")


def test_the_other_server_is_killed_in_mid_upload(make_daemon: MakeDaemon, proxy: Daemon, tmp_path: Path) -> None:
    storage_daemon = make_daemon()
    image = make_image(storage_daemon, proxy, tmp_path / "image", bytes(64 * MiB))
    body = pattern(16 * MiB)
    with proxy.connect("tls") as client:
        head = f"PUT {image.url} HTTP/1.1\r\nHost: x\r\nContent-Length: {64 * MiB}\r\n\r\n"
        client.send(head.encode() + body)
        eventually(lambda: any(image.read(0, 4 * KiB)), "the other server has written")
        storage_daemon.kill()
        client.send_while_accepted(body * 3)
        assert client.receive(to="PUT").status == 502
    with proxy.connect("tls") as client:
        assert client.get(image.url).status == 502
    assert proxy.running


@pytest.fixture
def other(make_daemon: MakeDaemon) -> Daemon:
    """A daemon that can be restarted."""
    return make_daemon(remote={"port": unused_port()})


def restart(daemon: Daemon, image: Image) -> None:
    """End the daemon that has an image, and start it again with the same ticket."""
    (ticket_id,) = (status["uuid"] for status in daemon.control("GET", "/tickets/").json())
    daemon.kill()
    daemon.restart()
    daemon.put_ticket({**ticket(image.path, image.path.stat().st_size), "uuid": ticket_id})


def test_client_sees_the_restart_of_the_other_server(other: Daemon, proxy: Daemon, tmp_path: Path) -> None:
    image = make_image(other, proxy, tmp_path / "image", bytes(MiB))
    with proxy.connect("tls") as writer, proxy.connect("tls") as main:
        before = main.request("OPTIONS", image.url).json()["instance"]
        assert writer.put_at(f"{image.url}?flush=n", 0, b"lost").status == 200
        restart(other, image)
        for client in (writer, main):
            with pytest.raises(DisconnectedError):
                client.patch(image.url, {"op": "flush"})
    with proxy.connect("tls") as again:
        assert again.request("OPTIONS", image.url).json()["instance"] != before


def test_client_that_uses_another_ticket_between_sees_the_restart_of_the_other_server(
    other: Daemon, proxy: Daemon, tmp_path: Path
) -> None:
    image, local = make_image(other, proxy, tmp_path / "image", bytes(MiB)), tmp_path / "local"
    local.write_bytes(bytes(MiB))
    url = f"/images/{proxy.add_ticket(local, MiB)}"
    with proxy.connect("tls") as client:
        assert client.put_at(f"{image.url}?flush=n", 0, b"lost").status == 200
        assert client.get(url).status == 200
        restart(other, image)
        assert client.get(url).status == 200
        with pytest.raises(DisconnectedError):
            client.patch(image.url, {"op": "flush"})


def test_an_upload_goes_on_after_a_restart_of_the_other_server(other: Daemon, proxy: Daemon, tmp_path: Path) -> None:
    image = make_image(other, proxy, tmp_path / "image", bytes(MiB))
    with proxy.connect("tls") as client:
        assert client.put_at(image.url, 0, b"kept").status == 200
    restart(other, image)
    with proxy.connect("tls") as client:
        assert client.put_at(f"{image.url}?flush=n", 4096, b"written").status == 200
        assert client.patch(image.url, {"op": "flush"}).status == 200
