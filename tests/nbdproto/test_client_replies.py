# SPDX-License-Identifier: Apache-2.0
"""The client's transmission phase: what servers reply, good and bad, to the parser in Python and to that in C."""

import os
from collections.abc import Iterator
from struct import pack

import pytest

from imageio_daemon.nbdproto import client_replies
from imageio_daemon.nbdproto.client_negotiation import ServerViolation
from imageio_daemon.nbdproto.constants import DONE, MAX_STATUS_EXTENTS, Chunk, Command, CommandFlag, ErrorNumber
from imageio_daemon.units import KiB
from tests.support.nbd_payloads import ChunkHeader, RequestHeader, SimpleReply, pack_error, pack_extents

from .reply_clients import CHUNKS, FORMS, CClient, Client, PythonClient, Read

Parser = type[PythonClient | CClient]


@pytest.fixture(params=[PythonClient, CClient], ids=["python", "c"])
def parser(request: pytest.FixtureRequest) -> Parser:
    parser: Parser = request.param
    return parser


@pytest.fixture(params=FORMS)
def any_client(parser: Parser, request: pytest.FixtureRequest) -> Client:
    return parser(request.param)


@pytest.fixture(params=CHUNKS)
def client(parser: Parser, request: pytest.FixtureRequest) -> Client:
    return parser(request.param)


@pytest.fixture
def read(client: Client) -> Iterator[Read]:
    """A READ of 4096 bytes at 8192, of which nothing outside of its memory is written."""
    read = client.read(8192, 4096)
    yield read
    assert len(read.content) == 4096


# Requests


def test_requests_have_headers_of_the_form(any_client: Client) -> None:
    request = any_client.begin(Command.WRITE, 4096, 512, CommandFlag.FUA)
    header = RequestHeader.unpack(any_client.header, extended=any_client.extended)
    expected = CommandFlag.FUA | (CommandFlag.PAYLOAD_LEN if any_client.extended else 0)
    assert header == (Command.WRITE, expected, request.cookie, 4096, 512)


def test_extended_requests_have_long_lengths(parser: Parser) -> None:
    client = parser("extended")
    client.begin(Command.WRITE_ZEROES, 0, 2**40)
    assert RequestHeader.unpack(client.header, extended=True).length == 2**40


# Good replies


@pytest.mark.parametrize("step", [1, 7, 100, 1 << 30])
@pytest.mark.parametrize("length", [1, 512, 200 * KiB])
def test_data_arrives_in_its_memory(any_client: Client, length: int, step: int) -> None:
    client, form = any_client, any_client.form
    client.step = 997 if step == 1 and length > 512 else step
    data = os.urandom(length)
    first, second = client.read(4096, length), client.read(0, 3)
    success = SimpleReply(first.request.cookie, 0).pack() + data
    client.feed(success if form == "simple" else client.data(first.request, 4096, data))
    success = SimpleReply(second.request.cookie, 0).pack() + b"abc"
    client.feed(success if form == "simple" else client.data(second.request, 0, b"abc"))
    assert client.ended == [first.request, second.request]
    assert (first.content, second.content) == (data, b"abc")


def test_simple_replies_end_requests_without_data(parser: Parser) -> None:
    for form in FORMS[:2]:
        client = parser(form)
        request = client.begin(Command.WRITE)
        client.feed(SimpleReply(request.cookie, 0).pack())
        assert client.ended == [request]
        assert client.result(request) == (0, "")


def test_empty_chunks_end_requests_without_data(client: Client) -> None:
    request = client.begin(Command.FLUSH)
    client.feed(client.none(request))
    assert client.ended == [request]


@pytest.mark.parametrize("step", [1, 1 << 30])
def test_chunks_in_any_order_make_one_reply(client: Client, read: Read, step: int) -> None:
    client.step = step
    client.feed(client.data(read.request, 8192 + 3000, b"c" * 1096, done=False))
    client.feed(client.hole(read.request, 8192 + 1000, 2000, done=False))
    assert not client.ended
    client.feed(client.data(read.request, 8192, b"a" * 1000))
    assert client.ended == [read.request]
    assert read.content == b"a" * 1000 + bytes(2000) + b"c" * 1096


def test_an_empty_chunk_may_be_the_last_one(client: Client, read: Read) -> None:
    client.feed(client.data(read.request, 8192, b"a" * 4096, done=False) + client.none(read.request))
    assert read.content == b"a" * 4096
    assert client.ended == [read.request]


# 114: several replies at a time


@pytest.mark.parametrize("step", [1, 33, 1 << 30])
def test_chunks_of_several_replies_interleave(client: Client, step: int) -> None:
    client.step = step
    reads = [client.read(i * 4096, 4096) for i in range(8)]
    write = client.begin(Command.WRITE)
    for half in (0, 2048):
        for i, read in enumerate(reads):
            data = bytes([i + 1]) * 2048
            client.feed(client.data(read.request, i * 4096 + half, data, done=half > 0))
    client.feed(client.none(write))
    assert [read.content for read in reads] == [bytes([i + 1]) * 4096 for i in range(8)]
    assert len(client.ended) == 9


