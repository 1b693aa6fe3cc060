# SPDX-License-Identifier: Apache-2.0
"""Answers that docs/openapi names and no other test asks for; how these answers are compared with it."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.frontends.nbd.client import Client
from tests.support.daemon import Daemon, MakeDaemon, ticket
from tests.support.http_client import Answer, Connection, Headers, connect_tcp
from tests.support.images import MakeImage, MiB, make_image, pattern
from tests.support.openapi import CONTROL, DIRECTORY, Document, UndocumentedError
from tests.support.places import Trait, needs

# Images


@pytest.mark.parametrize("path", ["/extents", "/checksum", "/checksum/algorithms", "/finalize"])
def test_methods_of_what_is_below_an_image_are_told(client: Connection, new_image: MakeImage, path: str) -> None:
    answer = client.request("OPTIONS", new_image().url + path)
    assert (answer.status, answer.headers["Allow"]) == (200, "OPTIONS,GET")


@needs(Trait.TAGGED)
def test_head_with_a_condition_has_the_tag(client: Connection, new_image: MakeImage) -> None:
    image = new_image(ops=["read"])
    tag = client.request("HEAD", image.url).headers["ETag"]
    answer = client.request("HEAD", image.url, {"Range": "bytes=0-9", "If-Range": tag})
    assert (answer.status, answer.headers["ETag"]) == (206, tag)


@needs(Trait.RAW_FILE)
def test_state_of_a_finalize_that_cannot_read_the_image_has_the_reason(
    client: Connection, new_image: MakeImage
) -> None:
    image = new_image(pattern(4 * MiB))
    checksum = client.get(f"{image.url}/checksum").json()
    os.truncate(image.path, MiB)
    assert client.patch(image.url, {"op": "finalize", "checksum": checksum}).status >= 400
    told = client.get(f"{image.url}/finalize").json()
    assert told["state"] == "failed"
    assert told["reason"]


# Control


def test_head_that_is_too_large_is_refused_by_the_control_service(daemon: Daemon) -> None:
    with daemon.connect("control") as connection:
        connection.send(b"GET /tickets/ HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 32768 + b"\r\n\r\n")
        assert connection.receive().status == 431


def test_document_that_ends_early_is_refused_by_the_control_service(daemon: Daemon) -> None:
    with daemon.connect("control") as connection:
        connection.send(b"PUT /log HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        connection.end_sending()
        answer = connection.receive(to="PUT")
    assert (answer.status, answer.headers["X-Error-Code"]) == (400, "truncated_request")


def test_error_of_the_control_service_can_be_a_document(daemon: Daemon) -> None:
    with daemon.connect("control") as connection:
        answer = connection.get("/tickets/none", {"Accept": "application/json"})
    assert answer.json() == {"code": "not_found", "message": "No such ticket", "status": 404}


@pytest.mark.parametrize("image_format", ["qcow2", "vmdk", "vhdx", "vpc", "vdi"])
def test_format_is_told(daemon: Daemon, image_format: str) -> None:
    name = daemon.put_ticket(ticket("/images/disk", MiB, format=image_format))
    assert daemon.status(name)["format"] == image_format


def test_event_of_a_limit_has_the_rate(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    name = daemon.add_ticket("/images/disk", MiB)
    assert daemon.control("PATCH", f"/tickets/{name}", b'{"rate": 65536}').status == 200
    changes = {"rate": 65536, "tenant_rate": 131072, "transfers": 7}
    assert daemon.control("PATCH", "/limits", json.dumps(changes).encode()).status == 200
    of_ticket, of_all = daemon.control("GET", "/events").json()[-2:]
    assert (of_ticket["event"], of_ticket["rate"]) == ("ticket limited", 65536)
    assert of_all["event"] == "limits set"
    assert changes.items() <= of_all.items()


def test_event_over_tcp_has_the_client(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(control={"transport": "tcp", "port": 0})
    with Connection(connect_tcp("localhost", daemon.control_port), CONTROL) as connection:
        assert connection.put("/log", b'{"level": "error", "seconds": 60}').status == 200
        event = connection.get("/events").json()[-1]
    assert event["event"] == "log level set"
    assert event["client"].startswith(("::1", "127.0.0.1", "::ffff:127.0.0.1"))


def test_daemon_that_drains_says_so_on_the_control_socket(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon()
    image = make_image(daemon, tmp_path)()
    with daemon.connect("unix") as client:
        assert client.get(image.url).status == 200
        assert daemon.control("PUT", "/drain").status == 200
        assert daemon.control("GET", "/readyz").status == 503


def test_removal_that_the_disk_fails_to_keep_fails(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon(daemon={"state_dir": tmp_path / "state"})
    name = daemon.add_ticket("/images/disk", MiB)
    [kept] = (tmp_path / "state" / "tickets").iterdir()
    kept.unlink()
    kept.mkdir()  # which cannot be unlinked
    assert daemon.control("DELETE", f"/tickets/{name}").status == 500
    kept.rmdir()
    daemon.remove(name)


async def test_clients_of_nbd_are_told(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon(nbd={"enable": True, "port": -1, "socket": tmp_path / "nbd"})
    image = make_image(daemon, tmp_path)()
    client = await Client.connect(str(tmp_path / "nbd"))
    await client.go(image.ticket)
    assert [told["service"] for told in daemon.status(image.ticket)["clients"]] == ["nbd-local"]
    await client.close()


async def test_service_of_a_client_of_nbd_over_tcp_is_told(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon(nbd={"enable": True, "host": "localhost", "port": 0, "tls": "optional"})
    image = make_image(daemon, tmp_path)()
    match = daemon.log.find(r"service=nbd address=.*port=(\d+)")
    assert match is not None
    client = await Client.connect(("localhost", int(match[1])))
    await client.go(image.ticket)
    assert [told["service"] for told in daemon.status(image.ticket)["clients"]] == ["nbd"]
    await client.close()


# How answers are compared


@dataclass
class Told:
    """An answer that nobody gave."""

    status: int = 200
    body: bytes = b'{"draining": false, "transfers": 0}'
    fields: tuple[tuple[str, str], ...] = (("Content-Type", "application/json"),)

    def answer(self) -> Answer:
        return Answer(self.status, "1.1", Headers(list(self.fields)), self.body)


@pytest.fixture
def document() -> Document:
    return Document(DIRECTORY / "control.json")


def test_answer_as_documented_is_noted(document: Document) -> None:
    document.check("GET", "/drain?x=y", Told().answer())
    response, schema = "/paths/~1drain/get/responses/200", "/components/schemas/Drain/properties"
    assert document.answered == {response, f"{schema}/draining", f"{schema}/transfers"}
    assert document.answered < document.named


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (Told(status=206), "the status"),
        (Told(status=405, body=b""), "the status"),
        (Told(body=b'{"draining": false, "transfers": -1}'), "minimum"),
        (Told(body=b'{"draining": false}'), "transfers"),
        (Told(body=b'{"draining": false, "transfers": 0, "more": 1}'), "'more' is not named"),
        (Told(fields=(("Content-Type", "text/html"),)), "text/html"),
        (Told(fields=(("Content-Type", "application/json"), ("X-More", "1"))), "X-More is not named"),
    ],
    ids=str,
)
def test_answer_that_is_not_documented_is_an_error(document: Document, told: Told, why: str) -> None:
    with pytest.raises(UndocumentedError, match=why):
        document.check("GET", "/drain", told.answer())


def test_what_is_not_documented_may_only_be_refused(document: Document) -> None:
    fields = (("Content-Type", "text/plain"), ("X-Error-Code", "not_found"))
    missing = Told(status=404, body=b"No such resource\n", fields=fields)
    document.check("GET", "/nothing", missing.answer())
    with pytest.raises(UndocumentedError):
        document.check("GET", "/nothing", Told().answer())
    with pytest.raises(UndocumentedError):
        document.check("DELETE", "/drain", Told().answer())
