# SPDX-License-Identifier: Apache-2.0
"""Requests as bytes: in pieces, one after the other, with two meanings, too long, too short, never ending."""

import pytest

from tests.support import malformed
from tests.support.daemon import Daemon
from tests.support.http_client import Connection, DisconnectedError, encode_request
from tests.support.images import Image, MakeImage, MiB, pattern
from tests.support.services import Connect

# Pieces


def requests_of_every_kind(image: Image) -> list[tuple[bytes, str, int]]:
    """Return (request, method, expected status)."""
    return [
        (encode_request("PUT", f"{image.url}?flush=n", {"Content-Range": "bytes 10-14/*"}, b"hello"), "PUT", 200),
        (encode_request("PATCH", image.url, None, b'{"op": "zero", "offset": 0, "size": 5}'), "PATCH", 200),
        (encode_request("GET", image.url, {"Range": "bytes=8-15"}), "GET", 206),
        (encode_request("OPTIONS", image.url), "OPTIONS", 200),
        (encode_request("HEAD", image.url), "HEAD", 200),
        (encode_request("GET", f"{image.url}/extents"), "GET", 200),
        (encode_request("PATCH", image.url, None, b"nonsense"), "PATCH", 400),
        (encode_request("PUT", f"{image.url}?flush=n", None, b"abc"), "PUT", 200),
    ]


def in_chunks(image: Image) -> bytes:
    """Return a request that is its connection's last."""
    return encode_request("PUT", image.url, {"Transfer-Encoding": "chunked"}) + b"2\r\nxy\r\n1;a=b\r\nz\r\n0\r\n\r\n"


def test_a_request_may_be_split_at_every_byte(client: Connection, image: Image) -> None:
    for request, method, status in requests_of_every_kind(image):
        for at in range(1, len(request)):
            client.send(request[:at])
            client.send(request[at:])
            answer = client.receive(to=method)
            assert answer.status == status, (method, at)
    assert image.read(0, 5) == b"abc\0\0"
    assert image.read(10, 5) == b"hello"


def test_a_request_may_come_byte_by_byte(client: Connection, image: Image) -> None:
    for request, method, status in requests_of_every_kind(image):
        for at in range(len(request)):
            client.send(request[at : at + 1])
        assert client.receive(to=method).status == status, method


@pytest.mark.parametrize("step", [1, 2, 5])
def test_a_body_in_chunks_may_come_in_pieces(client: Connection, image: Image, step: int) -> None:
    request = in_chunks(image)
    for at in range(0, len(request), step):
        client.send(request[at : at + step])
    answer = client.receive(to="PUT")
    assert (answer.status, answer.closes) == (200, True)
    assert client.is_closed()
    assert image.read(0, 3) == b"xyz"


def test_pipelined_requests_are_answered_in_order(client: Connection, image: Image) -> None:
    content = image.content()
    client.send(
        b"".join(encode_request("GET", image.url, {"Range": f"bytes={at}-{at + 9}"}) for at in range(0, 1000, 10))
    )
    for at in range(0, 1000, 10):
        assert client.receive().body == content[at : at + 10]


@pytest.mark.every_kind
def test_pipelined_writes_and_reads_take_effect_in_order(client: Connection, image: Image) -> None:
    requests = requests_of_every_kind(image)
    client.send(b"".join(request for request, _, _ in requests) * 3)
    for _ in range(3):
        assert [client.receive(to=method).status for _, method, _ in requests] == [s for _, _, s in requests]
    assert image.read(0, 5) == b"abc\0\0"


