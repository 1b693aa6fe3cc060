# SPDX-License-Identifier: Apache-2.0
"""The client's transmission phase: what servers reply, good and bad."""

import os
from collections.abc import Iterator
from struct import pack

import pytest

from imageio_daemon.nbdproto.constants import (
    DONE,
    MAX_STATUS_EXTENTS,
    Chunk,
    Command,
    CommandFlag,
    ErrorNumber,
)
from imageio_daemon.units import KiB
from tests.support.nbd_payloads import ChunkHeader, RequestHeader, SimpleReply, pack_error, pack_extents, pack_hole
from tests.support.nbd_replies import Replies, Request, Violation

FORMS = ("simple", "structured", "extended")
CHUNKS = FORMS[1:]
#: base:allocation, qemu:allocation-depth and a dirty bitmap.
CONTEXTS = 3
ZERO, HOLE, DIRTY = 1, 2, 4

#: Before and after the memory of a request: it must never change.
GUARD = b"\xaa" * 64


class Client:
    """Feed replies to a client of one of the forms. step: bytes received at once."""

    def __init__(self, form: str, step: int = 1 << 30) -> None:
        self.form = form
        self.step = step
        self.extended = form == "extended"
        self.replies = Replies(structured=form != "simple", extended=self.extended, contexts=CONTEXTS)

    @property
    def ended(self) -> list[Request]:
        return self.replies.ended

    def read(self, offset: int, length: int) -> "Read":
        return Read(self, offset, length)

    def begin(self, command: Command, offset: int = 0, length: int = 4096, flags: int = 0) -> Request:
        request = Request(command, offset, length, flags)
        self.replies.begin(request)
        return request

    def feed(self, data: bytes) -> None:
        self.replies.feed(data, self.step)

    def chunk(self, request: Request, kind: int, payload: bytes, *, done: bool = True) -> bytes:
        header = ChunkHeader(kind, DONE if done else 0, request.cookie, len(payload), request.offset)
        return header.pack(extended=self.extended) + payload

    def data(self, request: Request, offset: int, data: bytes, *, done: bool = True) -> bytes:
        return self.chunk(request, Chunk.OFFSET_DATA, pack(">Q", offset) + data, done=done)

    def hole(self, request: Request, offset: int, size: int, *, done: bool = True) -> bytes:
        return self.chunk(request, Chunk.OFFSET_HOLE, pack_hole(offset, size), done=done)

    def none(self, request: Request) -> bytes:
        return self.chunk(request, Chunk.NONE, b"")

    def error(self, request: Request, error: int, text: str = "", *, done: bool = True) -> bytes:
        return self.chunk(request, Chunk.ERROR, pack_error(error, text), done=done)

    def status(self, request: Request, context: int, *extents: tuple[int, int], done: bool = True) -> bytes:
        kind = Chunk.BLOCK_STATUS_EXT if self.extended else Chunk.BLOCK_STATUS
        payload = pack_extents(context, *zip(*extents, strict=True), extended=self.extended)
        return self.chunk(request, kind, payload, done=done)


class Read:
    """A READ into guarded memory."""

    def __init__(self, client: Client, offset: int, length: int) -> None:
        self.memory = bytearray(GUARD + bytes([0x55]) * length + GUARD)
        self.request = Request(Command.READ, offset, length, memory=self.memory)
        client.replies.begin(self.request, guard=len(GUARD))

    @property
    def content(self) -> bytes:
        assert self.memory[: len(GUARD)] == GUARD
        assert self.memory[-len(GUARD) :] == GUARD
        return bytes(self.memory[len(GUARD) : -len(GUARD)])


@pytest.fixture(params=FORMS)
def any_client(request: pytest.FixtureRequest) -> Client:
    return Client(request.param)


@pytest.fixture(params=CHUNKS)
def client(request: pytest.FixtureRequest) -> Client:
    return Client(request.param)


