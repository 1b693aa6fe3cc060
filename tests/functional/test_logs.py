# SPDX-License-Identifier: Apache-2.0
"""What the log tells, and what it never tells."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import shared
from tests.support.daemon import Certificates, Daemon, MakeDaemon
from tests.support.http_client import Connection, encode_request
from tests.support.images import MakeImage, MiB, make_image, pattern
from tests.support.manager import Manager
from tests.support.places import Trait, needs
from tests.support.polling import eventually


@pytest.fixture(scope="module")
def talkative(certificates: Certificates) -> Iterator[Daemon]:
    """A daemon that logs each request."""
    with shared.start(certificates, log={"level": "debug"}) as daemon:
        yield daemon
        daemon.check_log()


def transfer(daemon: Daemon, new_image: MakeImage, **fields: object) -> str:
    """Do one of everything with a ticket, good and bad, and remove it; return its id."""
    image = new_image(**fields)
    for service in ("tls", "unix"):
        with daemon.connect(service) as connection:
            assert connection.put(image.url, pattern(MiB)).status == 200
            assert connection.patch(image.url, {"op": "zero", "size": 4096}).status == 200
            assert connection.get(image.url).status == 200
            assert connection.get(f"{image.url}/extents").status == 200
            assert connection.get(f"{image.url}/checksum").status == 200
            assert connection.request("OPTIONS", image.url).status == 200
            assert connection.get(f"{image.url}?{image.ticket}", {"Range": "bytes=x"}).status == 416
            assert connection.get(f"{image.url}/unknown/{image.ticket}").status == 404
            assert connection.request("POST", image.url, {"X-Ticket": image.ticket}, b"").status == 405
            connection.send(f"{image.ticket} {image.url}\r\n\r\n".encode())
            assert connection.status_or_end() in (400, None)
    daemon.control("PUT", f"/tickets/{image.ticket}", b'{"uuid": "%b"}' % image.ticket.encode())
    daemon.control("PATCH", f"/tickets/{image.ticket}", b'{"timeout": -1}')
    daemon.control("GET", f"/tickets/{image.ticket}/{image.ticket}")
    image.path.unlink()
    daemon.remove(image.ticket)
    with daemon.connect("unix") as connection:
        assert connection.get(image.url).status == 403
    return image.ticket


@pytest.mark.parametrize("level", ["debug", "info"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_the_ticket_id_is_never_logged(
    make_daemon: MakeDaemon, tmp_path_factory: pytest.TempPathFactory, level: str, form: str
) -> None:
    daemon = make_daemon(log={"level": level, "format": form})
    new_image = make_image(daemon, tmp_path_factory.mktemp("images"))
    for fields in ({}, {"transfer_id": "job-17"}, {"timeout": 1000}):
        ticket_id = transfer(daemon, new_image, **fields)
        # Nor a part of it that would be enough to find it.
        for line in daemon.log.lines():
            assert ticket_id[:8] not in line
            assert ticket_id[-8:] not in line


@needs(Trait.NAMED)
def test_a_transfer_ends_with_a_line_of_sums(daemon: Daemon, new_image: MakeImage) -> None:
    start = daemon.log.end()
    transfer(daemon, new_image, transfer_id="job-18")
    line = daemon.log.wait_for(r"transfer ended.*job-18.*", start=start)[0]
    assert "requests=" in line
    assert "bytes=" in line
    assert "seconds=" in line


@pytest.mark.unopened
def test_each_request_is_counted_once(daemon: Daemon, client: Connection, new_image: MakeImage) -> None:
    image, start = new_image(transfer_id="job-21"), daemon.log.end()
    for _ in range(3):
        assert client.get(image.url).status == 200
        assert client.get(image.url, {"Range": "bytes=0-4095"}).status == 206
    assert client.put(image.url, pattern(4096)).status == 200
    assert client.patch(image.url, {"op": "zero", "size": 4096, "flush": True}).status == 200
    assert client.request("OPTIONS", image.url).status == 200
    assert client.request("HEAD", image.url).status == 200
    assert client.get(f"{image.url}/extents").status == 200
    assert client.get(f"{image.url}/checksum").status == 200
    daemon.remove(image.ticket)
    daemon.log.wait_for(r"transfer ended.*job-21 requests=12 ", start=start)


@pytest.mark.unopened
def test_a_connection_ends_with_a_line_of_sums(daemon: Daemon, new_image: MakeImage) -> None:
    image, start = new_image(transfer_id="job-19"), daemon.log.end()
    with daemon.connect("tls") as connection:
        connection.put(image.url, pattern(MiB))
        connection.get(image.url)
    line = daemon.log.wait_for(r"connection ended.*job-19.*", start=start)[0]
    assert "requests=2" in line


@pytest.mark.parametrize(
    ("method", "target", "body", "status"),
    [
        ("GET", "", None, 200),
        ("GET", "/extents", None, 200),
        ("HEAD", "", None, 200),
        ("PUT", "?flush=n", b"x", 200),
        ("PUT", "?flush=never", b"x", 400),
        ("PATCH", "", b'{"op": "flush"}', 200),
    ],
)
def test_each_request_is_told_at_debug(
    talkative: Daemon, tmp_path: Path, service_name: str, method: str, target: str, body: bytes | None, status: int
) -> None:
    image = make_image(talkative, tmp_path)()
    with talkative.connect("unix") as client:
        client.request("OPTIONS", image.url)  # opens it, so that C can serve
    start = talkative.log.end()
    with talkative.connect(service_name) as client:
        assert client.request(method, f"{image.url}{target}", None, body).status == status
        # Before the client goes: the task of aiohttp that tells it is cancelled then, on a busy machine before it has.
        talkative.log.wait_for(
            rf"DEBUG .*: request client=.* method={method} .*status={status} seconds=[\d.e-]+$", start=start
        )


def test_a_download_is_told_when_it_ends(talkative: Daemon, tmp_path: Path, service_name: str) -> None:
    image, start = make_image(talkative, tmp_path)(size=64 * MiB), talkative.log.end()
    with talkative.connect(service_name) as client:
        client.send(encode_request("GET", image.url))
        eventually(lambda: talkative.status(image.ticket)["active"], "the download runs")
        assert talkative.log.find(r": request .*method=GET .*/images/", start=start) is None
        assert client.receive().status == 200
    talkative.log.wait_for(r": request .*method=GET .*status=200", start=start)  # C tells the range besides


def test_the_service_manager_is_told_the_port(make_daemon: MakeDaemon) -> None:
    with Manager() as manager:
        daemon = make_daemon(manager=manager)
        eventually(lambda: any(state.startswith("READY=1\n") for state in manager.states), "the manager is told")
        (status,) = [state for state in manager.states if state.startswith("READY=1\n")]
        assert f"remote on :: port {daemon.port}," in status
        assert f"control on {daemon.control_socket}" in status


def test_requests_are_told_at_debug_only(make_daemon: MakeDaemon, tmp_path_factory: pytest.TempPathFactory) -> None:
    daemon = make_daemon(log={"level": "info"})
    transfer(daemon, make_image(daemon, tmp_path_factory.mktemp("images")))
    daemon.log.wait_for("transfer ended")
    assert daemon.log.find("DEBUG") is None


def test_what_a_client_sends_cannot_forge_a_line(daemon: Daemon, new_image: MakeImage) -> None:
    start = daemon.log.end()
    image = new_image(transfer_id="evil\nforged line one")
    with daemon.connect("unix") as connection:
        connection.get("/images/x%0Aforged%20line%20two?a=%0D%0Aforged", {"User-Agent": "x\u0085forged line three"})
    daemon.remove(image.ticket)
    daemon.log.wait_for("transfer ended.*evil", start=start)
    assert not [line for line in daemon.log.lines()[start:] if line.startswith("forged")]


def test_json_lines(make_daemon: MakeDaemon, tmp_path_factory: pytest.TempPathFactory) -> None:
    daemon = make_daemon(log={"format": "json"})
    transfer(daemon, make_image(daemon, tmp_path_factory.mktemp("images")), transfer_id="job-20")
    daemon.stop()
    lines = [json.loads(line) for line in daemon.log.lines()]
    assert all(isinstance(line, dict) for line in lines)
    assert any(line.get("transfer") == "job-20" for line in lines)
