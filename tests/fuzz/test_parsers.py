# SPDX-License-Identifier: Apache-2.0
"""Anything at all goes into the parsers of requests; what comes out is a valid value or a refusal on purpose."""

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from imageio_daemon.errors import Error, InvalidRequest, OutOfRange
from imageio_daemon.frontends.http import headers
from imageio_daemon.frontends.http.connection import framing
from imageio_daemon.transfers.ticket import Access, Ticket
from imageio_daemon.units import MAX_OFFSET

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)

#: Texts close to what is expected: parts of it in any order.
RANGE_LIKE = st.lists(
    st.sampled_from(["bytes", "=", " ", "-", "*", "/", ",", "0", "9", "10", str(2**63), "x", "\t", "+", "_"])
).map("".join)


@given(st.text() | RANGE_LIKE)
@example("bytes=0-0,")
@example("bytes=" + "9" * 5000)
def test_a_range_is_inside_or_refused(text: str) -> None:
    try:
        found = headers.parse_range(text)
        offset, length = found.resolve(1000) if found else (0, 1000)
    except OutOfRange:
        return
    assert 0 <= offset < 1000
    assert 0 < length <= 1000 - offset


@given(st.integers(0, 2**70), st.integers(0, 2**70), st.integers(1, 2**40))
def test_a_well_formed_range_means_what_it_says(first: int, last: int, size: int) -> None:
    try:
        found = headers.parse_range(f"bytes={first}-{last}")
        assert found is not None
        resolved = found.resolve(size)
    except OutOfRange:
        assert first > last or first >= size
    else:
        assert resolved == (first, min(last, size - 1) - first + 1)


@given(st.text() | RANGE_LIKE)
def test_a_content_range_has_an_offset_or_is_refused(text: str) -> None:
    try:
        offset = headers.parse_content_range(text)
    except (InvalidRequest, OutOfRange):
        return
    assert text.startswith(f"bytes {text[6:].partition('-')[0]}-")
    assert offset == int(text[6:].partition("-")[0]) >= 0


@given(st.integers(0, 2**62), st.integers(0, 2**62))
def test_a_well_formed_content_range_means_what_it_says(first: int, length: int) -> None:
    assert headers.parse_content_range(f"bytes {first}-{first + length}/*") == first
    assert headers.parse_content_range(f"bytes {first}-{first + length}/{first + length + 1}") == first


@given(st.text())
@example("/images/%ff")
@example("/images/x?" + "a=b&" * 5000)
@example("http://")
def test_a_target_is_parsed_or_refused(target: str) -> None:
    try:
        segments, query = headers.parse_target(target)
    except InvalidRequest:
        return
    assert all(isinstance(segment, str) for segment in segments)
    assert len(query) <= 32


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 60_000)
@example(b'{"op": "zero", "size": NaN}')
@example(b"1" * 10_000)
def test_json_is_parsed_or_refused(body: bytes) -> None:
    try:
        headers.parse_json(body)
    except InvalidRequest:
        return


@given(
    JSON
    | st.fixed_dictionaries(
        {"op": st.sampled_from(["zero", "flush"])}, optional={"offset": JSON, "size": JSON, "flush": JSON}
    )
)
def test_an_operation_is_valid_or_refused(data: Any) -> None:
    try:
        operation = headers.parse_patch(data)
    except InvalidRequest:
        return
    if isinstance(operation, headers.Zero):
        assert type(operation.offset) is int
        assert type(operation.size) is int
        assert type(operation.flush) is bool
        assert operation.offset >= 0
        assert operation.size >= 0


VALID_TICKET = {"uuid": "x", "size": 1, "url": "file:///x", "timeout": 1, "ops": ["read"]}


@given(
    JSON
    | st.dictionaries(
        st.sampled_from([*VALID_TICKET, "inactivity_timeout", "transfer_id", "filename", "sparse", "dirty"]), JSON
    ).map(lambda changes: VALID_TICKET | changes)
)
def test_a_ticket_is_valid_or_refused(data: Any) -> None:
    try:
        ticket = Ticket.from_json(data, inactivity_timeout=60)
    except InvalidRequest:
        return
    assert 0 <= ticket.size <= MAX_OFFSET
    assert type(ticket.timeout) is int
    assert ticket.inactivity_timeout >= 1
    assert all(isinstance(access, Access) for access in ticket.ops)
    (ticket.filename or "").encode()


FIELDS = st.lists(st.tuples(st.text(), st.text())).map(lambda pairs: "".join(f"{k}: {v}\r\n" for k, v in pairs))


@given(st.binary() | FIELDS.map(lambda fields: f"PUT / HTTP/1.1\r\n{fields}".encode()))
@example(b"PUT / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n")
def test_a_head_is_parsed_or_refused(data: bytes) -> None:
    try:
        head = framing.read_head(bytearray(data + b"\r\n\r\n"))
    except Error:
        return
    assert head is not None
    head.body()
    assert head.version in ("1.0", "1.1")
    assert not {"content-length", "transfer-encoding"} <= head.fields.keys()


@given(st.binary(), st.integers(1, 7))
@example(b"5\r\nhello\r\n0\r\n\r\nnext", 1)
@example(b"0" * 1000, 1)
def test_chunks_end_at_the_same_byte_however_they_come(data: bytes, step: int) -> None:
    assert _end_of_chunks(data, len(data) or 1) == _end_of_chunks(data, step)


def _end_of_chunks(data: bytes, step: int) -> int | str | None:
    """Return where the body ends; None: not yet; or that it was refused."""
    body = framing.ChunkedBody()
    taken = 0
    try:
        for at in range(0, len(data), step):
            piece = data[at : at + step]
            count = body.take(piece)
            taken += count
            if body.ended:
                return taken
            assert count == len(piece)
    except InvalidRequest:
        return "refused"
    return None


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=5), st.binary(max_size=10), st.integers(1, 9))
def test_well_formed_chunks_end_where_they_end(pieces: list[bytes], rest: bytes, step: int) -> None:
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    assert _end_of_chunks(body + rest, step) == len(body)
