# SPDX-License-Identifier: Apache-2.0
import asyncio

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser, RawRequestMessage
from hypothesis import given
from hypothesis import strategies as st

from imageio_daemon.errors import HeadTooLarge, InvalidRequest
from imageio_daemon.frontends.http.framing import (
    MAX_CHUNK_LINE,
    MAX_FIELDS,
    MAX_HEAD,
    MAX_TRAILER,
    ChunkedBody,
    FixedBody,
    find_head,
    parse_head,
)


def head(*lines: str, request: str = "PUT /images/a HTTP/1.1", host: bool = True) -> bytes:
    fields = (["Host: x"] if host else []) + list(lines)
    return "\r\n".join([request, *fields]).encode("latin-1") + b"\r\n\r\n"


# Where a head ends


def test_head_ends_at_the_empty_line() -> None:
    data = head()
    assert find_head(bytearray(data + b"body\r\n\r\n")) == len(data)


@pytest.mark.parametrize("length", range(len(head())))
def test_head_in_parts_is_not_found_too_early(length: int) -> None:
    assert find_head(bytearray(head()[:length])) == 0


def test_head_may_be_as_large_as_the_limit() -> None:
    rest = head("X: ")
    data = head("X: " + "a" * (MAX_HEAD - len(rest)))
    assert len(data) == MAX_HEAD
    assert find_head(bytearray(data)) == MAX_HEAD


@pytest.mark.parametrize("complete", [True, False])
def test_larger_head_is_refused(complete: bool) -> None:
    data = head("X: " + "a" * MAX_HEAD)
    with pytest.raises(HeadTooLarge):
        find_head(bytearray(data if complete else data[:-4]))


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\n", b"\n", b"GET / HTTP/1.1\r\nHost: x\n"])
def test_bare_line_feed_is_refused_before_the_head_ends(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="CRLF"):
        find_head(bytearray(data))


# What it says


def test_head_is_parsed() -> None:
    parsed = parse_head(head("Content-Length:  12 ", "X-Empty:", "x-last: 1", "X-Last: 2"))
    assert (parsed.method, parsed.target, parsed.version) == ("PUT", "/images/a", "1.1")
    assert parsed.fields == {"host": "x", "content-length": "12", "x-empty": "", "x-last": "2"}


@pytest.mark.parametrize(
    ("request_line", "fields", "keep_alive"),
    [
        ("GET / HTTP/1.1", [], True),
        ("GET / HTTP/1.1", ["Connection: close"], False),
        ("GET / HTTP/1.1", ["Connection: x, Close"], False),
        ("GET / HTTP/1.0", [], False),
        ("GET / HTTP/1.0", ["Connection: Keep-Alive"], True),
    ],
)
def test_keep_alive_follows_version_and_option(request_line: str, fields: list[str], keep_alive: bool) -> None:
    assert parse_head(head(*fields, request=request_line)).keep_alive is keep_alive


@pytest.mark.parametrize(
    "request_line",
    [
        "",
        "GET",
        "GET /",
        "GET  / HTTP/1.1",
        "GET / HTTP/1.1 ",
        " GET / HTTP/1.1",
        "GET / HTTP/2.0",
        "GET / HTTP/1.10",
        "GET / http/1.1",
        "GET /a b HTTP/1.1",
        "G@T / HTTP/1.1",
        "GET\t/ HTTP/1.1",
        "GET /\x00 HTTP/1.1",
        "GET /\xe4 HTTP/1.1",
        "GET /#x HTTP/1.1",
        "GET /\r HTTP/1.1",
    ],
)
def test_other_request_lines_are_refused(request_line: str) -> None:
    with pytest.raises(InvalidRequest, match="request line"):
        parse_head(head(request=request_line))


@pytest.mark.parametrize(
    "line", ["X", ": 1", "X : 1", " X: 1", "X: a\x00", "X: a\rb", "X: a\x7f", "X\x00: 1", "X(: 1", "X: 1\nY: 2"]
)
def test_other_header_lines_are_refused(line: str) -> None:
    with pytest.raises(InvalidRequest, match="header line"):
        parse_head(head(line))


def test_folded_line_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="header line"):
        parse_head(head("X: 1", "  2"))


@pytest.mark.parametrize("name", ["Content-Length", "Content-Range", "Host", "Range", "Transfer-Encoding", "Expect"])
def test_field_that_must_stand_once_is_refused_twice(name: str) -> None:
    with pytest.raises(InvalidRequest, match="several"):
        parse_head(head(f"{name}: 1", f"{name.lower()}: 1", host=False))


@pytest.mark.parametrize("value", ["", "-1", "+1", "1 1", "1,1", "0x1", "1_0", "1.0", "\xb2", "9" * 19])
def test_content_length_is_digits(value: str) -> None:
    with pytest.raises(InvalidRequest, match="Content-Length"):
        parse_head(head(f"Content-Length: {value}"))


