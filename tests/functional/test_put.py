# SPDX-License-Identifier: Apache-2.0
"""PUT: the body is written at its place, and nothing else."""

import gzip

import pytest

from tests.support import malformed
from tests.support.daemon import Daemon
from tests.support.http_client import Connection, encode_request
from tests.support.images import Image, MakeImage, MiB, pattern
from tests.support.places import Trait, needs
from tests.support.services import Connect

NEW = pattern(MiB, seed=1)


def changed(before: bytes, offset: int, data: bytes) -> bytes:
    return before[:offset] + data + before[offset + len(data) :]


def test_a_body_without_a_range_is_written_at_0(client: Connection, image: Image) -> None:
    before = image.content()
    answer = client.put(image.url, NEW[:5000])
    assert (answer.status, answer.body, answer.headers["Content-Length"]) == (200, b"", "0")
    assert image.content() == changed(before, 0, NEW[:5000])


@pytest.mark.every_kind
def test_a_whole_image(client: Connection, image: Image) -> None:
    assert client.put(image.url, NEW).status == 200
    assert image.content() == NEW


@pytest.mark.every_kind
def test_a_body_of_many_buffers(client: Connection, new_image: MakeImage) -> None:
    content = pattern(40 * MiB + 333, seed=2)
    image = new_image(size=len(content))
    assert client.put(image.url, content).status == 200
    assert image.content() == content


@pytest.mark.every_kind
@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, 1), (1, 1), (511, 2), (4095, 2), (4096, 4096), (100, 10_000), (MiB - 1, 1), (65_535, 65_537), (0, MiB)],
)
def test_a_body_is_written_where_its_range_begins(client: Connection, image: Image, offset: int, length: int) -> None:
    before = image.content()
    assert client.put_at(image.url, offset, NEW[:length]).status == 200
    assert image.content() == changed(before, offset, NEW[:length])


@pytest.mark.parametrize(
    "value",
    [
        "bytes 100-104/*",
        "bytes 100-*/*",
        "bytes 100-104/1048576",
        "bytes 100-*/1048576",
        # LAST need not match the length.
        "bytes 100-100/*",
        "bytes 100-9999/*",
        "bytes 100-104/105",
    ],
)
def test_the_first_byte_counts(client: Connection, image: Image, value: str) -> None:
    before = image.content()
    assert client.put(image.url, b"12345", {"Content-Range": value}).status == 200
    assert image.content() == changed(before, 100, b"12345")


@pytest.mark.parametrize(
    "value",
    malformed.CONTENT_RANGES,
)
def test_a_malformed_content_range_writes_nothing(client: Connection, image: Image, value: str) -> None:
    before = image.content()
    answer = client.put(image.url, b"1234567890", {"Content-Range": value})
    assert answer.status == 400
    assert image.content() == before


def test_content_range_twice_is_refused(client: Connection, image: Image) -> None:
    before = image.content()
    head = f"PUT {image.url} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n"
    client.send(f"{head}Content-Range: bytes 0-0/*\r\nContent-Range: bytes 9-9/*\r\n\r\nx".encode())
    assert client.receive().status == 400
    assert image.content() == before


@pytest.mark.every_kind
@pytest.mark.parametrize(
    "value",
    [
        f"bytes {MiB}-*/*",
        f"bytes {MiB - 9}-*/*",
        f"bytes {2**62}-*/*",
        f"bytes {2**63}-*/*",
        f"bytes {2**64}-*/*",
        "bytes 99999999999999999999999999-*/*",
    ],
)
def test_a_range_outside_of_the_ticket_writes_nothing(client: Connection, image: Image, value: str) -> None:
    before = image.content()
    answer = client.put(image.url, b"1234567890", {"Content-Range": value})
    assert answer.status == 416
    assert answer.headers["Content-Range"] == f"bytes */{MiB}"
    assert image.content() == before


def test_the_last_byte_of_the_ticket_can_be_written(client: Connection, image: Image) -> None:
    assert client.put_at(image.url, MiB - 10, b"1234567890").status == 200
    assert image.content()[-11:].endswith(b"1234567890")


@pytest.mark.every_kind
def test_a_ticket_smaller_than_the_image_protects_the_rest(connect: Connect, new_image: MakeImage) -> None:
    image = new_image(ticket_size=1000)
    before = image.content()
    assert connect().put_at(image.url, 999, b"12").status == 416
    assert connect().put_at(image.url, 998, b"12").status == 200
    assert image.content() == changed(before, 998, b"12")


@pytest.mark.every_kind
@needs(Trait.GROWS)
def test_a_ticket_larger_than_a_file_lets_it_grow(client: Connection, new_image: MakeImage) -> None:
    image = new_image(b"start", ticket_size=MiB)
    assert client.put_at(image.url, 10_000, b"end").status == 200
    assert image.content() == b"start" + bytes(9995) + b"end"


@pytest.mark.every_kind
def test_an_image_of_odd_size_keeps_it(client: Connection, new_image: MakeImage) -> None:
    image = new_image(NEW[:10_001])
    assert client.put_at(image.url, 9_000, NEW[:1001]).status == 200
    assert image.content() == NEW[:9_000] + NEW[:1001]