def test_replies_come_in_any_order(any_client: Client) -> None:
    requests = [any_client.begin(Command.TRIM) for _ in range(10)]
    for request in reversed(requests):
        reply = any_client.none(request) if any_client.extended else SimpleReply(request.cookie, 0).pack()
        any_client.feed(reply)
    assert any_client.ended == requests[::-1]


# 110: cookies


@pytest.mark.parametrize("cookie", [0, 2, 2**64 - 1])
def test_a_reply_to_no_request_is_a_violation(any_client: Client, cookie: int) -> None:
    request = any_client.begin(Command.WRITE)
    request.cookie = cookie
    reply = any_client.none(request) if any_client.form != "simple" else SimpleReply(cookie, 0).pack()
    with pytest.raises(ServerViolation, match="no request"):
        any_client.feed(reply)


def test_a_second_reply_is_a_violation(any_client: Client) -> None:
    request = any_client.begin(Command.WRITE)
    reply = any_client.none(request) if any_client.form != "simple" else SimpleReply(request.cookie, 0).pack()
    any_client.feed(reply)
    with pytest.raises(ServerViolation, match="no request"):
        any_client.feed(reply)
    assert any_client.ended == [request]


def test_a_chunk_after_the_last_one_is_a_violation(client: Client, read: Read) -> None:
    client.feed(client.data(read.request, 8192, b"a" * 4096))
    with pytest.raises(ServerViolation, match="no request"):
        client.feed(client.hole(read.request, 8192, 10))
    assert read.content == b"a" * 4096


# 111: where data may be


@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (8191, 1),
        (8191, 2),
        (8192, 4097),
        (8192 + 4095, 2),
        (8192 + 4096, 1),
        (0, 1),
        (2**64 - 1, 2),
        (2**64 - 4096, 4096 + 8192),
        (8192, 2**31),
    ],
)
def test_data_outside_of_the_request_is_a_violation(client: Client, read: Read, offset: int, length: int) -> None:
    header = ChunkHeader(Chunk.OFFSET_DATA, DONE, read.request.cookie, 8 + length, 8192)
    with pytest.raises(ServerViolation, match="outside"):
        client.feed(header.pack(extended=client.extended) + pack(">Q", offset))
    assert read.content == b"\x55" * 4096


@pytest.mark.parametrize(
    ("offset", "length"), [(8191, 1), (8192, 4097), (8192, 0), (8192, 2**32 - 1), (2**64 - 1, 2), (12288, 1)]
)
def test_a_hole_outside_of_the_request_is_a_violation(client: Client, read: Read, offset: int, length: int) -> None:
    with pytest.raises(ServerViolation, match="outside"):
        client.feed(client.hole(read.request, offset, length))
    assert read.content == b"\x55" * 4096


@pytest.mark.parametrize(("offset", "length"), [(8192, 1), (8192 + 1000, 10), (8192 + 999, 2), (8192, 4096)])
def test_data_that_was_there_before_is_a_violation(client: Client, read: Read, offset: int, length: int) -> None:
    client.feed(client.data(read.request, 8192, b"a" * 500, done=False))
    client.feed(client.data(read.request, 8192 + 1000, b"b" * 500, done=False))
    with pytest.raises(ServerViolation, match="before"):
        client.feed(client.hole(read.request, offset, length))


@pytest.mark.parametrize("parts", [[], [(8192, 4095)], [(8193, 4095)], [(8192, 100), (8300, 3988)]])
def test_a_success_without_all_data_is_a_violation(client: Client, read: Read, parts: list[tuple[int, int]]) -> None:
    for offset, length in parts:
        client.feed(client.hole(read.request, offset, length, done=False))
    with pytest.raises(ServerViolation, match="without all data"):
        client.feed(client.none(read.request))
    assert not client.ended


@pytest.mark.parametrize("length", [0, 7, 8])
def test_data_of_no_bytes_is_a_violation(client: Client, read: Read, length: int) -> None:
    with pytest.raises(ServerViolation, match="no bytes"):
        client.feed(client.chunk(read.request, Chunk.OFFSET_DATA, bytes(length)))


def test_data_in_too_many_pieces_is_a_violation(client: Client) -> None:
    read = client.read(0, 400 * KiB)
    chunks = [client.hole(read.request, i, 1, done=False) for i in (*range(1, 400 * KiB, 2), *range(0, 400 * KiB, 2))]
    with pytest.raises(ServerViolation, match=r"too many pieces|without all data"):
        client.feed(b"".join(chunks) + client.none(read.request))