@pytest.fixture
def read(client: Client) -> Iterator[Read]:
    """A READ of 4096 bytes at 8192, of which nothing outside of its memory is written."""
    read = client.read(8192, 4096)
    yield read
    assert len(read.content) == 4096


# Requests


@pytest.mark.parametrize("form", FORMS)
def test_requests_have_headers_of_the_form(form: str) -> None:
    client = Client(form)
    request = Request(Command.WRITE, 4096, 512, CommandFlag.FUA)
    header = RequestHeader.unpack(client.replies.begin(request), extended=client.extended)
    expected = CommandFlag.FUA | (CommandFlag.PAYLOAD_LEN if client.extended else 0)
    assert header == (Command.WRITE, expected, request.cookie, 4096, 512)


def test_extended_requests_have_long_lengths() -> None:
    header = Client("extended").replies.begin(Request(Command.WRITE_ZEROES, 0, 2**40))
    assert RequestHeader.unpack(header, extended=True).length == 2**40


# Good replies


@pytest.mark.parametrize("step", [1, 7, 100, 1 << 30])
@pytest.mark.parametrize("length", [1, 512, 200 * KiB])
@pytest.mark.parametrize("form", FORMS)
def test_data_arrives_in_its_memory(form: str, length: int, step: int) -> None:
    if step == 1 and length > 512:
        step = 997
    client = Client(form, step)
    data = os.urandom(length)
    first, second = client.read(4096, length), client.read(0, 3)
    success = SimpleReply(first.request.cookie, 0).pack() + data
    client.feed(success if form == "simple" else client.data(first.request, 4096, data))
    success = SimpleReply(second.request.cookie, 0).pack() + b"abc"
    client.feed(success if form == "simple" else client.data(second.request, 0, b"abc"))
    assert client.ended == [first.request, second.request]
    assert (first.content, second.content) == (data, b"abc")


def test_simple_replies_end_requests_without_data() -> None:
    for form in FORMS[:2]:
        client = Client(form)
        request = client.begin(Command.WRITE)
        client.feed(SimpleReply(request.cookie, 0).pack())
        assert client.ended == [request]
        assert client.replies.error(request) == (0, "")


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
    with pytest.raises(Violation, match="no request"):
        any_client.feed(reply)


def test_a_second_reply_is_a_violation(any_client: Client) -> None:
    request = any_client.begin(Command.WRITE)
    reply = any_client.none(request) if any_client.form != "simple" else SimpleReply(request.cookie, 0).pack()
    any_client.feed(reply)
    with pytest.raises(Violation, match="no request"):
        any_client.feed(reply)
    assert any_client.ended == [request]


def test_a_chunk_after_the_last_one_is_a_violation(client: Client, read: Read) -> None:
    client.feed(client.data(read.request, 8192, b"a" * 4096))
    with pytest.raises(Violation, match="no request"):
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
    with pytest.raises(Violation, match="outside"):
        client.feed(header.pack(extended=client.extended) + pack(">Q", offset))
    assert read.content == b"\x55" * 4096


@pytest.mark.parametrize(
    ("offset", "length"), [(8191, 1), (8192, 4097), (8192, 0), (8192, 2**32 - 1), (2**64 - 1, 2), (12288, 1)]
)
def test_a_hole_outside_of_the_request_is_a_violation(client: Client, read: Read, offset: int, length: int) -> None:
    with pytest.raises(Violation, match="outside"):
        client.feed(client.hole(read.request, offset, length))
    assert read.content == b"\x55" * 4096


@pytest.mark.parametrize(("offset", "length"), [(8192, 1), (8192 + 1000, 10), (8192 + 999, 2), (8192, 4096)])
def test_data_that_was_there_before_is_a_violation(client: Client, read: Read, offset: int, length: int) -> None:
    client.feed(client.data(read.request, 8192, b"a" * 500, done=False))
    client.feed(client.data(read.request, 8192 + 1000, b"b" * 500, done=False))
    with pytest.raises(Violation, match="before"):
        client.feed(client.hole(read.request, offset, length))


