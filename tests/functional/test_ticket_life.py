# SPDX-License-Identifier: Apache-2.0
"""The life of a ticket: it expires, is renewed by use, is cancelled while requests run, and tells how far it came."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, MakeDaemon, now
from tests.support.http_client import Connection, DisconnectedError, encode_request
from tests.support.images import Image, MakeImage, MiB, make_image, pattern
from tests.support.polling import eventually
from tests.support.services import Connect


@contextmanager
def slow_upload(connection: Connection, url: str, *, size: int = MiB, sent: int = 65536) -> Iterator[None]:
    """Have a PUT under way: its head and a first part of the body are sent, the rest does not come."""
    request = encode_request("PUT", url, {"Content-Length": str(size)}, b"")
    connection.send(request + pattern(sent, seed=9))
    yield


def wait_active(daemon: Daemon, ticket_id: str, *, active: bool = True) -> None:
    eventually(lambda: daemon.status(ticket_id)["active"] is active, f"active is {active}")


# Expiry


def test_an_expired_ticket_is_refused(client: Connection, image: Image, daemon: Daemon) -> None:
    daemon.extend(image.ticket, 0)
    answer = client.get(image.url)
    assert (answer.status, answer.closes) == (403, True)
    assert client.is_closed()


def test_a_ticket_with_timeout_0_is_expired_from_the_start(client: Connection, new_image: MakeImage) -> None:
    assert client.get(new_image(timeout=0).url).status == 403


@pytest.mark.unopened
def test_an_expired_ticket_lives_again_when_extended(client: Connection, new_image: MakeImage, daemon: Daemon) -> None:
    image = new_image(timeout=0)
    daemon.extend(image.ticket, 100)
    assert client.get(image.url).status == 200


def test_an_expired_ticket_still_has_a_status(image: Image, daemon: Daemon) -> None:
    daemon.extend(image.ticket, 0)
    assert daemon.status(image.ticket)["expires"] <= now()


@pytest.mark.every_kind
@pytest.mark.parametrize(
    "request_", ["GET", "HEAD", "OPTIONS", "PUT", "PATCH", "GET /extents", "GET /checksum", "GET ?again"]
)
def test_a_completed_request_renews(client: Connection, image: Image, daemon: Daemon, request_: str) -> None:
    method, _, rest = request_.partition(" ")
    body = {"PUT": b"x", "PATCH": b'{"op": "flush"}'}.get(method)
    if rest == "?again":
        assert client.get(image.url).status == 200
    daemon.extend(image.ticket, 20)
    assert client.request(method, f"{image.url}{rest}", None, body).status == 200
    eventually(lambda: daemon.status(image.ticket)["expires"] > now() + 250, "the ticket is renewed")


def test_renewal_never_shortens_an_extension(client: Connection, image: Image, daemon: Daemon) -> None:
    daemon.extend(image.ticket, 9000)
    assert client.get(image.url).status == 200
    wait_active(daemon, image.ticket, active=False)
    assert daemon.status(image.ticket)["expires"] > now() + 8000


def wait_expired(daemon: Daemon, ticket_id: str) -> None:
    eventually(lambda: daemon.status(ticket_id)["expires"] < now(), "the ticket has expired")


@pytest.mark.every_kind
def test_expiry_does_not_cut_a_running_request_which_renews_at_its_end(
    client: Connection, image: Image, daemon: Daemon
) -> None:
    with slow_upload(client, image.url, sent=65536):
        wait_active(daemon, image.ticket)
        daemon.extend(image.ticket, 1)
        wait_expired(daemon, image.ticket)
        client.send(pattern(MiB, seed=9)[65536:])
    assert client.receive().status == 200
    assert image.content() == pattern(MiB, seed=9)
    assert client.get(image.url).status == 200


@pytest.mark.every_kind
def test_a_running_request_does_not_renew_a_ticket_that_was_ended_by_hand(
    client: Connection, image: Image, daemon: Daemon
) -> None:
    with slow_upload(client, image.url, sent=65536):
        wait_active(daemon, image.ticket)
        daemon.extend(image.ticket, 0)
        client.send(pattern(MiB, seed=9)[65536:])
    assert client.receive().status == 200
    wait_active(daemon, image.ticket, active=False)
    assert daemon.status(image.ticket)["expires"] <= now()
    assert client.get(image.url).status == 403


def test_a_ticket_that_was_ended_by_hand_is_renewed_by_requests_after_its_extension(
    client: Connection, image: Image, daemon: Daemon
) -> None:
    daemon.extend(image.ticket, 0)
    daemon.extend(image.ticket, 20)
    assert client.get(image.url).status == 200
    eventually(lambda: daemon.status(image.ticket)["expires"] > now() + 250, "the ticket is renewed")


# Progress


@pytest.mark.every_kind
def test_transferred_counts_what_was_written(client: Connection, image: Image, daemon: Daemon) -> None:
    client.put_at(image.url, 0, bytes(1000))
    client.put_at(image.url, 5000, bytes(1000))
    eventually(lambda: daemon.status(image.ticket)["transferred"] == 2000, "2000 bytes are counted")


def test_transferred_counts_a_byte_once(client: Connection, image: Image, daemon: Daemon) -> None:
    client.put_at(image.url, 0, bytes(1000))
    client.put_at(image.url, 500, bytes(1000))
    client.put_at(image.url, 0, bytes(1000))
    eventually(lambda: daemon.status(image.ticket)["transferred"] == 1500, "1500 bytes are counted")


def test_transferred_counts_zeroed_bytes(client: Connection, image: Image, daemon: Daemon) -> None:
    client.patch(image.url, {"op": "zero", "offset": 4096, "size": 8192})
    eventually(lambda: daemon.status(image.ticket)["transferred"] == 8192, "8192 bytes are counted")


def test_transferred_of_a_read_ticket_counts_what_was_read(
    client: Connection, new_image: MakeImage, daemon: Daemon
) -> None:
    image = new_image(ops=["read"])
    client.get(image.url, {"Range": "bytes=0-9999"})
    client.get(image.url, {"Range": "bytes=5000-14999"})
    eventually(lambda: daemon.status(image.ticket)["transferred"] == 15000, "15000 bytes are counted")


def test_reading_is_no_progress_of_a_write_ticket(client: Connection, image: Image, daemon: Daemon) -> None:
    assert client.get(image.url).status == 200
    wait_active(daemon, image.ticket, active=False)
    assert daemon.status(image.ticket)["transferred"] == 0


@pytest.mark.every_kind
def test_transferred_counts_the_part_done_of_a_running_request(
    client: Connection, new_image: MakeImage, daemon: Daemon
) -> None:
    image = new_image(size=64 * MiB)
    with slow_upload(client, image.url, size=64 * MiB, sent=40 * MiB):
        eventually(lambda: 0 < daemon.status(image.ticket)["transferred"] <= 40 * MiB, "a part is counted")


def test_active_and_idle_time(client: Connection, image: Image, daemon: Daemon) -> None:
    assert daemon.status(image.ticket)["active"] is False
    with slow_upload(client, image.url):
        wait_active(daemon, image.ticket)
        assert daemon.status(image.ticket)["idle_time"] == 0
        client.send(pattern(MiB - 65536))
    assert client.receive().status == 200
    wait_active(daemon, image.ticket, active=False)
    eventually(lambda: daemon.status(image.ticket)["idle_time"] >= 1, "idle time passes")


def test_connections_are_counted_while_they_last(connect: Connect, image: Image, daemon: Daemon) -> None:
    first, second = connect(), connect()
    assert daemon.status(image.ticket)["connections"] == 0
    first.request("OPTIONS", image.url)
    first.request("OPTIONS", image.url)
    assert daemon.status(image.ticket)["connections"] == 1
    second.request("OPTIONS", image.url)
    assert daemon.status(image.ticket)["connections"] == 2
    first.close()
    eventually(lambda: daemon.status(image.ticket)["connections"] == 1, "the closed connection is not counted")


def test_a_connection_that_was_refused_is_not_counted(connect: Connect, new_image: MakeImage, daemon: Daemon) -> None:
    image = new_image(ops=[])
    assert connect().get(image.url).status == 403
    assert daemon.status(image.ticket)["connections"] == 0


@pytest.mark.every_kind
def test_the_image_is_closed_with_its_ticket(client: Connection, image: Image, daemon: Daemon) -> None:
    assert client.get(image.url).status == 200
    assert image.place.is_open(daemon)
    daemon.remove(image.ticket)
    image.place.check_closed(daemon)


# Removal


def test_a_removed_ticket_is_refused_and_the_connection_closed(
    client: Connection, image: Image, daemon: Daemon
) -> None:
    assert client.get(image.url).status == 200
    daemon.remove(image.ticket)
    answer = client.get(image.url)
    assert (answer.status, answer.closes) == (403, True)
    assert client.is_closed()


def test_removal_with_idle_connections_is_done_at_once(connect: Connect, image: Image, daemon: Daemon) -> None:
    for _ in range(4):
        assert connect().get(image.url).status == 200
    started = now()
    daemon.remove(image.ticket)
    assert now() - started < 2


@pytest.mark.every_kind
def test_removal_ends_a_running_upload(client: Connection, image: Image, daemon: Daemon) -> None:
    with slow_upload(client, image.url):
        wait_active(daemon, image.ticket)
        daemon.remove(image.ticket)
        image.place.check_closed(daemon)
        assert client.status_or_end() in (403, None)


@pytest.mark.every_kind
def test_removal_ends_a_running_download(client: Connection, new_image: MakeImage, daemon: Daemon) -> None:
    image = new_image(size=256 * MiB, ops=["read"])
    client.send(encode_request("GET", image.url))
    assert not client.is_silent(timeout=10), "the answer has begun"
    daemon.remove(image.ticket)
    image.place.check_closed(daemon)
    with pytest.raises(DisconnectedError):
        client.receive()


@pytest.mark.every_kind
def test_nothing_is_written_after_removal(client: Connection, image: Image, daemon: Daemon) -> None:
    with slow_upload(client, image.url, sent=65536):
        wait_active(daemon, image.ticket)
        daemon.remove(image.ticket)
        before = image.content()
        client.send_while_accepted(pattern(MiB, seed=9)[65536:])
    assert client.status_or_end() in (403, None)
    assert image.content() == before


@pytest.mark.every_kind
def test_replacement_cancels_running_requests_of_the_old_ticket(
    connect: Connect, new_image: MakeImage, daemon: Daemon
) -> None:
    image = new_image()
    running, idle = connect(), connect()
    assert idle.get(image.url).status == 200
    with slow_upload(running, image.url):
        wait_active(daemon, image.ticket)
        new_image(of=image, uuid=image.ticket)
        assert running.status_or_end() in (403, None)
    # An idle connection goes on with the new ticket.
    assert idle.get(image.url).status == 200
    assert daemon.status(image.ticket)["canceled"] is False


def test_a_replaced_ticket_counts_from_the_start(client: Connection, new_image: MakeImage, daemon: Daemon) -> None:
    image = new_image()
    client.put_at(image.url, 0, bytes(4096))
    new_image(of=image, uuid=image.ticket)
    status = daemon.status(image.ticket)
    assert (status["transferred"], status["connections"]) == (0, 0)


@pytest.mark.unopened
@pytest.mark.every_kind
def test_an_idle_connection_uses_the_image_of_the_new_ticket(client: Connection, new_image: MakeImage) -> None:
    old, new = new_image(b"old"), new_image(b"new")
    assert client.get(old.url).body == b"old"
    new_image(of=new, uuid=old.ticket)
    assert client.get(old.url).body == b"new"


def test_removal_of_all_ends_running_requests(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon()
    image = make_image(daemon, tmp_path)()
    with daemon.connect("unix") as connection, slow_upload(connection, image.url):
        wait_active(daemon, image.ticket)
        assert daemon.control("DELETE", "/tickets/").status == 204
        assert connection.status_or_end() in (403, None)
        eventually(lambda: not daemon.has_open(image.path), "the image is closed")


def test_removal_without_waiting_of_an_idle_ticket_succeeds_in_the_end(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon(control={"remove_timeout": 0})
    image = make_image(daemon, tmp_path)()
    with daemon.connect("unix") as connection:
        assert connection.get(image.url).status == 200
        eventually(lambda: daemon.control("DELETE", f"/tickets/{image.ticket}").status == 204, "the ticket is removed")
        eventually(lambda: not daemon.has_open(image.path), "the image is closed")
