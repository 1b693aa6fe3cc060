# SPDX-License-Identifier: Apache-2.0
"""GET and HEAD of an image."""

import os

import aiohttp.multipart
import pytest

from tests.support import malformed
from tests.support.daemon import Daemon
from tests.support.http_client import Connection, encode_request
from tests.support.images import MakeImage, MiB, pattern
from tests.support.places import Trait, needs

CONTENT = pattern(10_000)


@pytest.mark.every_kind
def test_the_whole_image(client: Connection, new_image: MakeImage) -> None:
    answer = client.get(new_image(CONTENT).url)
    assert answer.status == 200
    assert answer.body == CONTENT
    assert answer.headers["Content-Length"] == "10000"
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Accept-Ranges"] == "bytes"
    assert "Content-Range" not in answer.headers


@pytest.mark.every_kind
def test_an_image_of_many_buffers(client: Connection, new_image: MakeImage) -> None:
    content = pattern(20 * MiB + 777)
    assert client.get(new_image(content).url).body == content


@pytest.mark.every_kind
def test_an_empty_image(client: Connection, new_image: MakeImage) -> None:
    answer = client.get(new_image(b"").url)
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize("ops", [["read"], ["write"], ["read", "write"]], ids=str)
def test_a_ticket_that_may_write_may_read(client: Connection, new_image: MakeImage, ops: list[str]) -> None:
    assert client.get(new_image(CONTENT, ops=ops).url).body == CONTENT


@pytest.mark.every_kind
@pytest.mark.parametrize(
    ("value", "first", "last"),
    [
        ("bytes=0-9999", 0, 9999),
        ("bytes=0-0", 0, 0),
        ("bytes=9999-9999", 9999, 9999),
        ("bytes=4095-4097", 4095, 4097),
        ("bytes=512-", 512, 9999),
        ("bytes=0-", 0, 9999),
        ("bytes=9999-", 9999, 9999),
        ("bytes=-1", 9999, 9999),
        ("bytes=-9999", 1, 9999),
        ("bytes=-10000", 0, 9999),
        # RFC 9110 14.1.2: a suffix longer than the representation is all of it.
        ("bytes=-20000", 0, 9999),
        # RFC 9110 14.1.2: a range that ends past the representation is its remainder, and numbers have any length.
        ("bytes=0-10000", 0, 9999),
        ("bytes=9999-10000", 9999, 9999),
        ("bytes=8192-12287", 8192, 9999),
        (f"bytes=0-{2**63 - 1}", 0, 9999),
        (f"bytes=1-{2**63}", 1, 9999),
        (f"bytes=2-{2**64 - 1}", 2, 9999),
        (f"bytes=3-{2**64}", 3, 9999),
        (f"bytes=4-{2**64 + 10}", 4, 9999),
        (f"bytes=5-{'9' * 23}", 5, 9999),
        (f"bytes=6-{'9' * 8000}", 6, 9999),
        (f"bytes=7-{'0' * 8000}8", 7, 8),
        (f"bytes=-{'9' * 8000}", 0, 9999),
        # RFC 9110 14.1: range units are case-insensitive, lists may have optional white space.
        ("BYTES=0-99", 0, 99),
        ("bytes= 0-99", 0, 99),
        ("bytes=0-99 ", 0, 99),
        ("bytes=007-0099", 7, 99),
    ],
)
def test_a_range(client: Connection, new_image: MakeImage, value: str, first: int, last: int) -> None:
    answer = client.get(new_image(CONTENT).url, {"Range": value})
    assert answer.status == 206
    assert answer.headers["Content-Range"] == f"bytes {first}-{last}/10000"
    assert answer.headers["Content-Length"] == str(last - first + 1)
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.body == CONTENT[first : last + 1]


@pytest.mark.every_kind
@pytest.mark.parametrize(
    "value",
    [
        "bytes=10000-",
        "bytes=10000-10000",
        "bytes=20000-30000",
        f"bytes=10000-{2**64}",
        f"bytes={2**64}-",
        f"bytes={2**64}-{2**64}",
        f"bytes={'9' * 8000}-",
        "bytes=-0",
    ],
)
def test_a_range_outside_of_the_image(client: Connection, new_image: MakeImage, value: str) -> None:
    image = new_image(CONTENT)
    answer = client.get(image.url, {"Range": value})
    assert answer.status == 416
    assert answer.headers["Content-Range"] == "bytes */10000"
    assert client.get(image.url).body == CONTENT, "the connection stays usable"