@pytest.mark.parametrize("parts", [[], [(8192, 4095)], [(8193, 4095)], [(8192, 100), (8300, 3988)]])
def test_a_success_without_all_data_is_a_violation(client: Client, read: Read, parts: list[tuple[int, int]]) -> None:
    for offset, length in parts:
        client.feed(client.hole(read.request, offset, length, done=False))
    with pytest.raises(Violation, match="without all data"):
        client.feed(client.none(read.request))
    assert not client.ended


@pytest.mark.parametrize("length", [0, 7, 8])
def test_data_of_no_bytes_is_a_violation(client: Client, read: Read, length: int) -> None:
    with pytest.raises(Violation, match="no bytes"):
        client.feed(client.chunk(read.request, Chunk.OFFSET_DATA, bytes(length)))


def test_data_in_too_many_pieces_is_a_violation(client: Client) -> None:
    read = client.read(0, 400 * KiB)
    chunks = [client.hole(read.request, i, 1, done=False) for i in (*range(1, 400 * KiB, 2), *range(0, 400 * KiB, 2))]
    with pytest.raises(Violation, match="without all data"):
        client.feed(b"".join(chunks) + client.none(read.request))


def test_data_in_reply_to_something_else_is_a_violation(client: Client) -> None:
    request = client.begin(Command.WRITE)
    with pytest.raises(Violation, match="data in a reply that may have none"):
        client.feed(client.data(request, 0, b"x"))


# 112: forms that were not negotiated


def test_a_chunk_without_structured_replies_is_a_violation() -> None:
    client = Client("simple")
    with pytest.raises(Violation, match="begins with another number"):
        client.feed(client.none(client.begin(Command.WRITE)))


def test_a_simple_reply_to_a_read_with_structured_replies_is_a_violation() -> None:
    client = Client("structured")
    for error in (0, 5):
        read = client.read(0, 10)
        with pytest.raises(Violation, match="simple reply to a READ"):
            client.feed(SimpleReply(read.request.cookie, error).pack())


def test_other_forms_than_extended_headers_are_a_violation() -> None:
    for reply in (SimpleReply(1, 0).pack(), ChunkHeader(0, 1, 1, 0).pack()):
        client = Client("extended")
        client.begin(Command.WRITE)
        with pytest.raises(Violation, match="begins with another number"):
            client.feed(reply)


def test_an_extended_reply_with_the_offset_of_another_request_is_a_violation() -> None:
    client = Client("extended")
    request = client.begin(Command.WRITE, offset=4096)
    request.offset = 0
    reply = client.none(request)
    request.offset = 4096
    with pytest.raises(Violation, match="offset of another"):
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
    assert any_client.replies.error(request)[0] == meant


def test_not_fast_is_an_answer_to_fast_zeroing_only(any_client: Client) -> None:
    request = any_client.begin(Command.WRITE_ZEROES, flags=CommandFlag.FAST_ZERO)
    reply = SimpleReply(request.cookie, 95).pack()
    any_client.feed(any_client.error(request, 95) if any_client.extended else reply)
    assert any_client.replies.error(request)[0] == ErrorNumber.ENOTSUP


def test_an_error_has_its_text_and_needs_no_data(client: Client, read: Read) -> None:
    client.feed(client.data(read.request, 8192, b"a" * 100, done=False))
    client.feed(client.error(read.request, 5, "the disk is broken", done=False))
    client.feed(client.none(read.request))
    assert client.ended == [read.request]
    assert client.replies.error(read.request) == (5, "the disk is broken")


def test_an_error_with_an_offset_is_one(client: Client, read: Read) -> None:
    client.feed(client.chunk(read.request, Chunk.ERROR_OFFSET, pack_error(5, "here") + pack(">Q", 8192)))
    assert client.replies.error(read.request) == (5, "here")