def test_data_in_reply_to_something_else_is_a_violation(client: Client) -> None:
    request = client.begin(Command.WRITE)
    with pytest.raises(ServerViolation, match=r"data in (a )?reply"):
        client.feed(client.data(request, 0, b"x"))


# 112: forms that were not negotiated


def test_a_chunk_without_structured_replies_is_a_violation(parser: Parser) -> None:
    client = parser("simple")
    with pytest.raises(ServerViolation, match="begins with"):
        client.feed(client.none(client.begin(Command.WRITE)))


def test_a_simple_reply_to_a_read_with_structured_replies_is_a_violation(parser: Parser) -> None:
    for error in (0, 5):
        client = parser("structured")
        read = client.read(0, 10)
        with pytest.raises(ServerViolation, match="simple reply to a READ"):
            client.feed(SimpleReply(read.request.cookie, error).pack())


def test_other_forms_than_extended_headers_are_a_violation(parser: Parser) -> None:
    for reply in (SimpleReply(1, 0).pack(), ChunkHeader(0, 1, 1, 0).pack()):
        client = parser("extended")
        client.begin(Command.WRITE)
        with pytest.raises(ServerViolation, match="begins with"):
            client.feed(reply)


def test_an_extended_reply_with_the_offset_of_another_request_is_a_violation(parser: Parser) -> None:
    client = parser("extended")
    request = client.begin(Command.WRITE, offset=4096)
    request.offset = 0
    reply = client.none(request)
    request.offset = 4096
    with pytest.raises(ServerViolation, match="offset of another"):
        client.feed(reply)


# 113: errors and types


@pytest.mark.parametrize(
    ("told", "meant"), [(5, 5), (28, 28), (22, 22), (4711, 22), (0xFFFFFFFF, 22), (95, 22), (108, 108), (11, 22)]
)
def test_unknown_error_numbers_mean_einval(any_client: Client, told: int, meant: int) -> None:
    request = any_client.begin(Command.WRITE)
    reply = SimpleReply(request.cookie, told).pack()
    any_client.feed(any_client.error(request, told) if any_client.extended else reply)
    assert any_client.ended == [request]
    assert any_client.result(request)[0] == meant


def test_not_fast_is_an_answer_to_fast_zeroing_only(any_client: Client) -> None:
    request = any_client.begin(Command.WRITE_ZEROES, flags=CommandFlag.FAST_ZERO)
    reply = SimpleReply(request.cookie, 95).pack()
    any_client.feed(any_client.error(request, 95) if any_client.extended else reply)
    assert any_client.result(request)[0] == ErrorNumber.ENOTSUP


def test_an_error_has_its_text_and_needs_no_data(client: Client, read: Read) -> None:
    client.feed(client.data(read.request, 8192, b"a" * 100, done=False))
    client.feed(client.error(read.request, 5, "the disk is broken", done=False))
    client.feed(client.none(read.request))
    assert client.ended == [read.request]
    assert client.result(read.request) == (5, "the disk is broken")


def test_an_error_with_an_offset_is_one(client: Client, read: Read) -> None:
    client.feed(client.chunk(read.request, Chunk.ERROR_OFFSET, pack_error(5, "here") + pack(">Q", 8192)))
    assert client.result(read.request) == (5, "here")


def test_an_unknown_type_of_error_fails_the_request_only(client: Client, read: Read) -> None:
    client.feed(client.chunk(read.request, 0x8123, pack_error(28, "new") + b"more"))
    assert client.result(read.request) == (28, "new")


@pytest.mark.parametrize(
    "payload",
    [b"\0" * 5, pack(">IH", 0, 0), pack(">IH", 5, 1), pack(">IH", 5, 0xFFFF), pack(">IH", 5, 4000) + bytes(99)],
)
def test_a_broken_error_is_a_violation(client: Client, read: Read, payload: bytes) -> None:
    with pytest.raises(ServerViolation):
        client.feed(client.chunk(read.request, Chunk.ERROR, payload))


@pytest.mark.parametrize("kind", [Chunk.ERROR, Chunk.ERROR_OFFSET, 0xFFFF])
@pytest.mark.parametrize("length", [0, 5000, 0xFFFFFFFF])
def test_an_error_of_a_wrong_length_is_a_violation(client: Client, read: Read, kind: int, length: int) -> None:
    header = ChunkHeader(kind, DONE, read.request.cookie, length, 8192)
    with pytest.raises(ServerViolation):
        client.feed(header.pack(extended=client.extended) + bytes(20))


@pytest.mark.parametrize("kind", [3, 4, 7, 0x7FFF])
def test_an_unknown_type_of_content_is_a_violation(client: Client, read: Read, kind: int) -> None:
    with pytest.raises(ServerViolation, match="unknown type"):
        client.feed(client.chunk(read.request, kind, b"1234"))


