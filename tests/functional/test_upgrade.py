# SPDX-License-Identifier: Apache-2.0
"""`GET /images/ID` with `Upgrade: nbd`: the connection becomes the ticket's NBD export."""

import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from imageio_daemon.nbdproto.constants import Command, OptionType, Reply
from imageio_daemon.nbdproto.messages import RequestHeader
from imageio_daemon.nbdproto.option_payloads import InfoRequest, OptionHeader, OptionReply
from tests.support.daemon import Daemon, MakeDaemon
from tests.support.http_client import Answer, Connection, DisconnectedError, encode_request
from tests.support.images import Image
from tests.support.metrics import Metrics
from tests.support.nbd_payloads import SimpleReply
from tests.support.places import Trait, needs
from tests.support.polling import eventually

UPGRADE = {"Upgrade": "nbd", "Connection": "Upgrade"}
GREETING = b"NBDMAGICIHAVEOPT\0\3"
SIZE = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(bytes(SIZE))
    return path


class Nbd:
    """An NBD client on a connection that was HTTP."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def ask(self, option: int, payload: bytes = b"") -> list[tuple[int, bytes]]:
        self.connection.send(OptionHeader(option, len(payload)).pack() + payload)
        replies: list[tuple[int, bytes]] = []
        while True:
            header = OptionReply.unpack(bytes(self.connection._exactly(20)))
            assert header.option == option
            replies.append((header.reply, bytes(self.connection._exactly(header.length))))
            if header.reply == Reply.ACK or header.reply >= Reply.ERR_UNSUP:
                return replies

    def go(self, name: str = "") -> int:
        return self.ask(OptionType.GO, InfoRequest(name, ()).pack())[-1][0]

    def request(self, command: int, offset: int = 0, length: int = 0, data: bytes = b"") -> tuple[int, bytes]:
        self.connection.send(RequestHeader(command, 0, 7, offset, length).pack() + data)
        reply = SimpleReply.unpack(bytes(self.connection._exactly(16)))
        assert reply.cookie == 7
        return reply.error, bytes(self.connection._exactly(length)) if command == Command.READ else b""


def upgraded(client: Connection, url: str, fields: Mapping[str, str] = UPGRADE, *, early: bytes = b"") -> Nbd:
    """Make a connection NBD, up to the client's flags. early: they come with the request."""
    client.send(encode_request("GET", url, fields) + early)
    head = bytes(client._until(b"\r\n\r\n"))
    assert head == b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: nbd\r\nConnection: Upgrade\r\n\r\n"
    assert client._exactly(18) == GREETING
    if not early:
        client.send(struct.pack(">I", 3))
    return Nbd(client)


@needs(Trait.HERE)
@pytest.mark.every_kind
def test_connection_becomes_the_export(client: Connection, image: Image) -> None:
    before = image.content()
    nbd = upgraded(client, image.url)
    assert nbd.go() == Reply.ACK
    assert nbd.request(Command.READ, 5, 100) == (0, before[5:105])
    assert nbd.request(Command.WRITE, 4096, 5, b"bytes") == (0, b"")
    assert nbd.request(Command.FLUSH) == (0, b"")
    assert nbd.request(Command.READ, 4090, 20) == (0, before[4090:4096] + b"bytes" + before[4101:4110])
    client.send(RequestHeader(Command.DISC, 0, 0, 0, 0).pack())
    assert client.is_closed()
    assert image.content() == before[:4096] + b"bytes" + before[4101:]


def test_it_is_one_of_the_connections_and_of_the_lanes(make_daemon: MakeDaemon, path: Path) -> None:
    own = make_daemon()
    url = f"/images/{own.add_ticket(path, SIZE)}"
    with own.connect("tls") as client, own.connect("tls") as plain:
        nbd = upgraded(client, url)
        assert nbd.go() == Reply.ACK
        assert nbd.request(Command.READ, 0, 1) == (0, b"\0")
        assert plain.get(url).status == 200
        metrics = Metrics(own)
    names = ("connections", "connections_opened_total", "lanes")
    assert [metrics.sum(name, service="remote") for name in names] == [2, 2, 2]