def test_an_unknown_type_of_error_fails_the_request_only(client: Client, read: Read) -> None:
    client.feed(client.chunk(read.request, 0x8123, pack_error(28, "new") + b"more"))
    assert client.replies.error(read.request) == (28, "new")


@pytest.mark.parametrize(
    "payload",
    [b"\0" * 5, pack(">IH", 0, 0), pack(">IH", 5, 1), pack(">IH", 5, 0xFFFF), pack(">IH", 5, 4000) + bytes(99)],
)
def test_a_broken_error_is_a_violation(client: Client, read: Read, payload: bytes) -> None:
    with pytest.raises(Violation):
        client.feed(client.chunk(read.request, Chunk.ERROR, payload))


@pytest.mark.parametrize("kind", [Chunk.ERROR, Chunk.ERROR_OFFSET, 0xFFFF])
@pytest.mark.parametrize("length", [0, 5000, 0xFFFFFFFF])
def test_an_error_of_a_wrong_length_is_a_violation(client: Client, read: Read, kind: int, length: int) -> None:
    header = ChunkHeader(kind, DONE, read.request.cookie, length, 8192)
    with pytest.raises(Violation):
        client.feed(header.pack(extended=client.extended) + bytes(20))


@pytest.mark.parametrize("kind", [3, 4, 7, 0x7FFF])
def test_an_unknown_type_of_content_is_a_violation(client: Client, read: Read, kind: int) -> None:
    with pytest.raises(Violation, match="unknown type"):
        client.feed(client.chunk(read.request, kind, b"1234"))


@pytest.mark.parametrize(("payload", "done"), [(b"x", True), (b"", False)])
def test_an_empty_chunk_that_is_not_empty_or_not_the_last_is_a_violation(
    client: Client, read: Read, payload: bytes, done: bool
) -> None:
    with pytest.raises(Violation, match="empty chunk"):
        client.feed(client.chunk(read.request, Chunk.NONE, payload, done=done))


def test_garbage_is_a_violation(any_client: Client) -> None:
    any_client.begin(Command.WRITE)
    with pytest.raises(Violation, match="begins with another number"):
        any_client.feed(b"HTTP/1.1 200 OK\r\n\r\n")


# 115: status


@pytest.mark.parametrize("step", [1, 1 << 30])
def test_a_status_has_a_payload_for_each_context(client: Client, step: int) -> None:
    client.step = step
    request = client.begin(Command.BLOCK_STATUS)
    client.feed(client.status(request, 3, (8192, 1), done=False))
    client.feed(client.status(request, 2, (4096, 0), done=False))
    client.feed(client.status(request, 1, (1024, 3), (9999, 0)))
    assert client.ended == [request]
    assert client.replies.extents(request, 0, 4096) == [(0, 1024, ZERO | HOLE | DIRTY), (1024, 3072, HOLE | DIRTY)]


def test_contexts_share_the_memory_for_what_is_told(client: Client) -> None:
    request = Request(Command.BLOCK_STATUS, 0, 1 << 30)
    client.replies.begin(request, most=1 << 20)
    kept, told = (4 << 20) // 16 // CONTEXTS, [(512, number % 2) for number in range(90_000)]
    for context in range(1, CONTEXTS + 1):
        client.feed(client.status(request, context, *told, done=context == CONTEXTS))
    assert kept < len(told)
    found = client.replies.extents(request, 0, 1 << 30, most=1 << 20)
    assert (len(found), found[-1][0] + found[-1][1]) == (kept, 512 * kept)


def test_a_status_of_another_context_is_a_violation(client: Client) -> None:
    request = client.begin(Command.BLOCK_STATUS)
    with pytest.raises(Violation, match="not asked for"):
        client.feed(client.status(request, 99, (1, 1)))


def test_a_second_status_of_a_context_is_a_violation(client: Client) -> None:
    request = client.begin(Command.BLOCK_STATUS)
    client.feed(client.status(request, 1, (1, 1), done=False))
    with pytest.raises(Violation, match="was there before"):
        client.feed(client.status(request, 1, (1, 1)))