@pytest.mark.parametrize("ops", [["read"], ["write"], ["read", "write"]], ids=str)
def test_each_ticket_has_ranges_cut_at_the_end(client: Connection, new_image: MakeImage, ops: list[str]) -> None:
    image = new_image(CONTENT, ops=ops)
    for first in range(9000, 10_000, 100):
        answer = client.get(image.url, {"Range": f"bytes={first}-{first + 4096}"})
        assert answer.headers["Content-Range"] == f"bytes {first}-{min(first + 4096, 9999)}/10000"
        assert answer.body == CONTENT[first : first + 4097]


@pytest.mark.parametrize(
    "value",
    malformed.RANGES,
)
def test_a_malformed_range(client: Connection, new_image: MakeImage, value: str) -> None:
    image = new_image(CONTENT)
    answer = client.get(image.url, {"Range": value})
    assert answer.status == 416
    assert client.get(image.url).body == CONTENT, "the connection stays usable"


@pytest.mark.every_kind
def test_a_ticket_smaller_than_the_image_serves_what_the_ticket_has(client: Connection, new_image: MakeImage) -> None:
    image = new_image(CONTENT, ticket_size=6000)
    assert client.get(image.url).body == CONTENT[:6000]
    answer = client.get(image.url, {"Range": "bytes=100-"})
    assert answer.headers["Content-Range"] == "bytes 100-5999/6000"
    answer = client.get(image.url, {"Range": "bytes=5000-6000"})
    assert (answer.status, answer.headers["Content-Range"]) == (206, "bytes 5000-5999/6000")
    assert answer.body == CONTENT[5000:6000]
    assert client.get(image.url, {"Range": "bytes=6000-"}).headers["Content-Range"] == "bytes */6000"


@pytest.mark.every_kind
@needs(Trait.EXACT)
def test_a_ticket_larger_than_the_image_serves_what_the_image_has(client: Connection, new_image: MakeImage) -> None:
    image = new_image(CONTENT, ticket_size=20_000)
    assert client.get(image.url).body == CONTENT
    answer = client.get(image.url, {"Range": "bytes=9000-"})
    assert (answer.status, answer.headers["Content-Range"]) == (206, "bytes 9000-9999/10000")
    answer = client.get(image.url, {"Range": "bytes=9000-15000"})
    assert (answer.status, answer.headers["Content-Range"]) == (206, "bytes 9000-9999/10000")
    answer = client.get(image.url, {"Range": "bytes=9000-20000"})
    assert (answer.status, answer.headers["Content-Range"]) == (206, "bytes 9000-9999/10000")
    assert answer.body == CONTENT[9000:]
    refused = client.get(image.url, {"Range": "bytes=10000-"})
    assert (refused.status, refused.headers["Content-Range"]) == (416, "bytes */10000")


@pytest.mark.every_kind
@needs(Trait.GROWS, Trait.RAW_FILE)
def test_an_image_that_grew_is_served_as_it_is_now(client: Connection, new_image: MakeImage) -> None:
    image = new_image(CONTENT, ticket_size=20_000)
    assert client.get(image.url).body == CONTENT
    with image.path.open("ab") as file:
        file.write(b"more")
    assert client.get(image.url).body == CONTENT + b"more"


@pytest.mark.parametrize(
    ("filename", "disposition"),
    [
        (None, "attachment"),
        ("disk.raw", "attachment; filename=disk.raw"),
        ("disk-1.RAW~", "attachment; filename=disk-1.RAW~"),
        ("my disk (1).raw", 'attachment; filename="my disk (1).raw"'),
        ("x; filename=y", 'attachment; filename="x; filename=y"'),
        ("a,b=c", 'attachment; filename="a,b=c"'),
        ('";x=y', "attachment; filename=\"_;x=y\"; filename*=UTF-8''%22%3Bx%3Dy"),
        ("C:\\a'b", "attachment; filename=\"C:_a'b\"; filename*=UTF-8''C%3A%5Ca%27b"),
        ("50%20.raw", "attachment; filename=\"50_20.raw\"; filename*=UTF-8''50%2520.raw"),
        ("ä", "attachment; filename=\"_\"; filename*=UTF-8''%C3%A4"),
    ],
)
def test_content_disposition(client: Connection, new_image: MakeImage, filename: str | None, disposition: str) -> None:
    image = new_image(CONTENT, **({"filename": filename} if filename else {}))
    assert client.get(image.url).headers["Content-Disposition"] == disposition