# flush, close and other queries


@pytest.mark.parametrize("query", ["", "?flush=y", "?flush=n", "?unknown=1", "?flush=n&unknown", "?flush=x&flush=n"])
def test_a_body_is_written_with_any_query(client: Connection, image: Image, query: str) -> None:
    assert client.put(image.url + query, b"hello").status == 200
    assert image.read(0, 5) == b"hello"


@pytest.mark.parametrize(
    "query", ["?flush=x", "?flush=", "?flush=Y", "?flush=yes", "?flush=1", "?flush=n&flush=x", "?flush"]
)
def test_flush_is_y_or_n(client: Connection, image: Image, query: str) -> None:
    before = image.content()
    answer = client.put(image.url + query, b"hello")
    assert answer.status == 400
    assert image.content() == before


def test_close_asks_for_the_end_of_the_connection(client: Connection, image: Image) -> None:
    answer = client.put(image.url + "?close=y&flush=n", b"hello")
    assert (answer.status, answer.closes) == (200, True)
    assert client.is_closed()
    assert image.read(0, 5) == b"hello"


# The body


@pytest.mark.every_kind
def test_an_empty_body_is_fine(client: Connection, image: Image) -> None:
    before = image.content()
    assert client.put(image.url, b"").status == 200
    assert client.put(image.url, b"", {"Content-Range": "bytes 5-*/*"}).status == 200
    assert image.content() == before


def test_an_empty_body_at_the_end_of_the_ticket_is_fine(client: Connection, image: Image) -> None:
    assert client.put(image.url, b"", {"Content-Range": f"bytes {MiB}-*/*"}).status == 200


def test_a_body_without_a_length_is_refused(client: Connection, image: Image) -> None:
    before = image.content()
    client.send(f"PUT {image.url} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    answer = client.receive()
    assert answer.status == 400
    assert image.content() == before


@pytest.mark.every_kind
def test_a_chunked_body_is_written(client: Connection, image: Image) -> None:
    before = image.content()
    headers = {"Transfer-Encoding": "chunked", "Content-Range": "bytes 100-*/*"}
    client.send(encode_request("PUT", image.url, headers))
    for piece in (NEW[:1], NEW[1:5000]):
        client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
    rest = NEW[5000:200_000]
    client.send(b"%X;extension=1\r\n%b\r\n0\r\n\r\n" % (len(rest), rest))
    answer = client.receive()
    assert (answer.status, answer.closes) == (200, True)
    assert client.is_closed()
    assert image.content() == changed(before, 100, NEW[:200_000])


@needs(Trait.GROWS)
def test_a_chunked_body_that_leaves_the_ticket_is_refused(client: Connection, new_image: MakeImage) -> None:
    image = new_image(b"", ticket_size=1000)
    client.send(encode_request("PUT", image.url, {"Transfer-Encoding": "chunked"}))
    client.send(b"3e8\r\n" + bytes(1000) + b"\r\n1\r\nx\r\n0\r\n\r\n")
    assert client.receive().status == 416
    assert len(image.content()) <= 1000


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
def test_an_encoded_body_is_not_decoded_but_refused(client: Connection, image: Image, encoding: str) -> None:
    before = image.content()
    answer = client.put(image.url, gzip.compress(b"hello" * 1000), {"Content-Encoding": encoding})
    assert (answer.status, answer.code) == (415, "unsupported_encoding")
    assert image.content() == before


def test_the_encoding_identity_is_none(client: Connection, image: Image) -> None:
    assert client.put(image.url, b"hello", {"Content-Encoding": "identity"}).status == 200
    assert image.read(0, 5) == b"hello"


@pytest.mark.parametrize("content_type", ["application/octet-stream", "text/plain", "multipart/form-data", "nonsense"])
def test_the_type_of_the_body_does_not_matter(client: Connection, image: Image, content_type: str) -> None:
    assert client.put(image.url, b"hello", {"Content-Type": content_type}).status == 200


# Permission


def test_a_read_only_ticket_cannot_write(client: Connection, new_image: MakeImage) -> None:
    image = new_image(ops=["read"])
    before = image.content()
    answer = client.put(image.url, b"hello")
    assert (answer.status, answer.closes) == (403, True)
    assert answer.text.startswith("You are not allowed to access this resource")
    assert image.content() == before


def test_an_unknown_ticket_cannot_write(client: Connection) -> None:
    answer = client.put("/images/unknown", b"hello")
    assert (answer.status, answer.closes) == (403, True)
    assert client.is_closed()


@pytest.mark.every_kind
def test_writing_and_reading_on_many_connections(connect: Connect, new_image: MakeImage, daemon: Daemon) -> None:
    image = new_image(size=8 * MiB)
    connections = [connect() for _ in range(8)]
    for number, connection in enumerate(connections):
        connection.send(
            encode_request("PUT", image.url, {"Content-Range": f"bytes {number * MiB}-*/*"}, pattern(MiB, seed=number))
        )
    assert [connection.receive().status for connection in connections] == [200] * 8
    assert image.content() == b"".join(pattern(MiB, seed=number) for number in range(8))
    assert daemon.status(image.ticket)["connections"] == 8