@pytest.mark.parametrize(("payload", "done"), [(b"x", True), (b"", False)])
def test_an_empty_chunk_that_is_not_empty_or_not_the_last_is_a_violation(
    client: Client, read: Read, payload: bytes, done: bool
) -> None:
    with pytest.raises(ServerViolation, match="empty chunk"):
        client.feed(client.chunk(read.request, Chunk.NONE, payload, done=done))


def test_garbage_is_a_violation(any_client: Client) -> None:
    any_client.begin(Command.WRITE)
    with pytest.raises(ServerViolation, match="begins with"):
        any_client.feed(b"HTTP/1.1 200 OK\r\n\r\n")


# 115: status


def test_a_status_of_another_context_is_a_violation(client: Client) -> None:
    request = client.begin(Command.BLOCK_STATUS)
    with pytest.raises(ServerViolation, match="not asked for"):
        client.feed(client.status(request, 99, (1, 1)))


def test_a_second_status_of_a_context_is_a_violation(client: Client) -> None:
    request = client.begin(Command.BLOCK_STATUS)
    client.feed(client.status(request, 1, (1, 1), done=False))
    with pytest.raises(ServerViolation, match=r"two statuses|was there before"):
        client.feed(client.status(request, 1, (1, 1)))


def test_a_status_in_reply_to_something_else_is_a_violation(client: Client) -> None:
    request = client.begin(Command.WRITE)
    with pytest.raises(ServerViolation, match="not asked for"):
        client.feed(client.status(request, 1, (1, 1)))


def test_a_status_of_the_other_form_is_a_violation(client: Client) -> None:
    request = client.begin(Command.BLOCK_STATUS)
    other = Chunk.BLOCK_STATUS if client.extended else Chunk.BLOCK_STATUS_EXT
    with pytest.raises(ServerViolation, match="unknown type"):
        client.feed(client.chunk(request, other, pack_extents(1, [1], [1], extended=not client.extended)))


def test_a_status_of_more_extents_than_the_limit_is_refused_before_memory_is_taken(client: Client) -> None:
    request = client.begin(Command.BLOCK_STATUS)
    header = ChunkHeader(
        Chunk.BLOCK_STATUS_EXT if client.extended else Chunk.BLOCK_STATUS,
        DONE,
        request.cookie,
        8 + 16 * MAX_STATUS_EXTENTS + 16,
        request.offset,
    )
    with pytest.raises(ServerViolation, match=r"bytes|status of a length"):
        client.feed(header.pack(extended=client.extended))


def test_a_status_without_a_context_is_a_violation(client: Client) -> None:
    request = client.begin(Command.BLOCK_STATUS)
    kind = Chunk.BLOCK_STATUS_EXT if client.extended else Chunk.BLOCK_STATUS
    with pytest.raises(ServerViolation, match=r"without a context|status of a length"):
        client.feed(client.chunk(request, kind, b"\0\0\1"))


def test_a_simple_success_is_no_status(parser: Parser) -> None:
    client = parser("structured")
    request = client.begin(Command.BLOCK_STATUS)
    with pytest.raises(ServerViolation, match="without extents"):
        client.feed(SimpleReply(request.cookie, 0).pack())


# What only the parser in Python tells; for that in C see ioutil/test_nbd_replies.py


@pytest.mark.parametrize("form", FORMS)
def test_a_request_waits_until_its_reply_is_complete(form: str) -> None:
    client = PythonClient(form)
    request = client.begin(Command.TRIM)
    reply = SimpleReply(request.cookie, 0).pack() if form == "simple" else client.none(request)
    client.feed(reply[:-1])
    assert client.replies.waiting == {request.cookie: request}
    client.feed(reply[-1:])
    assert not client.replies.waiting


@pytest.mark.parametrize("step", [1, 1 << 30])
@pytest.mark.parametrize("form", CHUNKS)
def test_a_status_has_a_payload_for_each_context(form: str, step: int) -> None:
    client = PythonClient(form, step)
    request = client.begin(Command.BLOCK_STATUS)
    client.feed(client.status(request, 2, (4096, 1), done=False))
    client.feed(client.status(request, 1, (1024, 3), (9999, 0)))
    assert client.ended == [request]
    assert set(request.statuses) == {1, 2}


@pytest.mark.parametrize("form", CHUNKS)
def test_statuses_of_one_request_are_limited_together(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = PythonClient(form)
    monkeypatch.setattr(client_replies, "MAX_STATUS_BYTES", 100)
    request = client.begin(Command.BLOCK_STATUS)
    client.feed(client.status(request, 1, (1, 1), (1, 2), done=False))
    with pytest.raises(ServerViolation, match="bytes"):
        client.feed(client.status(request, 2, *[(1, 1)] * 10))
