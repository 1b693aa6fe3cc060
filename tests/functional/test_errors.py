# SPDX-License-Identifier: Apache-2.0
"""Errors: their form, which of them keep the connection, and which come first."""

import json

import pytest

import imageio_daemon
from tests.support.daemon import Daemon
from tests.support.http_client import Answer, Connection, encode_request
from tests.support.images import Image, MakeImage, MiB, pattern
from tests.support.places import Trait, needs
from tests.support.services import Connect


def check_form(answer: Answer) -> None:
    assert answer.headers["Content-Type"] == "text/plain; charset=UTF-8"
    assert answer.text.endswith("\n")
    assert answer.text.count("\n") == 1
    assert len(answer.text) > 1


# Form


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status"),
    [
        ("GET", "/", {}, None, 404),
        ("GET", "/images", {}, None, 404),
        ("GET", "/images/", {}, None, 400),
        ("GET", "{url}/", {}, None, 404),
        ("GET", "{url}/unknown", {}, None, 404),
        ("GET", "{url}/extents/more", {}, None, 404),
        ("GET", "/nothing/here", {}, None, 404),
        ("POST", "{url}", {}, b"x", 405),
        ("DELETE", "{url}", {}, None, 405),
        ("BREW", "{url}", {}, None, 405),
        ("POST", "/info/", {}, b"x", 405),
        ("GET", "{url}", {"Range": "bytes=x"}, None, 416),
        ("PUT", "{url}", {"Content-Range": "x"}, b"x", 400),
        ("PUT", "{url}?flush=x", {}, b"x", 400),
        ("PATCH", "{url}", {}, b"x", 400),
        ("PATCH", "{url}", {}, b'{"op": "zero", "size": 99999999}', 416),
        ("GET", "/images/unknown", {}, None, 403),
    ],
)
def test_an_error_is_one_line_of_text(
    client: Connection, image: Image, method: str, path: str, headers: dict[str, str], body: bytes | None, status: int
) -> None:
    answer = client.request(method, path.format(url=image.url), headers, body)
    assert answer.status == status
    check_form(answer)
    assert image.ticket not in answer.text


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("{url}", "OPTIONS,GET,HEAD,PUT,PATCH"), ("{url}/extents", "OPTIONS,GET"), ("/info/", "OPTIONS,GET")],
)
def test_a_method_that_is_not_allowed_is_told_the_others(
    client: Connection, image: Image, path: str, allowed: str
) -> None:
    answer = client.request("DELETE", path.format(url=image.url))
    assert answer.status == 405
    told = {method.strip() for method in answer.headers["Allow"].split(",")}
    assert {"GET"} <= told <= set(allowed.split(",")) | {"HEAD"}


@pytest.mark.parametrize(
    "path", ["/images/", "/images//extents", "/images/x", "/images/x/", "/images/x/y/z", "{url}", "/info/"]
)
@pytest.mark.parametrize("method", ["BREW", "POST", "DELETE"])
def test_a_method_that_nothing_knows_is_not_allowed_anywhere(
    client: Connection, image: Image, method: str, path: str
) -> None:
    answer = client.request(method, path.format(url=image.url))
    assert answer.status == 405
    assert "Allow" in answer.headers


@pytest.mark.parametrize("path", ["/", "/images", "/nothing", "/tickets/x"])
def test_a_method_that_is_unknown_is_not_allowed_where_there_is_nothing(client: Connection, path: str) -> None:
    answer = client.request("BREW", path)
    assert (answer.status, answer.headers["Allow"]) == (405, "")


@pytest.mark.parametrize("path", ["/images/", "/images//extents"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "PATCH"])
def test_an_empty_id_is_refused_for_what_it_is(client: Connection, method: str, path: str) -> None:
    assert client.request(method, path, None, b"" if method in ("PUT", "PATCH") else None).status == 400


@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS"])
def test_all_reasons_for_no_access_look_the_same(
    daemon: Daemon, connect: Connect, new_image: MakeImage, method: str
) -> None:
    expired, removed = new_image(timeout=0), new_image()
    daemon.remove(removed.ticket)
    body = b"x" if method == "PUT" else None
    answers = {connect().request(method, url, None, body).text for url in ("/images/unknown", expired.url, removed.url)}
    assert len(answers) == 1
    assert answers.pop().startswith("You are not allowed to access this resource")


@pytest.mark.unopened
@needs(Trait.NAMED)
def test_an_error_of_the_server_tells_no_detail(client: Connection, new_image: MakeImage) -> None:
    image = new_image()
    image.path.unlink()
    answer = client.get(image.url)
    assert answer.status == 500
    check_form(answer)
    assert str(image.path) not in answer.text
    assert "errno" not in answer.text.lower()


@pytest.mark.unopened
@needs(Trait.NAMED, Trait.OWN)
def test_the_detail_of_an_error_of_the_server_is_in_the_log(
    client: Connection, new_image: MakeImage, daemon: Daemon
) -> None:
    start = daemon.log.end()
    image = new_image()
    image.path.unlink()
    assert client.get(image.url).status == 500
    daemon.log.wait_for(r"open.*ENOENT|ENOENT.*open", start=start)


