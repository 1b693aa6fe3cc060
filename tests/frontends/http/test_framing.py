# SPDX-License-Identifier: Apache-2.0
import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser, RawRequestMessage
from hypothesis import example, given
from hypothesis import strategies as st

from imageio_daemon.errors import HeadTooLarge, InvalidRequest
from imageio_daemon.frontends.http.connection.framing import (
    MAX_FIELDS,
    MAX_HEAD,
    ChunkedBody,
    FixedBody,
    RequestHead,
    read_head,
)
from ioutil_ext import lib
from tests.support import headoracle


def head(*lines: str, request: str = "PUT /images/a HTTP/1.1", host: bool = True) -> bytes:
    fields = (["Host: x"] if host else []) + list(lines)
    return "\r\n".join([request, *fields]).encode("latin-1") + b"\r\n\r\n"


def parse_head(data: bytes) -> RequestHead:
    found = read_head(bytearray(data))
    assert found is not None
    assert found.data == data
    return found


# Where a head ends


def test_head_ends_at_the_empty_line() -> None:
    data = head()
    found = read_head(bytearray(data + b"body\r\n\r\n"))
    assert found is not None
    assert found.data == data


@pytest.mark.parametrize("length", range(len(head())))
def test_head_in_parts_is_not_found_too_early(length: int) -> None:
    data = bytearray(head())
    assert read_head(data[:length]) is None
    assert read_head(data, length) is not None, "it is found where it was looked for before"


def test_head_may_be_as_large_as_the_limit() -> None:
    rest = head("X: ")
    data = head("X: " + "a" * (MAX_HEAD - len(rest)))
    assert len(data) == MAX_HEAD
    assert len(parse_head(data).data) == MAX_HEAD


@pytest.mark.parametrize("complete", [True, False])
def test_larger_head_is_refused(complete: bool) -> None:
    data = head("X: " + "a" * MAX_HEAD)
    with pytest.raises(HeadTooLarge):
        read_head(bytearray(data if complete else data[:-4]))


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\n", b"\n", b"GET / HTTP/1.1\r\nHost: x\n"])
def test_bare_line_feed_is_refused_before_the_head_ends(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="CRLF"):
        read_head(bytearray(data))


@pytest.mark.parametrize("searched", [0, 1, 2, 3, 4, 100, 2**64 - 1])
def test_no_number_makes_it_look_outside_of_the_data(searched: int) -> None:
    for data in (b"", b"\n", b"\r\n\r", b"GET"):
        with contextlib.suppress(InvalidRequest):
            assert read_head(bytearray(data), searched) is None


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
        ("GET / HTTP/1.1", ["Connection: close", "Connection: keep-alive"], False),
        ("GET / HTTP/1.1", ["Connection: keep-alive", "Connection:\tx ,\tCLOSE\t"], False),
        ("GET / HTTP/1.1", ["Connection: closed, unclose, ,"], True),
        ("PUT / HTTP/1.1", ["Transfer-Encoding: chunked"], False),
        ("GET / HTTP/1.1", ["Connection: upgrade", "Upgrade: websocket"], False),
        ("GET / HTTP/1.0", ["Connection: close, keep-alive"], False),
    ],
)
def test_another_request_may_follow_unless_version_or_option_or_coding_says_no(
    request_line: str, fields: list[str], keep_alive: bool
) -> None:
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
        ours = read_head(bytearray(data))
    except InvalidRequest:
        return
    if ours is None or ours.data != data:
        return
    theirs = _aiohttp(data)
    assert (theirs.method, theirs.path) == (ours.method, ours.target)
    assert theirs.chunked == isinstance(ours.body(), ChunkedBody)
    assert int(theirs.headers.get("content-length", "0")) == ours.length
    assert theirs.should_close <= (not ours.keep_alive)


def _aiohttp(data: bytes) -> RawRequestMessage:
    with _aiohttp_parser() as parser:
        messages, _, _ = parser.feed_data(data)
    assert len(messages) == 1
    message: RawRequestMessage = messages[0][0]
    return message