@pytest.mark.parametrize("ops", [["read"], ["write"]], ids=str)
@pytest.mark.parametrize("headers", [{}, {"Range": "bytes=0-9"}], ids=str)
def test_content_disposition_has_any_name(
    client: Connection, new_image: MakeImage, ops: list[str], headers: dict[str, str]
) -> None:
    image = new_image(CONTENT, ops=ops, filename="Größe 1 日本.img")
    assert client.get(image.url, headers).headers["Content-Disposition"] == (
        "attachment; filename=\"Gr__e 1 __.img\"; filename*=UTF-8''Gr%C3%B6%C3%9Fe%201%20%E6%97%A5%E6%9C%AC.img"
    )


@needs(Trait.HERE)
@pytest.mark.parametrize("name", ['"' * 1024, "ä" * 512, "a" * 1024, '"' * 512 + "ä" * 256])
def test_the_longest_names_stay_in_a_lane(client: Connection, daemon: Daemon, new_image: MakeImage, name: str) -> None:
    image = new_image(CONTENT, filename=name, ops=["read"])
    before = daemon.served_by_lane()
    for _ in range(3):
        answer = client.get(image.url)
        assert answer.body == CONTENT
        assert name_of(answer.headers["Content-Disposition"]) == name
    assert (daemon.served_by_lane() > before) == daemon.eager


@pytest.mark.parametrize(
    "name", ["a b", "a;b", 'a"b', "a'b", "a\\b", "a%41b", "äöü", "日本", "a\u00a0b", "😀.img", "*", "a=b"]
)
def test_programs_find_the_name_again(client: Connection, new_image: MakeImage, name: str) -> None:
    image = new_image(CONTENT, filename=name)
    assert name_of(client.get(image.url).headers["Content-Disposition"]) == name


def name_of(disposition: str) -> str | None:
    """Return the name, as the parser of somebody else finds it."""
    kind, parameters = aiohttp.multipart.parse_content_disposition(disposition)
    assert kind == "attachment"
    assert set(parameters) <= {"filename", "filename*"}
    return aiohttp.multipart.content_disposition_filename(parameters)


def test_a_range_in_another_unit_is_ignored(client: Connection, new_image: MakeImage) -> None:
    # RFC 9110 14.2: an origin server must ignore a range unit it does not understand.
    answer = client.get(new_image(CONTENT).url, {"Range": "sectors=0-1"})
    assert (answer.status, answer.body) == (200, CONTENT)


@pytest.mark.parametrize("name", ["RANGE", "range", "rAnGe"])
def test_header_names_come_in_any_case(client: Connection, new_image: MakeImage, name: str) -> None:
    assert client.get(new_image(CONTENT).url, {name: "bytes=1-2"}).body == CONTENT[1:3]


@pytest.mark.parametrize(
    "headers",
    [
        {"If-Range": '"etag"', "Range": "bytes=1-2"},
        {"If-Range": "Wed, 21 Oct 2015 07:28:00 GMT", "Range": "bytes=1-2"},
        {"Accept-Encoding": "gzip, deflate, br", "Range": "bytes=1-2"},
        {"Accept-Encoding": "identity", "Range": "bytes=1-2"},
    ],
    ids=str,
)
def test_headers_that_are_ignored(client: Connection, new_image: MakeImage, headers: dict[str, str]) -> None:
    answer = client.get(new_image(CONTENT).url, headers)
    assert (answer.status, answer.body) == (206, CONTENT[1:3])
    assert "Content-Encoding" not in answer.headers


def test_a_text_like_image_is_never_compressed(client: Connection, new_image: MakeImage) -> None:
    answer = client.get(new_image(b"a" * 100_000).url, {"Accept-Encoding": "gzip"})
    assert answer.body == b"a" * 100_000
    assert "Content-Encoding" not in answer.headers


def test_close_asks_for_the_end_of_the_connection(client: Connection, new_image: MakeImage) -> None:
    answer = client.get(new_image(CONTENT).url + "?close=y")
    assert (answer.status, answer.body, answer.closes) == (200, CONTENT, True)
    assert client.is_closed()


@pytest.mark.parametrize("query", ["?close=n", "?unknown=1", "?", "?close=y&close=n"])
def test_other_queries_keep_the_connection(client: Connection, new_image: MakeImage, query: str) -> None:
    image = new_image(CONTENT)
    assert client.get(image.url + query).status == 200
    assert client.get(image.url).status == 200


def test_connection_close_in_the_request_is_obeyed(client: Connection, new_image: MakeImage) -> None:
    answer = client.get(new_image(CONTENT).url, {"Connection": "close"})
    assert (answer.status, answer.body) == (200, CONTENT)
    assert client.is_closed()


def test_many_requests_on_one_connection(client: Connection, new_image: MakeImage) -> None:
    image = new_image(CONTENT)
    for offset in range(100):
        assert client.get(image.url, {"Range": f"bytes={offset}-{offset + 4}"}).body == CONTENT[offset : offset + 5]


