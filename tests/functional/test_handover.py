# SPDX-License-Identifier: Apache-2.0
"""Connections that C serves: when, what is told of them, and how they come back."""

import functools
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Certificates, Daemon, MakeDaemon
from tests.support.http_client import Connection, DisconnectedError, encode_request
from tests.support.images import Image, MakeImage, MiB, make_image, pattern
from tests.support.polling import eventually
from tests.support.processes import thread_names

FIRST = {"Range": "bytes=0-9"}
SERVICES = {"tls": "remote", "tcp": "remote", "unix": "local"}


@pytest.fixture(params=["tls", "tcp", "unix"])
def service_name(request: pytest.FixtureRequest) -> str:
    """Without TLS, too, which has its own way through C."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def secure_and_plain(certificates: Certificates) -> Iterator[Callable[[bool], Daemon]]:
    """Return the daemon with TLS or without it: one for all tests that do not end it."""
    with ExitStack() as cleanup:
        yield functools.cache(lambda tls: cleanup.enter_context(Daemon(certificates, {"tls": {"enable": tls}})))


@pytest.fixture
def own(secure_and_plain: Callable[[bool], Daemon], request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """A daemon that nobody is connected to."""
    name = request.getfixturevalue("service_name") if "service_name" in request.fixturenames else "tls"
    daemon = secure_and_plain(name != "tcp")
    eventually(lambda: not served_by_lane(daemon), "connections of tests before this one have ended")
    yield daemon
    daemon.check_log()


@pytest.fixture
def mortal(make_daemon: MakeDaemon, service_name: str) -> Daemon:
    """A daemon that the test may end."""
    return make_daemon(tls={"enable": service_name != "tcp"})


@pytest.fixture
def new(own: Daemon, tmp_path: Path, request: pytest.FixtureRequest) -> MakeImage:
    def make(*arguments: Any, **fields: Any) -> Image:
        image = make_image(own, tmp_path)(*arguments, **fields)
        # Before the storage goes that was there when the image was made.
        request.node.addfinalizer(lambda: own.control("DELETE", f"/tickets/{image.ticket}"))
        return image

    return make


@pytest.fixture
def image(new: MakeImage) -> Image:
    return new(pattern(8 * MiB))


def served_by_lane(daemon: Daemon) -> bool:
    return "http-lane" in thread_names(daemon.pid)


def hand_over(connection: Connection, image: Image) -> Connection:
    """Send what makes the daemon hand the connection over to C."""
    assert connection.get(image.url, FIRST).status == 206
    return connection


def served(daemon: Daemon, service_name: str) -> tuple[int, int]:
    """Return how many requests of a service C has served, and Python."""
    service = SERVICES[service_name]
    return daemon.served(service, "lane")["requests"], daemon.served(service, "python")["requests"]


def assert_stopped_after_a_piece(content: bytes) -> None:
    """Check the image of an upload of x that stopped between its first and second MiB.

    What comes slowly is written as it comes, in whole pages; on a busy machine a part of the second MiB, too.
    """
    end = (len(content) - len(content.lstrip(b"x"))) // 4096 * 4096
    assert MiB <= end < 2 * MiB
    assert content[end:] == pattern(8 * MiB)[end:]


# When


def test_connection_is_handed_over_with_its_first_request(own: Daemon, image: Image, service_name: str) -> None:
    with own.connect(service_name) as connection:
        connection.get(image.url, FIRST)
        assert served_by_lane(own)
    eventually(lambda: not served_by_lane(own), "the threads have ended")


@pytest.mark.parametrize(
    ("method", "fields", "body"),
    [("GET", {}, None), ("PUT", {}, b"x" * 5000), ("PATCH", {}, b'{"op": "flush"}')],
    ids=["GET", "PUT", "PATCH"],
)
def test_first_request_for_an_image_opens_it_and_is_served_by_c(
    own: Daemon, new: MakeImage, service_name: str, method: str, fields: dict[str, str], body: bytes | None
) -> None:
    image = new()
    assert not own.has_open(image.path)
    by_c, by_python = served(own, service_name)
    with own.connect(service_name) as connection:
        assert connection.request(method, image.url, fields, body).status == 200
    eventually(lambda: served(own, service_name) == (by_c + 1, by_python), "C has served it, and nobody else")


def test_first_request_is_refused_as_ever(own: Daemon, new: MakeImage, service_name: str) -> None:
    """In the order of the reasons: what it says, whether it may, whether there is an image, what that has."""
    missing, reading = new(), new(ops=["read"])
    missing.path.unlink()
    refusals = [
        ("PATCH", missing, {}, b"[1", 400),
        ("PUT", reading, {}, b"x", 403),
        ("PUT", missing, {"Content-Range": f"bytes {MiB}-*/*"}, b"x", 416),
        ("GET", missing, {}, None, 500),
        ("PATCH", missing, {}, b'{"op": "flush"}', 500),
        ("GET", new(), {"Range": f"bytes={MiB}-"}, None, 416),
    ]
    for method, image, fields, body, status in refusals:
        with own.connect(service_name) as connection:
            assert connection.request(method, image.url, fields, body).status == status, (method, fields)


def test_image_that_could_not_be_opened_is_tried_again(own: Daemon, image: Image, service_name: str) -> None:
    elsewhere = image.path.rename(image.path.with_suffix(".elsewhere"))
    with own.connect(service_name) as connection:
        assert connection.get(image.url, FIRST).status == 500
        elsewhere.rename(image.path)
        assert connection.get(image.url, FIRST).body == image.read(0, 10)
        assert served_by_lane(own)


@pytest.mark.parametrize("level", ["debug", "info"])
def test_level_of_the_log_does_not_choose_who_serves(make_daemon: MakeDaemon, tmp_path: Path, level: str) -> None:
    own = make_daemon(log={"level": level})
    with own.connect("tls") as connection:
        hand_over(connection, make_image(own, tmp_path)())
        assert served_by_lane(own)


def test_idle_connection_costs_no_thread_and_is_handed_over_again(own: Daemon, image: Image, service_name: str) -> None:
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        eventually(lambda: not served_by_lane(own), "it was given back")
        hand_over(connection, image)
        assert served_by_lane(own)


def test_half_a_head_is_given_back_with_the_connection(own: Daemon, image: Image, service_name: str) -> None:
    request = encode_request("GET", image.url, FIRST)
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        connection.send(request[:20])
        eventually(lambda: not served_by_lane(own), "it was given back")
        connection.send(request[20:])
        assert connection.receive().body == image.read(0, 10)


def test_head_that_comes_slowly_keeps_no_thread(own: Daemon, image: Image, service_name: str) -> None:
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        connection.send(f"GET {image.url} HTTP/1.1\r\nHost: ".encode())

        def given_back() -> bool:
            connection.send(b"x")
            return not served_by_lane(own)

        eventually(given_back, "it was given back")
        connection.send(b"\r\nRange: bytes=0-9\r\n\r\n")
        assert connection.receive().body == image.read(0, 10)


@pytest.mark.parametrize(
    "fields",
    [
        {"Referer": "https://ui.example.org/vms/1", "Accept-Language": "de,en;q=0.5", "DNT": "1"},
        {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "empty", "Sec-CH-UA": '"a";v="1"'},
        {
            "X-Forwarded-For": "192.0.2.1",
            "X-Forwarded-Proto": "https",
            "Forwarded": "for=192.0.2.1",
            "Via": "1.1 proxy",
        },
        {
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "tracestate": "a=1",
            "X-Request-Id": "7",
        },
        {
            "Cookie": "a=b; c",
            "Priority": "u=1",
            "!#$%&'*+-.^_`|~": "1",
            "X-Empty": "",
            "X-L1": "\xe9",
        },
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_fields_that_do_not_matter_leave_a_request_plain(
    own: Daemon, image: Image, service_name: str, fields: dict[str, str]
) -> None:
    with own.connect(service_name) as connection:
        for number in range(4):
            assert connection.get(image.url, FIRST | fields).body == image.read(0, 10)
            data = bytes([number]) * 5000
            assert connection.put(image.url, data, fields).status == 200
            assert image.read(0, 5000) == data
            assert connection.request("PATCH", image.url, fields, b'{"op": "zero", "size": 10}').status == 200
            assert served_by_lane(own) or not number


@pytest.mark.parametrize(
    "line",
    [
        "Access-Control-Request-Method: PUT",
        "Access-Control-Request-Headers: x",
        "Content-Encoding: identity",
        "Expect: 100-continue",
        "If-Match: *",
        'If-None-Match: "a"',
        'If-Range: "a"',
        "Upgrade: websocket",
        "Connection: Keep-Alive, x",
    ],
)
def test_fields_that_matter_are_answered_by_python(own: Daemon, image: Image, service_name: str, line: str) -> None:
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        name, _, value = line.partition(": ")
        assert connection.get(image.url, FIRST | {name: value}).body == image.read(0, 10)
        eventually(lambda: not served_by_lane(own), "the threads have ended")


@pytest.mark.parametrize(
    "line", ["X : 1", " X: 1", ": 1", "X", "X(): 1", "X\t: 1", "Tränsfer: 1", "Content-Length : 0"]
)
def test_a_line_that_is_no_field_is_refused_by_python(own: Daemon, image: Image, service_name: str, line: str) -> None:
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        connection.send(f"GET {image.url} HTTP/1.1\r\nHost: x\r\nRange: bytes=0-9\r\n{line}\r\n\r\n".encode())
        answer = connection.receive()
        assert (answer.status, answer.closes) == (400, True)


def test_other_requests_are_answered_in_their_order(
    own: Daemon, image: Image, new: MakeImage, service_name: str
) -> None:
    other = new(b"x" * 4096)
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        for url in (image.url, other.url) * 40:
            connection.send(encode_request("GET", url, FIRST))
        for _ in range(40):
            assert connection.receive().body == image.read(0, 10)
            assert connection.receive().body == b"x" * 10


# What is told


def test_bytes_are_counted_while_it_is_handed_over_and_after_that(own: Daemon, image: Image, service_name: str) -> None:
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        connection.put_at(image.url, 0, bytes(1000))
        connection.put_at(image.url, 500, bytes(1000))
        connection.patch(image.url, {"op": "zero", "offset": MiB, "size": MiB})
        assert served_by_lane(own)
        assert own.status(image.ticket)["transferred"] == 1500 + MiB
    eventually(lambda: not served_by_lane(own), "the threads have ended")
    assert own.status(image.ticket)["transferred"] == 1500 + MiB


def test_upload_is_active_until_it_is_answered(own: Daemon, image: Image, service_name: str) -> None:
    content = pattern(3 * MiB, seed=1)
    request = encode_request("PUT", image.url, None, content)
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        # A download is over a moment after its last byte was sent; anything else before it is answered.
        assert connection.patch(image.url, {"op": "flush"}).status == 200
        assert not own.status(image.ticket)["active"]
        connection.send(request[: 2 * MiB])
        eventually(lambda: own.status(image.ticket)["active"], "the request runs")
        eventually(lambda: own.status(image.ticket)["transferred"] >= MiB, "a piece is written")
        connection.send(request[2 * MiB :])
        assert connection.receive().status == 200
        assert not own.status(image.ticket)["active"]
        assert own.status(image.ticket)["connections"] == 1
    assert image.read(0, 3 * MiB) == content


def test_connection_is_summed_up_in_the_log(own: Daemon, image: Image, service_name: str) -> None:
    request, start = encode_request("GET", image.url, FIRST), own.log.end()
    with own.connect(service_name) as connection:
        sent = 0
        for _ in range(10):
            connection.send(request)
            answer = connection.receive()
            lines = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.fields)
            sent += len(f"HTTP/1.1 206 Partial Content\r\n{lines}\r\n") + 10
    own.log.wait_for(f"requests=10 received={10 * len(request)} sent={sent} ", start=start)


# Tickets


def test_request_renews_the_ticket(own: Daemon, image: Image, service_name: str) -> None:
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        own.extend(image.ticket, 20)
        assert connection.patch(image.url, {"op": "flush"}).status == 200
        assert own.status(image.ticket)["expires"] > time.monotonic() + 200


def test_running_upload_does_not_renew_a_ticket_that_was_ended(own: Daemon, image: Image, service_name: str) -> None:
    content = pattern(5 * MiB, seed=1)
    request = encode_request("PUT", image.url, None, content)
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        connection.send(request[: 2 * MiB])
        eventually(lambda: own.status(image.ticket)["transferred"] >= MiB, "a piece is written")
        own.extend(image.ticket, 0)
        connection.send(request[2 * MiB :])
        assert connection.receive().status == 200
        assert own.status(image.ticket)["expires"] <= time.monotonic()
        assert connection.get(image.url, FIRST).status == 403
    assert image.read(0, 5 * MiB) == content


def test_expired_ticket_is_refused(own: Daemon, image: Image, service_name: str) -> None:
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        own.extend(image.ticket, 0)
        answer = connection.put_at(image.url, 0, bytes(100))
        assert (answer.status, answer.closes) == (403, True)
    assert image.content() == pattern(8 * MiB)


def test_removed_ticket_is_refused(own: Daemon, image: Image, service_name: str) -> None:
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        own.remove(image.ticket)
        assert not own.has_open(image.path)
        assert connection.get(image.url, FIRST).status == 403


def test_upload_ends_when_its_ticket_is_removed(own: Daemon, image: Image, service_name: str) -> None:
    request = encode_request("PUT", image.url, None, b"x" * (5 * MiB))
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        connection.send(request[: 2 * MiB])
        eventually(lambda: own.status(image.ticket)["transferred"] >= MiB, "a piece is written")
        own.remove(image.ticket)
        content = image.content()
        assert connection.receive().status == 403
        connection.send_while_accepted(request[2 * MiB :])
        connection.end_sending()
        assert connection.is_closed()
    assert_stopped_after_a_piece(content)
    assert image.content() == content


@pytest.mark.parametrize("past", [MiB, 2**64, 10**23, 10**200])
def test_ranges_that_end_past_the_ticket_stay_in_a_lane(
    own: Daemon, new: MakeImage, service_name: str, past: int
) -> None:
    image = new(pattern(MiB), ops=["read"])
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        before = own.served_by_lane()
        for first in range(MiB - 10, MiB):
            answer = connection.get(image.url, {"Range": f"bytes={first}-{past}"})
            assert (answer.status, answer.headers["Content-Range"]) == (206, f"bytes {first}-{MiB - 1}/{MiB}")
            assert answer.body == image.read(first, MiB - first)
        assert served_by_lane(own)
        assert own.served_by_lane() == before + 10


def test_what_the_ticket_does_not_allow_is_refused(own: Daemon, new: MakeImage, service_name: str) -> None:
    image = new(pattern(MiB), ops=["read"], ticket_size=MiB // 2)
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        assert connection.get(image.url, {"Range": f"bytes={MiB // 2}-{MiB}"}).status == 416
        hand_over(connection, image)
        assert served_by_lane(own)
        assert connection.put_at(image.url, 0, b"x").status == 403
    assert image.content() == pattern(MiB)


# Storage and clients that fail


def test_failed_write_is_answered_and_the_connection_lives(
    own: Daemon, new: MakeImage, full_filesystem: Path, service_name: str
) -> None:
    image, start = new(path=full_filesystem), own.log.end()
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        assert served_by_lane(own)
        answer = connection.put(image.url, pattern(MiB))
        assert (answer.status, answer.code) == (507, "storage_full")
        own.log.wait_for(r"storage failed: .*\(ENOSPC\)", start=start)
        assert connection.get(image.url, FIRST).status == 206


def test_failed_write_is_answered_as_it_asks(
    own: Daemon, new: MakeImage, full_filesystem: Path, service_name: str
) -> None:
    image = new(path=full_filesystem)
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        assert served_by_lane(own)
        asks = {"Accept": "text/html, Application/JSON;q=0.9", "Origin": "https://ui"}
        answer = connection.put(image.url, pattern(MiB), asks)
        assert (answer.status, answer.json()["code"]) == (507, "storage_full")
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
        answer = connection.put(image.url, pattern(MiB))
        assert answer.text == "The storage of the image has no room left\n"
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_failed_write_of_a_long_body_ends_the_connection(
    own: Daemon, new: MakeImage, full_filesystem: Path, service_name: str
) -> None:
    image = new(path=full_filesystem, ticket_size=64 * MiB)
    with own.connect(service_name) as connection:
        assert connection.put(image.url, b"x").status in (200, 507)
        connection.send_while_accepted(
            encode_request("PATCH", image.url, None, b'{"op": "flush"}')
            + encode_request("PUT", image.url, None, bytes(40 * MiB))
        )
        assert connection.receive(to="PATCH").status == 200
        answer = connection.receive(to="PUT")
        assert (answer.status, answer.closes) == (507, True)


def test_flush_that_failed_once_fails_for_ever(
    own: Daemon, new: MakeImage, unwritable_device: Path, service_name: str
) -> None:
    image = new(path=unwritable_device)
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        with unwritable_device.open("r+b", buffering=0) as device:
            device.write(bytes(MiB))  # which the page cache takes
        assert connection.patch(image.url, {"op": "flush"}).status == 500
        for _ in range(2):
            hand_over(connection, image)
            assert served_by_lane(own)
            assert connection.patch(image.url, {"op": "flush"}).status == 500
        assert connection.put(f"{image.url}?flush=y", b"").status == 500


def test_download_that_fails_after_its_head_is_cut(own: Daemon, image: Image, service_name: str) -> None:
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        start = own.log.end()
        os.truncate(image.path, 4 * MiB)  # as another program may
        connection.send(encode_request("GET", image.url, {"Range": f"bytes=0-{8 * MiB - 1}"}))
        with pytest.raises(DisconnectedError):
            connection.receive()
        own.log.wait_for("the image got shorter: .*4194304 bytes", start=start)
        own.log.wait_for("connection ended .*reason=cut", start=start)


def test_download_that_fails_before_its_head_is_answered(own: Daemon, image: Image, service_name: str) -> None:
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        os.truncate(image.path, 4 * MiB)
        answer = connection.get(image.url, {"Range": f"bytes={5 * MiB}-{6 * MiB}"})
        assert (answer.status, answer.headers["Content-Range"]) == (416, f"bytes */{4 * MiB}")
        assert connection.get(image.url, FIRST).body == pattern(10)


def test_body_that_ends_early_is_the_clients_error(own: Daemon, image: Image, service_name: str) -> None:
    start = own.log.end()
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        connection.send(encode_request("PUT", image.url, None, b"x" * (3 * MiB))[: 2 * MiB])
        eventually(lambda: own.status(image.ticket)["transferred"] >= MiB, "a piece is written")
        connection.end_sending()
        answer = connection.receive()
        assert (answer.status, answer.code) == (400, "truncated_request")
        assert connection.is_closed()
    assert_stopped_after_a_piece(image.content())
    assert own.log.find(r" ERROR ", start=start) is None


def test_client_that_vanishes_in_an_upload_leaves_whole_pages_of_what_it_sent(
    own: Daemon, image: Image, service_name: str
) -> None:
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        connection.send(encode_request("PUT", image.url, None, b"x" * (3 * MiB))[: 2 * MiB])
        eventually(lambda: own.status(image.ticket)["transferred"] >= MiB, "a piece is written")
        connection.reset()
    eventually(lambda: own.status(image.ticket)["connections"] == 0, "the connection has ended")
    assert not own.status(image.ticket)["active"]
    assert_stopped_after_a_piece(image.content())


def test_client_that_does_not_read_is_left(own: Daemon, new: MakeImage, service_name: str) -> None:
    image, start = new(pattern(8 * MiB), inactivity_timeout=1), own.log.end()
    with own.connect(service_name) as connection:
        hand_over(connection, image)
        connection.send(encode_request("GET", image.url, {"Range": f"bytes=0-{8 * MiB - 1}"}))
        own.log.wait_for("connection ended .*reason=inactivity", start=start)


# The end of the server


def test_server_stops_while_a_connection_is_handed_over(mortal: Daemon, tmp_path: Path, service_name: str) -> None:
    image = make_image(mortal, tmp_path)()
    with mortal.connect(service_name) as connection:
        hand_over(connection, image)
        mortal.stop(timeout=5)
        assert connection.is_closed()


def test_request_that_runs_is_finished_when_the_server_stops(mortal: Daemon, tmp_path: Path, service_name: str) -> None:
    image, content = make_image(mortal, tmp_path)(pattern(8 * MiB)), pattern(3 * MiB, seed=1)
    request = encode_request("PUT", image.url, None, content)
    with mortal.connect(service_name) as connection:
        hand_over(connection, image)
        connection.send(request[: 2 * MiB])
        eventually(lambda: mortal.status(image.ticket)["transferred"] >= MiB, "a piece is written")
        mortal.send_signal(signal.SIGTERM)
        mortal.log.wait_for("stopping")
        connection.send(request[2 * MiB :])
        assert connection.receive().status == 200
        assert connection.is_closed()
    assert mortal.wait() == 0
    assert image.read(0, 3 * MiB) == content