# The connection


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status"),
    [
        ("GET", "{url}", {"Range": "bytes=x"}, None, 416),
        ("GET", "{url}", {"Range": "bytes=99999999-"}, None, 416),
        ("GET", "{url}/extents?context=x", {}, None, 400),
        ("GET", "{url}/extents?context=dirty", {}, None, 404),
        ("GET", "{url}/unknown", {}, None, 404),
        ("GET", "/unknown", {}, None, 404),
        ("DELETE", "{url}", {}, None, 405),
        ("PATCH", "{url}", {}, b"x", 400),
        ("PATCH", "{url}", {}, b'{"op": "zero", "size": 99999999}', 416),
        ("PUT", "{url}", {"Content-Length": "0", "Content-Range": "x"}, b"", 400),
    ],
)
def test_an_error_with_nothing_unread_keeps_the_connection(
    client: Connection, image: Image, method: str, path: str, headers: dict[str, str], body: bytes | None, status: int
) -> None:
    answer = client.request(method, path.format(url=image.url), headers, body)
    assert (answer.status, answer.closes) == (status, False)
    assert client.get(image.url).body == image.content()


@pytest.mark.unopened
@needs(Trait.NAMED)
def test_an_error_of_the_server_keeps_the_connection(client: Connection, image: Image, new_image: MakeImage) -> None:
    missing = new_image()
    missing.path.unlink()
    for method, body in (("GET", None), ("PATCH", b'{"op": "flush"}')):
        answer = client.request(method, missing.url, None, body)
        assert (answer.status, answer.closes) == (500, False)
    assert client.get(image.url).status == 200


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/images/unknown", {}, 403),
        ("{url}", {"Content-Range": "nonsense"}, 400),
        ("{url}?flush=maybe", {}, 400),
        ("{url}", {"Content-Range": "bytes 99999999-*/*"}, 416),
        ("{url}", {"Content-Encoding": "gzip"}, 415),
        ("{url}/extents", {}, 405),
        ("{url}/unknown", {}, 404),
    ],
)
def test_a_refusal_before_the_body_closes_and_can_be_read_by_a_client_that_goes_on_sending(
    client: Connection, image: Image, path: str, headers: dict[str, str], status: int
) -> None:
    before = image.content()
    size = 32 * MiB
    head = encode_request("PUT", path.format(url=image.url), headers | {"Content-Length": str(size)}, b"")
    client.send(head)
    assert client.send_while_accepted(bytes(size)) == size, "the body is taken and thrown away"
    answer = client.receive()
    assert (answer.status, answer.closes) == (status, True)
    assert client.is_closed()
    assert image.content() == before


def test_a_refusal_comes_before_the_body(client: Connection) -> None:
    client.send(encode_request("PUT", "/images/unknown", {"Content-Length": str(MiB)}, b""))
    assert client.receive().status == 403


def test_a_refused_client_is_not_waited_for_long(client: Connection) -> None:
    client.send(encode_request("PUT", "/images/unknown", {"Content-Length": str(MiB)}, b""))
    assert client.receive().status == 403
    assert client.is_closed(timeout=5)


def test_a_refused_body_is_read_to_64_mib_only(client: Connection) -> None:
    size = 1024 * MiB
    client.send(encode_request("PUT", "/images/unknown", {"Content-Length": str(size)}, b""))
    assert client.receive().status == 403
    assert client.send_while_accepted(bytes(size // 4)) < 128 * MiB


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "OPTIONS"])
def test_no_access_always_closes(client: Connection, method: str) -> None:
    body = {"PUT": b"", "PATCH": b'{"op": "flush"}'}.get(method)
    answer = client.request(method, "/images/unknown", None, body)
    assert (answer.status, answer.closes) == (403, True)
    assert client.is_closed()


# What comes first


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status"),
    [
        ("GET", "/images/unknown", {"Range": "bytes=x"}, None, 416),
        ("PUT", "/images/unknown", {"Content-Range": "x"}, b"x", 400),
        ("PUT", "/images/unknown?flush=x", {}, b"x", 400),
        ("PATCH", "/images/unknown", {}, b"x", 400),
        ("PATCH", "/images/unknown", {}, b'{"op": "zero"}', 400),
        ("GET", "/images/unknown/extents?context=x", {}, None, 400),
        ("GET", "/images/unknown/checksum?algorithm=x", {}, None, 400),
        ("GET", "/images/unknown/checksum?block_size=1", {}, None, 400),
    ],
)
def test_a_malformed_request_comes_before_no_access(
    client: Connection, method: str, path: str, headers: dict[str, str], body: bytes | None, status: int
) -> None:
    assert client.request(method, path, headers, body).status == status


@pytest.mark.parametrize(
    ("method", "headers", "body"),
    [
        ("GET", {"Range": "bytes=99999999-"}, None),
        ("PUT", {"Content-Range": "bytes 99999999-*/*"}, b"x"),
        ("PATCH", {}, json.dumps({"op": "zero", "size": 99999999}).encode()),
    ],
)
def test_no_access_comes_before_the_range(
    client: Connection, new_image: MakeImage, method: str, headers: dict[str, str], body: bytes | None
) -> None:
    assert client.request(method, new_image(ops=[]).url, headers, body).status == 403


# /info/


def test_info_tells_the_version(daemon: Daemon) -> None:
    with daemon.connect("tls") as connection:
        answer = connection.get("/info/")
    assert answer.status == 200
    assert answer.json() == {"version": imageio_daemon.__version__}


@pytest.mark.every_kind
def test_after_an_error_the_body_of_the_next_request_is_not_mixed_up(client: Connection, image: Image) -> None:
    content = pattern(MiB, seed=4)
    for _ in range(3):
        assert client.patch(image.url, {"op": "nonsense"}).status == 400
        assert client.put(image.url, content).status == 200
    assert image.content() == content