def test_a_long_request_behind_a_body_that_pauses_is_served(client: Connection, image: Image) -> None:
    start, content = 4096, pattern(MiB // 2, seed=1)
    first = encode_request("PUT", f"{image.url}?flush=n", {"Content-Range": "bytes 0-99/*"}, bytes(100))
    # C receives the start of this one with the rest of that body, and leaves it to Python.
    decided = {"Content-Range": f"bytes {start}-*/*", "If-Match": "*"}
    client.send(first[:-50])
    assert client.is_silent()
    client.send(first[-50:] + encode_request("PUT", f"{image.url}?flush=n", decided, content))
    assert [client.receive(to="PUT").status for _ in range(2)] == [200, 200]
    assert image.read(start, len(content)) == content


def test_pipelined_requests_after_an_error_are_served(client: Connection, image: Image) -> None:
    client.send(
        encode_request("GET", image.url, {"Range": "bytes=x"})
        + encode_request("PATCH", image.url, None, b"x")
        + encode_request("GET", image.url, {"Range": "bytes=0-3"})
    )
    assert [client.receive().status for _ in range(3)] == [416, 400, 206]


def test_nothing_is_served_after_a_connection_that_says_close(client: Connection, image: Image) -> None:
    before = image.content()
    client.send(
        encode_request("GET", image.url, {"Range": "bytes=0-3", "Connection": "close"})
        + encode_request("PUT", image.url, None, b"late")
    )
    assert client.receive().status == 206
    with pytest.raises(DisconnectedError):
        client.receive()
    assert image.content() == before


@pytest.mark.parametrize("fields", [{"Connection": "upgrade", "Upgrade": "websocket"}, {"Upgrade": "h2c"}])
def test_nothing_is_served_after_a_wish_to_upgrade(client: Connection, image: Image, fields: dict[str, str]) -> None:
    before = image.content()
    client.send(encode_request("GET", image.url, fields) + encode_request("PUT", image.url, None, b"late"))
    answer = client.receive()
    assert (answer.status, answer.closes) == (200, True)
    client.end_sending()  # or the server waits two seconds for more
    assert client.is_closed()
    assert image.content() == before


def test_nothing_is_served_after_a_body_in_chunks(client: Connection, image: Image) -> None:
    before = image.content()
    client.send(in_chunks(image) + encode_request("PUT", image.url, None, b"late"))
    assert client.receive(to="PUT").closes
    assert client.is_closed()
    assert image.content() == b"xyz" + before[3:]


def test_nothing_is_served_after_a_refusal(client: Connection, image: Image) -> None:
    before = image.content()
    client.send(
        encode_request("PUT", "/images/unknown", None, b"body") + encode_request("PUT", image.url, None, b"late")
    )
    assert client.receive().status == 403
    with pytest.raises(DisconnectedError):
        client.receive()
    assert image.content() == before


def test_the_next_request_may_come_with_the_end_of_a_body(client: Connection, image: Image) -> None:
    first = encode_request("PUT", image.url, None, pattern(200_000, seed=1))
    second = encode_request("PUT", image.url, {"Content-Range": "bytes 200000-*/*"}, pattern(200_000, seed=2))
    client.send(first[:150_000])
    client.send(first[150_000:] + second[:50])
    client.send(second[50:])
    assert [client.receive().status for _ in range(2)] == [200, 200]
    assert image.read(0, 400_000) == pattern(200_000, seed=1) + pattern(200_000, seed=2)


def test_empty_lines_before_a_request_are_ignored(client: Connection, image: Image) -> None:
    # RFC 9112 2.2: a server should ignore at least one empty line before the request line.
    client.send(b"\r\n" + encode_request("GET", image.url, {"Range": "bytes=0-3"}))
    assert client.receive().status == 206


# Requests with two meanings are refused: a proxy in front might see another request (request smuggling).


@pytest.mark.parametrize("fields", malformed.LENGTHS)
def test_a_request_with_two_meanings_writes_nothing_and_ends_the_connection(
    client: Connection, image: Image, fields: str
) -> None:
    before = image.content()
    client.send(f"PUT {image.url} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n\r\nhello".encode())
    answer = client.receive()
    assert answer.status in (400, 501)
    assert answer.closes
    client.end_sending()
    assert client.is_closed()
    assert image.content() == before


def test_two_equal_content_lengths_are_refused_or_taken_as_one(client: Connection, image: Image) -> None:
    # RFC 9112 6.3 allows both.
    before = image.content()
    client.send(f"PUT {image.url} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello".encode())
    status = client.receive().status
    assert status in (200, 400)
    assert image.content() == (b"hello" + before[5:] if status == 200 else before)


@pytest.mark.parametrize(
    "chunks",
    [
        b"x\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"+5\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello!\r\n0\r\n\r\n",
        b"5\r\nhell\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"5; x\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\r\n0\r\nno field\r\n\r\n",
        b"\r\nhello\r\n0\r\n\r\n",
        b"ffffffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        b"5" + b";x=" + b"y" * 100_000 + b"\r\nhello\r\n0\r\n\r\n",
    ],
)
def test_a_malformed_chunk_ends_the_connection(client: Connection, image: Image, daemon: Daemon, chunks: bytes) -> None:
    client.send(encode_request("PUT", image.url, {"Transfer-Encoding": "chunked"}))
    client.send_while_accepted(chunks)
    assert client.status_or_end() in (400, None)
    client.end_sending()
    assert client.is_closed()
    with daemon.connect("unix") as other:
        assert other.get(image.url).status == 200


# Heads


@pytest.mark.parametrize(
    "request_",
    [
        b"GET\r\n\r\n",
        b"GET /\r\n\r\n",
        b"/ HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET / http/1.1\r\n\r\n",
        b"GET  /  HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nNo colon\r\n\r\n",
        b"GET / HTTP/1.1\r\n: no name\r\n\r\n",
        b"GET / HTTP/1.1\r\nA b: c\r\n\r\n",
        b"G\x00T / HTTP/1.1\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,
        b"\xff" * 1000 + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_no_request_is_answered_400_and_ends_the_connection(client: Connection, request_: bytes) -> None:
    client.send_while_accepted(request_)
    client.end_sending()
    assert client.status_or_end() in (400, 404, 431, 505, None)
    assert client.is_closed()


def test_a_head_of_16_kib_is_read(client: Connection, image: Image) -> None:
    head = encode_request("GET", image.url, {"Range": "bytes=0-3", "X": ""})
    padding = 16 * 1024 - len(head)
    assert client.get(image.url, {"Range": "bytes=0-3", "X": "x" * padding}).status == 206


@pytest.mark.parametrize(
    "fields",
    [
        {"X": "x" * (17 * 1024)},
        {"X": "x" * MiB},
        {f"X-{number}": "x" * 100 for number in range(200)},
        {f"X-{number}": "x" * 100 for number in range(20_000)},
        {"x" * (17 * 1024): "x"},
    ],
    ids=["long value", "huge value", "many fields", "very many fields", "long name"],
)
def test_a_larger_head_is_refused(client: Connection, image: Image, fields: dict[str, str]) -> None:
    client.send_while_accepted(encode_request("GET", image.url, fields))
    answer = client.receive()
    assert (answer.status, answer.code, answer.closes) == (431, "head_too_large", True)
    client.end_sending()
    assert client.is_closed()


def test_a_larger_request_line_is_refused(client: Connection) -> None:
    client.send_while_accepted(encode_request("GET", "/images/" + "x" * (17 * 1024)))
    assert client.receive().status in (414, 431)
    client.end_sending()
    assert client.is_closed()


def test_a_head_without_end_is_refused_before_it_ends(client: Connection) -> None:
    client.send(b"GET / HTTP/1.1\r\n")
    client.send_while_accepted(b"X: y\r\n" * 2_000_000)
    assert client.status_or_end() in (431, None)
    client.end_sending()
    assert client.is_closed()


def test_a_line_of_8191_bytes_is_no_reason_to_refuse(client: Connection, image: Image) -> None:
    for length in (8189, 8190, 8191, 8192, 10_000):
        assert client.get(image.url, {"Range": "bytes=0-3", "X": "x" * length}).status == 206


# Bodies


def test_a_body_longer_than_declared_is_the_next_request(client: Connection, image: Image) -> None:
    before = image.content()
    client.send(encode_request("PUT", image.url, {"Content-Length": "5"}, b"hello, world\r\n\r\n"))
    assert client.receive().status == 200
    assert client.receive().status == 400
    assert client.is_closed()
    assert image.content() == b"hello" + before[5:]


@pytest.mark.every_kind
def test_a_body_shorter_than_declared_is_the_clients_error(client: Connection, image: Image, daemon: Daemon) -> None:
    start = daemon.log.end()
    before = image.content()
    client.send(encode_request("PUT", image.url, {"Content-Length": "100000"}, pattern(50_000, seed=3)))
    client.end_sending()
    assert client.status_or_end() in (400, None)
    assert client.is_closed()
    after = image.content()
    assert after[50_000:] == before[50_000:], "nothing but what was received may be written"
    assert daemon.log.find(r" ERROR ", start=start) is None, "it is not the server's error"
    with daemon.connect("unix") as other:
        assert other.get(image.url).status == 200


def test_a_json_body_shorter_than_declared_does_nothing(client: Connection, image: Image) -> None:
    before = image.content()
    operation = b'{"op": "zero", "size": 1000}'
    client.send(encode_request("PATCH", image.url, {"Content-Length": "100"}, operation))
    client.end_sending()
    assert client.status_or_end() in (400, None)
    assert image.content() == before


@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
def test_a_body_of_a_request_that_has_none_is_not_taken_for_a_request(
    client: Connection, image: Image, method: str
) -> None:
    before = image.content()
    hidden = encode_request("PUT", image.url, None, b"hidden")
    answer = client.request(method, image.url, None, hidden)
    assert answer.status in (200, 400)
    client.send_while_accepted(encode_request("GET", image.url))
    assert client.status_or_end() in (200, None)
    assert image.content() == before


# Expect: 100-continue


def test_a_permitted_upload_is_told_to_continue(client: Connection, image: Image) -> None:
    headers = {"Expect": "100-continue", "Content-Length": "5"}
    client.send(encode_request("PUT", image.url, headers, b""))
    assert client.receive().status == 100
    client.send(b"hello")
    assert client.receive().status == 200
    assert image.read(0, 5) == b"hello"
    assert client.get(image.url).status == 200


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/images/unknown", {}, 403),
        ("{url}", {"Content-Range": "x"}, 400),
        ("{url}", {"Content-Range": "bytes 9999999-*/*"}, 416),
        ("{url}/extents", {}, 405),
        ("/unknown", {}, 404),
    ],
)
def test_a_refused_upload_is_not_told_to_continue(
    client: Connection, image: Image, path: str, headers: dict[str, str], status: int
) -> None:
    headers = {"Expect": "100-continue", "Content-Length": "5"} | headers
    client.send(encode_request("PUT", path.format(url=image.url), headers, b""))
    answer = client.receive()
    assert (answer.status, answer.closes) == (status, True)
    client.end_sending()  # or the server waits two seconds for the body
    assert client.is_closed()


def test_a_client_that_does_not_wait_for_100_is_served(client: Connection, image: Image) -> None:
    client.send(encode_request("PUT", image.url, {"Expect": "100-continue"}, b"hello"))
    answer = client.receive()
    if answer.status == 100:
        answer = client.receive()
    assert answer.status == 200
    assert image.read(0, 5) == b"hello"


def test_a_patch_may_expect_100(client: Connection, image: Image) -> None:
    body = b'{"op": "flush"}'
    client.send(encode_request("PATCH", image.url, {"Expect": "100-continue", "Content-Length": str(len(body))}, b""))
    assert client.receive().status == 100
    client.send(body)
    assert client.receive().status == 200


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_a_client_of_http_1_0_is_not_told_to_continue(client: Connection, image: Image, method: str) -> None:
    # RFC 9110 10.1.1: it would take 100 for the answer.
    body = b'{"op": "flush"}'
    head = f"{method} {image.url} HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
    client.send(head.encode())
    assert client.is_silent()
    client.send(body)
    assert client.receive().status == 200
    assert client.is_closed()


def test_another_expectation_is_refused_or_ignored(client: Connection, image: Image) -> None:
    # RFC 9110 10.1.1 allows both.
    client.send(encode_request("PUT", image.url, {"Expect": "200-ok"}, b"hello"))
    assert client.receive().status in (200, 417)


# Many at once


@pytest.mark.every_kind
def test_connections_do_not_see_each_others_bytes(connect: Connect, new_image: MakeImage) -> None:
    images = [new_image(pattern(50_000, seed=seed)) for seed in range(8)]
    connections = [connect() for _ in images]
    requests = [encode_request("GET", image.url) for image in images]
    for at in range(0, max(map(len, requests)), 7):
        for connection, request in zip(connections, requests, strict=True):
            if piece := request[at : at + 7]:
                connection.send(piece)
    for seed, connection in enumerate(connections):
        assert connection.receive().body == pattern(50_000, seed=seed)