@contextlib.contextmanager
def _aiohttp_parser() -> Iterator[HttpRequestParser]:
    loop = asyncio.new_event_loop()
    try:
        yield HttpRequestParser(
            BaseProtocol(loop), loop, 2**16, max_line_size=MAX_HEAD, max_field_size=MAX_HEAD, auto_decompress=False
        )
    finally:
        loop.close()


_LINES = st.one_of(
    st.tuples(_NAMES, st.sampled_from([":", ": ", ":\t", " :", ""]), _VALUES).map("".join),
    st.text(st.characters(max_codepoint=255), max_size=8),
)
_REQUESTS = st.one_of(
    st.sampled_from(
        ["GET / HTTP/1.1", "PUT /images/a HTTP/1.0", "GET  / HTTP/1.1", "GET / HTTP/1.2", "G T / HTTP/1.1"]
    ),
    st.text(st.characters(max_codepoint=255), max_size=12).map(lambda text: f"{text} HTTP/1.1"),
)


@given(_REQUESTS, st.lists(_LINES, max_size=5), st.sampled_from(["\r\n", "\r\n", "\r\n", "\n", "\r"]), st.binary())
@example("GET / HTTP/1.1", ["Host: x", *["a:b"] * 99], "\r\n", b"")
@example("GET / HTTP/1.1", ["Host: x", "bad", *["a:b"] * 99], "\r\n", b"")
@example("GET / HTTP/1.1", ["Host: x", "bad", "Host: y"], "\r\n", b"")
@example("GET / HTTP/1.1", ["Host: x" + "y" * (MAX_HEAD - 28)], "\r\n", b"")
@example("GET / HTTP/1.1", ["Host: x" + "y" * (MAX_HEAD - 27)], "\r\n", b"")
@example("", [], "\r\n", b"")
def test_another_reader_says_the_same_of_every_head(request: str, lines: list[str], end: str, rest: bytes) -> None:
    data = end.join([request, *lines]).encode("latin-1") + b"\r\n\r\n" + rest
    for cut in {len(data), len(data) - len(rest), len(data) // 2}:
        assert _said(data[:cut]) == headoracle.read(data[:cut])


def _said(data: bytes) -> headoracle.Said | str | None:
    try:
        found = read_head(bytearray(data))
    except (InvalidRequest, HeadTooLarge) as e:
        return str(e)
    if found is None:
        return None
    return found.method, found.target, found.version, None if found.chunked else found.length, found.fields


# Which are plain


@pytest.mark.parametrize(
    "data",
    [
        head("Content-Length: 1"),
        head("Content-Length: 1", "Content-Range: bytes 0-*/*", request="PUT /images/a-b_c.d~E9?flush=n HTTP/1.1"),
        head("content-length:1", "Connection: Keep-Alive", "X: 1", request="PUT /images/a?flush=y HTTP/1.1"),
        head("Range: bytes=0-0", request="GET /images/a HTTP/1.1"),
        head("Range: bytes=0-" + "9" * 3000, request="GET /images/a HTTP/1.1"),
        head("Range: bytes=9-" + "0" * 3000 + "9", request="GET /images/a HTTP/1.1"),
        head("Range: bytes=5-", "Origin: https://ui", request="GET /images/a HTTP/1.1"),
        head(request="GET /images/a HTTP/1.1"),
        head("Content-Length: 1", "Expect: 100-Continue"),
        head("Content-Length: 1024", request="PATCH /images/a HTTP/1.1"),
    ],
)
def test_requests_as_programs_send_them_are_plain(data: bytes) -> None:
    assert parse_head(data).plain


@pytest.mark.parametrize(
    "data",
    [
        head("Range: bytes=0-0", request="HEAD /images/a HTTP/1.1"),
        head("Content-Length: 1", request="OPTIONS /images/a HTTP/1.1"),
        head("Content-Length: 1", request="PUT /images/a HTTP/1.0"),
        head("Content-Length: 1", request="PUT /images/ HTTP/1.1"),
        head("Content-Length: 1", request="PUT /images/a%2d HTTP/1.1"),
        head("Content-Length: 1", request="PUT /images/a/extents HTTP/1.1"),
        head("Content-Length: 1", request="PUT http://x/images/a HTTP/1.1"),
        head("Content-Length: 1", request="PUT /images/a? HTTP/1.1"),
        head("Content-Length: 1", request="PUT /images/a?flush=maybe HTTP/1.1"),
        head("Content-Length: 1", request="PUT /images/a?flush=y&close=y HTTP/1.1"),
        head("Content-Length: 1", "Content-Range: bytes 5-4/*"),
        head("Content-Length: 1", "Content-Range: bytes 5-5/5"),
        head("Content-Length: 1", "Connection: close"),
        head("Content-Length: 1", "Connection: keep-alive, x"),
        head("Content-Length: 1", "Content-Encoding: identity"),
        head("Content-Length: 1", "If-Match: *"),
        head("Content-Length: 1", "If-None-Match: *"),
        head('If-None-Match: "a"', request="GET /images/a HTTP/1.1"),
        head("Content-Length: 1", "Expect: x"),
        head("Content-Length: 1", "Range: bytes=0-0"),
        head("Transfer-Encoding: chunked"),
        head("Range: bytes=0-0", request="GET /images/a?flush=y HTTP/1.1"),
        head("Range: bytes=0-0", "Content-Length: 1", request="GET /images/a HTTP/1.1"),
        head("Range: bytes=1-0", request="GET /images/a HTTP/1.1"),
        head("Range: bytes=0-0,2-2", request="GET /images/a HTTP/1.1"),
        head("Range: bytes=-1", request="GET /images/a HTTP/1.1"),
        head("Range: bytes=" + "9" * 19 + "-", request="GET /images/a HTTP/1.1"),
        head("Range: bytes=0-9x", request="GET /images/a HTTP/1.1"),
        head("Range: bytes=0-0", "If-Range: x", request="GET /images/a HTTP/1.1"),
        head("Range: bytes=0-0", "Upgrade: x", request="GET /images/a HTTP/1.1"),
        head("Content-Length: 1025", request="PATCH /images/a HTTP/1.1"),
        head(request="PATCH /images/a HTTP/1.1"),
    ],
)
def test_others_are_not(data: bytes) -> None:
    assert not parse_head(data).plain


# Where a body ends


def test_fixed_body_ends_after_its_length() -> None:
    body = FixedBody(5)
    assert [body.take(b"abc"), body.ended, body.take(b"defgh"), body.ended] == [3, False, 2, True]


def test_empty_body_has_ended() -> None:
    assert FixedBody(0).ended


CHUNKS = b"3\r\nabc\r\n00A;x=y;z\r\n0123456789\r\n0;last\r\nTrailer: 1\r\n\r\n"


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
        (b"1 \r\n", "size"),
        (b"1;\r\n", "size"),
        (b"1;a=\r\n", "size"),
        (b"1; a\r\n", "size"),
        (b"1" * 16 + b"\r\n", "size"),
        (b"3\n", "CRLF"),
        (b"3\r\nabc\n", "CRLF"),
        (b"3\r\nabcd\r\n", "does not end"),
        (b"1;" + b"x" * lib.IOU_CHUNKS_MAX_LINE, "too long"),
        (b"0\r\n" + b"T: 0123456789\r\n" * (lib.IOU_CHUNKS_MAX_TRAILER // 10), "trailer is too long"),
        (b"0\r\nnonsense\r\n", "no field"),
        (b"0\r\nT: \x01\r\n", "no field"),
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


_PARTS = [
    "0",
    "1",
    "5",
    "0a",
    "a\r\n",
    "hello",
    "\r\n",
    "\r\n",
    "0\r\n\r\n",
    ";",
    "x",
    "=",
    " ",
    "T: 1\r\n",
    '"',
    "\x01",
]


@given(st.lists(st.sampled_from(_PARTS), max_size=12).map("".join))
@example("5;x=y;z\r\nhello\r\n0\r\nT: 1\r\nU:\r\n\r\n")
def test_aiohttp_finds_the_same_end_of_chunks_that_pass(text: str) -> None:
    data = text.encode() + b"\r\n0\r\n\r\n"
    body = ChunkedBody()
    try:
        length = body.take(data)
    except InvalidRequest:
        return
    if not body.ended:
        return
    with _aiohttp_parser() as parser:
        messages, _, _ = parser.feed_data(head("Transfer-Encoding: chunked") + data[:length])
        payload = messages[0][1]
        assert payload.exception() is None
        assert payload.is_eof()