@needs(Trait.HERE)
def test_requests_before_it_are_served(client: Connection, image: Image) -> None:
    for _ in range(3):
        assert client.get(image.url, {"Range": "bytes=0-9"}).status == 206
    nbd = upgraded(client, image.url)
    assert nbd.go() == Reply.ACK
    assert nbd.request(Command.READ, 0, 10) == (0, image.content()[:10])


@needs(Trait.HERE)
def test_bytes_behind_the_request_are_those_of_nbd(client: Connection, image: Image) -> None:
    payload = InfoRequest("", ()).pack()
    early = struct.pack(">I", 3) + OptionHeader(OptionType.GO, len(payload)).pack() + payload
    early += RequestHeader(Command.READ, 0, 9, 0, 8).pack()
    upgraded(client, image.url, early=early)
    while OptionReply.unpack(head := bytes(client._exactly(20))).reply != Reply.ACK:
        client._exactly(OptionReply.unpack(head).length)
    assert SimpleReply.unpack(bytes(client._exactly(16))) == SimpleReply(9, 0)
    assert client._exactly(8) == image.content()[:8]


@needs(Trait.HERE)
@pytest.mark.parametrize(
    "fields",
    [
        {"Upgrade": "nbd", "Connection": "upgrade"},
        {"Upgrade": "websocket, NBD", "Connection": "keep-alive, Upgrade"},
        {"upgrade": "nbd", "connection": "UPGRADE", "Content-Length": "0", "Range": "bytes=0-9"},
    ],
    ids=str,
)
def test_fields_are_lists_in_any_case(client: Connection, image: Image, fields: dict[str, str]) -> None:
    assert upgraded(client, image.url, fields).go() == Reply.ACK


@pytest.mark.parametrize(
    "fields",
    [
        {"Upgrade": "nbd"},
        {"Connection": "Upgrade"},
        {"Upgrade": "nbd/2, h2c", "Connection": "Upgrade"},
        {**UPGRADE, "Content-Length": "4"},
    ],
    ids=str,
)
def test_other_requests_are_served_as_if_they_did_not_ask(
    client: Connection, image: Image, fields: dict[str, str]
) -> None:
    client.send(encode_request("GET", image.url, fields) + (b"body" if "Content-Length" in fields else b""))
    answer = client.receive()
    assert (answer.status, answer.body) == (200, image.content())


def test_http_1_0_has_no_upgrade(client: Connection, image: Image) -> None:
    client.send(f"GET {image.url} HTTP/1.0\r\nUpgrade: nbd\r\nConnection: Upgrade\r\n\r\n".encode())
    assert client.receive().status == 200


@pytest.mark.parametrize("method", ["HEAD", "PUT"])
def test_only_get_is_upgraded(client: Connection, image: Image, method: str) -> None:
    client.send(encode_request(method, image.url, {**UPGRADE, "Content-Length": "0"}))
    assert client.receive(to=method).status == 200


# Names and options


@needs(Trait.HERE)
def test_export_is_the_default_one_and_that_of_the_ticket(client: Connection, daemon: Daemon, image: Image) -> None:
    other = daemon.add_ticket(image.path, SIZE)
    nbd = upgraded(client, image.url)
    for name in (other, "unknown", "default"):
        assert nbd.go(name) == Reply.ERR_UNKNOWN
    ticket = image.url.rpartition("/")[2]
    assert [nbd.ask(OptionType.INFO, InfoRequest(name, ()).pack())[-1][0] for name in ("", ticket)] == [Reply.ACK] * 2
    assert nbd.go(ticket) == Reply.ACK