@pytest.mark.parametrize("value", ["gzip, chunked", "chunked, chunked", "identity", "", "xchunked", "chunked;a=b"])
def test_other_transfer_codings_are_refused(value: str) -> None:
    with pytest.raises(InvalidRequest, match="Transfer-Encoding"):
        parse_head(head(f"Transfer-Encoding: {value}"))


def test_chunks_need_http_1_1() -> None:
    with pytest.raises(InvalidRequest, match="Transfer-Encoding"):
        parse_head(head("Transfer-Encoding: chunked", request="PUT / HTTP/1.0"))


def test_two_ways_to_end_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="Content-Length and Transfer-Encoding"):
        parse_head(head("Content-Length: 1", "Transfer-Encoding: chunked"))


def test_host_is_required_by_http_1_1_only() -> None:
    with pytest.raises(InvalidRequest, match="Host"):
        parse_head(head(host=False))
    parse_head(head(host=False, request="GET / HTTP/1.0"))


def test_number_of_fields_is_limited() -> None:
    fields = [f"X-{i}: 1" for i in range(MAX_FIELDS)]
    parse_head(head(*fields, host=False, request="GET / HTTP/1.0"))
    with pytest.raises(HeadTooLarge, match="fields"):
        parse_head(head(*fields))


_NAMES = st.sampled_from(
    ["Host", "Content-Length", "content-length", "Transfer-Encoding", "Connection", "Range", "X", "Expect", "Upgrade"]
)
_VALUES = st.one_of(
    st.sampled_from(["0", "5", "chunked", "close", "keep-alive", "upgrade", "websocket", "100-continue", "bytes=0-1"]),
    st.text(st.characters(max_codepoint=255), max_size=8),
)
_TARGETS = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12).map(lambda text: "/" + text)


@given(st.sampled_from(["GET", "PUT", "PATCH"]), _TARGETS, st.lists(st.tuples(_NAMES, _VALUES), max_size=5))
def test_aiohttp_agrees_on_every_head_that_passes(method: str, target: str, fields: list[tuple[str, str]]) -> None:
    data = head(*(f"{name}: {value}" for name, value in fields), request=f"{method} {target} HTTP/1.1")
    try:
        if find_head(bytearray(data)) != len(data):
            return
        ours = parse_head(data)
    except InvalidRequest:
        return
    theirs = _aiohttp(data)
    assert (theirs.method, theirs.path) == (ours.method, ours.target)
    assert theirs.chunked == isinstance(ours.body(), ChunkedBody)
    assert theirs.headers.get("content-length", "0") == ours.fields.get("content-length", "0")


def _aiohttp(data: bytes) -> RawRequestMessage:
    loop = asyncio.new_event_loop()
    try:
        parser = HttpRequestParser(
            BaseProtocol(loop), loop, 2**16, max_line_size=MAX_HEAD, max_field_size=MAX_HEAD, auto_decompress=False
        )
        messages, _, _ = parser.feed_data(data)
    finally:
        loop.close()
    assert len(messages) == 1
    message: RawRequestMessage = messages[0][0]
    return message


# Where a body ends


def test_fixed_body_ends_after_its_length() -> None:
    body = FixedBody(5)
    assert [body.take(b"abc"), body.ended, body.take(b"defgh"), body.ended] == [3, False, 2, True]


def test_empty_body_has_ended() -> None:
    assert FixedBody(0).ended


CHUNKS = b"3\r\nabc\r\n00A;x=y\r\n0123456789\r\n0 \r\nTrailer: 1\r\n\r\n"


@pytest.mark.parametrize("step", [1, 2, 3, 7, len(CHUNKS) + 4])
def test_chunked_body_ends_with_its_last_chunk(step: int) -> None:
    data = CHUNKS + b"more"
    body = ChunkedBody()
    taken = 0
    while not body.ended:
        taken += body.take(data[taken : taken + step])
    assert data[taken:] == b"more"


@pytest.mark.parametrize("length", range(len(CHUNKS)))
def test_chunked_body_does_not_end_before(length: int) -> None:
    body = ChunkedBody()
    assert body.take(CHUNKS[:length]) == length
    assert not body.ended


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"x\r\n", "size"),
        (b"\r\n", "size"),
        (b"-1\r\n", "size"),
        (b" 1\r\n", "size"),
        (b"0x1\r\n", "size"),
        (b"1;\x00\r\n", "size"),
        (b"1" * 16 + b"\r\n", "size"),
        (b"3\n", "CRLF"),
        (b"3\r\nabc\n", "CRLF"),
        (b"3\r\nabcd\r\n", "does not end"),
        (b"1;" + b"x" * MAX_CHUNK_LINE, "too long"),
        (b"0\r\n" + b"T: 0123456789\r\n" * (MAX_TRAILER // 10), "trailer"),
    ],
)
def test_other_chunks_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        ChunkedBody().take(data)


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(1, 30))
def test_any_chunks_end_where_they_end(pieces: list[bytes], step: int) -> None:
    data = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece) + b"0\r\n\r\n"
    body = ChunkedBody()
    assert sum(body.take(data[i : i + step]) for i in range(0, len(data), step)) == len(data)
    assert body.ended