def test_a_status_in_reply_to_something_else_is_a_violation(client: Client) -> None:
    request = client.begin(Command.WRITE)
    with pytest.raises(Violation, match="not asked for"):
        client.feed(client.status(request, 1, (1, 1)))


def test_a_status_of_the_other_form_is_a_violation(client: Client) -> None:
    request = client.begin(Command.BLOCK_STATUS)
    other = Chunk.BLOCK_STATUS if client.extended else Chunk.BLOCK_STATUS_EXT
    with pytest.raises(Violation, match="unknown type"):
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
    with pytest.raises(Violation, match="status of a length"):
        client.feed(header.pack(extended=client.extended))


def test_a_status_without_a_context_is_a_violation(client: Client) -> None:
    request = client.begin(Command.BLOCK_STATUS)
    kind = Chunk.BLOCK_STATUS_EXT if client.extended else Chunk.BLOCK_STATUS
    with pytest.raises(Violation, match="status of a length"):
        client.feed(client.chunk(request, kind, b"\0\0\1"))


def test_a_simple_success_is_no_status() -> None:
    client = Client("structured")
    request = client.begin(Command.BLOCK_STATUS)
    with pytest.raises(Violation, match="without extents"):
        client.feed(SimpleReply(request.cookie, 0).pack())


# What contexts tell together


def told(client: Client, length: int, *contexts: list[tuple[int, int]], most: int = 1000) -> list[tuple[int, int, int]]:
    """Return the extents of 0..length, if each context tells these."""
    request = Request(Command.BLOCK_STATUS, 0, length)
    client.replies.begin(request, most=most)
    for number, extents in enumerate(contexts, 1):
        client.feed(client.status(request, number, *extents, done=number == len(contexts)))
    return client.replies.extents(request, 0, length, most)


DATA_1000, DEPTH_1000, CLEAN_1000 = [(1000, 0)], [(1000, 1)], [(1000, 0)]


def test_extents_that_say_the_same_are_one(client: Client) -> None:
    zeros = [(100, 3), (100, 2), (300, 0), (500, 3)]
    assert told(client, 1000, zeros, DEPTH_1000, CLEAN_1000) == [(0, 200, ZERO), (200, 300, 0), (500, 500, ZERO)]


def test_extents_are_cut_where_any_context_changes(client: Client) -> None:
    extents = told(client, 1000, [(600, 3), (400, 0)], [(300, 0), (700, 2)], [(900, 0), (100, 1)])
    assert extents == [(0, 300, ZERO | HOLE), (300, 300, ZERO), (600, 300, 0), (900, 100, DIRTY)]


def test_extents_go_as_far_as_all_contexts_do(client: Client) -> None:
    assert told(client, 1000, [(2000, 3)], [(400, 1)], CLEAN_1000) == [(0, 400, ZERO)]


def test_extents_end_where_the_range_does(client: Client) -> None:
    assert told(client, 10, DATA_1000, DEPTH_1000, CLEAN_1000) == [(0, 10, 0)]


def test_extents_that_there_is_no_room_for_are_left_out(client: Client) -> None:
    changing = [(10, 3 * (i % 2)) for i in range(100)]
    extents = told(client, 1000, changing, DEPTH_1000, CLEAN_1000, most=5)
    assert extents == [(10 * i, 10, i % 2) for i in range(5)]


def test_a_context_that_tells_nothing_is_noticed(client: Client) -> None:
    with pytest.raises(ValueError, match="nothing was told"):
        told(client, 1000, DATA_1000, DEPTH_1000)


@pytest.mark.parametrize("length", [0, 2**63])
def test_an_extent_that_cannot_be_is_a_violation(length: int) -> None:
    client = Client("extended")
    with pytest.raises(Violation, match="an empty extent, or one that is too long"):
        told(client, 1000, [(10, 0), (length, 0)], DEPTH_1000, CLEAN_1000)