@needs(Trait.HERE)
def test_tls_and_the_list_are_refused_inside(client: Connection, image: Image) -> None:
    nbd = upgraded(client, image.url)
    assert [nbd.ask(option)[-1][0] for option in (OptionType.STARTTLS, OptionType.LIST)] == [Reply.ERR_POLICY] * 2
    assert nbd.go() == Reply.ACK


# Refused


def refused(client: Connection, url: str) -> Answer:
    return client.get(url, UPGRADE)


def test_refusals_are_those_of_get(daemon: Daemon, client: Connection, image: Image) -> None:
    answer = refused(client, "/images/unknown")
    assert (answer.status, answer.code) == (403, "not_allowed")
    assert client.is_closed()
    for path, expected in (("/does/not/exist", (500, "storage_gone")), ("/dev/null", (422, "image_unusable"))):
        with daemon.connect("tls") as another:
            answer = refused(another, f"/images/{daemon.add_ticket(path, SIZE)}")
            assert (answer.status, answer.code) == expected


def test_read_only_ticket_is_a_read_only_export(daemon: Daemon, client: Connection, image: Image) -> None:
    ticket = daemon.add_ticket(image.path, SIZE, ops=["read"])
    nbd = upgraded(client, f"/images/{ticket}")
    assert nbd.go() == Reply.ACK
    assert nbd.request(Command.WRITE, 0, 4, b"late")[0] == 1  # EPERM


# Its end


@needs(Trait.HERE)
@pytest.mark.parametrize("entered", [True, False])
def test_end_of_the_ticket_ends_it(daemon: Daemon, client: Connection, image: Image, entered: bool) -> None:
    nbd = upgraded(client, image.url)
    if entered:
        assert nbd.go() == Reply.ACK
    assert daemon.control("DELETE", image.url.replace("/images/", "/tickets/")).status == 204
    assert client.is_closed()


@needs(Trait.HERE)
def test_it_is_one_of_the_connections_of_its_ticket(daemon: Daemon, client: Connection, image: Image) -> None:
    ticket = image.url.rpartition("/")[2]
    nbd = upgraded(client, image.url)
    assert daemon.control("GET", f"/tickets/{ticket}").json()["connections"] == 1
    assert nbd.go() == Reply.ACK
    assert daemon.control("GET", f"/tickets/{ticket}").json()["connections"] == 1
    client.send(RequestHeader(Command.DISC, 0, 0, 0, 0).pack())
    assert client.is_closed()
    eventually(lambda: daemon.control("GET", f"/tickets/{ticket}").json()["connections"] == 0, "it is let go of")


@needs(Trait.HERE)
def test_client_that_leaves_harms_nobody(daemon: Daemon, client: Connection, image: Image) -> None:
    ticket = image.url.rpartition("/")[2]
    for entered in (False, True):
        with daemon.connect("tls") as another:
            nbd = upgraded(another, image.url)
            if entered:
                assert nbd.go() == Reply.ACK
    eventually(lambda: daemon.control("GET", f"/tickets/{ticket}").json()["connections"] == 0, "they are let go of")
    assert client.get(image.url, {"Range": "bytes=0-9"}).status == 206


def test_who_does_not_negotiate_is_closed_in_time(make_daemon: MakeDaemon, path: Path) -> None:
    daemon = make_daemon(nbd={"handshake_timeout": 1})
    with daemon.connect("tls") as client:
        upgraded(client, f"/images/{daemon.add_ticket(path, SIZE)}")
        assert client.is_closed()


def test_stop_of_the_daemon_ends_it(make_daemon: MakeDaemon, path: Path) -> None:
    daemon = make_daemon()
    with daemon.connect("tls") as client, daemon.connect("tls") as idle:
        nbd = upgraded(client, f"/images/{daemon.add_ticket(path, SIZE)}")
        upgraded(idle, f"/images/{daemon.add_ticket(path, SIZE)}")
        assert nbd.go() == Reply.ACK
        assert nbd.request(Command.WRITE, 0, 5, b"bytes")[0] == 0
        daemon.stop()
        with pytest.raises(DisconnectedError):
            client._more()