def test_the_path_is_percent_decoded(client: Connection, new_image: MakeImage) -> None:
    image = new_image(CONTENT)
    encoded = "/images/" + "".join(f"%{ord(char):02x}" for char in image.ticket)
    assert client.get(encoded).body == CONTENT


@needs(Trait.PATH)
def test_a_path_of_a_file_url_is_not_percent_decoded(
    client: Connection, new_image: MakeImage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("odd") / "disk%20one"
    path.write_bytes(CONTENT)
    assert client.get(new_image(path=path).url).body == CONTENT


def test_an_http_1_0_client_is_answered_and_the_connection_closed(client: Connection, new_image: MakeImage) -> None:
    client.send(f"GET {new_image(CONTENT).url} HTTP/1.0\r\n\r\n".encode())
    answer = client.receive()
    assert (answer.status, answer.body) == (200, CONTENT)
    assert client.is_closed()


def test_an_http_1_0_client_may_ask_to_keep_the_connection(client: Connection, new_image: MakeImage) -> None:
    image = new_image(CONTENT)
    for _ in range(2):
        client.send(f"GET {image.url} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".encode())
        assert client.receive().body == CONTENT


@pytest.mark.unopened
@pytest.mark.every_kind
@needs(Trait.NAMED)
def test_a_missing_image_is_the_servers_fault(client: Connection, new_image: MakeImage) -> None:
    image = new_image(CONTENT)
    elsewhere = image.path.rename(image.path.with_suffix(".elsewhere"))
    answer = client.get(image.url)
    assert answer.status == 500
    assert str(image.path) not in answer.text
    elsewhere.rename(image.path)
    assert client.get(image.url).body == CONTENT, "the next request tries again"


@pytest.mark.every_kind
@needs(Trait.GROWS, Trait.RAW_FILE)
def test_an_image_that_shrinks_in_mid_body_cuts_the_answer_short(client: Connection, new_image: MakeImage) -> None:
    size = 256 * MiB
    image = new_image(size=size, ops=["read"])
    client.send(encode_request("GET", image.url))
    first = client.sock.recv(1000)
    assert f"Content-Length: {size}".encode() in first
    with image.path.open("r+b") as file:
        file.truncate(MiB)
    received = len(first)
    try:
        while data := client.sock.recv(MiB):
            received += len(data)
    except (ConnectionError, OSError):
        pass
    assert received < size


@pytest.mark.every_kind
@needs(Trait.RAW_FILE)
def test_a_range_that_the_image_has_lost_is_416(client: Connection, new_image: MakeImage) -> None:
    image = new_image(pattern(MiB))
    assert client.get(image.url).status == 200  # now its size is known
    os.truncate(image.path, 4096)
    for offset in (8192, MiB - 100):
        answer = client.get(image.url, {"Range": f"bytes={offset}-{offset + 99}"})
        assert (answer.status, answer.headers["Content-Range"], answer.closes) == (416, "bytes */4096", False)
    assert client.get(image.url, {"Range": "bytes=0-99"}).body == pattern(100)


# HEAD


@pytest.mark.every_kind
def test_head_is_get_without_the_body(client: Connection, new_image: MakeImage) -> None:
    image = new_image(CONTENT)
    answer = client.request("HEAD", image.url)
    assert answer.status == 200
    assert answer.headers["Content-Length"] == "10000"
    assert answer.headers["Accept-Ranges"] == "bytes"
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert client.get(image.url).body == CONTENT, "nothing follows the head"


def test_head_of_a_range(client: Connection, new_image: MakeImage) -> None:
    answer = client.request("HEAD", new_image(CONTENT).url, {"Range": "bytes=10-19"})
    assert answer.status == 206
    assert answer.headers["Content-Range"] == "bytes 10-19/10000"
    assert answer.headers["Content-Length"] == "10"


def test_head_of_a_range_that_ends_past_the_image(client: Connection, new_image: MakeImage) -> None:
    answer = client.request("HEAD", new_image(CONTENT).url, {"Range": f"bytes=9990-{2**64}"})
    assert (answer.status, answer.headers["Content-Range"]) == (206, "bytes 9990-9999/10000")
    assert answer.headers["Content-Length"] == "10"


def test_head_of_an_unknown_ticket(client: Connection) -> None:
    assert client.request("HEAD", "/images/unknown").status == 403


def test_head_is_no_progress(client: Connection, new_image: MakeImage, daemon: Daemon) -> None:
    image = new_image(CONTENT, ops=["read"])
    assert client.request("HEAD", image.url).status == 200
    assert daemon.status(image.ticket)["transferred"] == 0
