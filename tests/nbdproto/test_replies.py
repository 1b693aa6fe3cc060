# SPDX-License-Identifier: Apache-2.0
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imageio_daemon.nbdproto.constants import (
    BASE_ALLOCATION,
    MAX_ERROR_TEXT,
    Chunk,
    Command,
    ErrorNumber,
    InfoType,
    OptionType,
    Reply,
)
from imageio_daemon.nbdproto.messages import BadMagic, unpack_error, unpack_extents, unpack_hole
from imageio_daemon.nbdproto.option_payloads import (
    BlockSizes,
    ContextRequest,
    ExportInfo,
    InfoRequest,
    OptionHeader,
    OptionReply,
    pack_context,
    pack_greeting,
    pack_server,
    pack_text_info,
    unpack_context,
    unpack_greeting,
)
from tests.support.nbd_payloads import ChunkHeader, RequestHeader, SimpleReply, pack_error, pack_extents, unpack_server
from tests.support.nbdoracle.limits import MAX_COMPACT_EXTENT
from tests.support.nbdoracle.replies import ExtendedReplies, Replies, SimpleReplies, StructuredReplies
from tests.support.nbdoracle.requests import Request

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
U16 = st.integers(0, 2**16 - 1)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=300)

READ = Request(Command.READ, 0, 0x0123456789ABCDEF, 65536, 4096)
WRITE = Request(Command.WRITE, 0, 2**64 - 1, 65536, 4096)


def chunk(data: bytes, *, extended: bool) -> tuple[ChunkHeader, bytes]:
    size = 32 if extended else 20
    header = ChunkHeader.unpack(data[:size], extended=extended)
    assert len(data) == size + header.length
    return header, data[size:]


# Replies


def test_simple_replies_are_16_bytes_without_text() -> None:
    replies = SimpleReplies()
    assert SimpleReply.unpack(replies.success(WRITE)) == (WRITE.cookie, 0)
    assert SimpleReply.unpack(replies.failure(WRITE, ErrorNumber.EIO, "text")) == (WRITE.cookie, ErrorNumber.EIO)
    assert SimpleReply.unpack(replies.data(READ, 65536, 4096, done=True)) == (READ.cookie, 0)


def test_simple_replies_have_no_chunks() -> None:
    with pytest.raises(NotImplementedError):
        SimpleReplies().hole(READ, 0, 1, done=True)
    with pytest.raises(NotImplementedError):
        SimpleReplies().status(READ, 0, [1], [0])


def test_structured_success_is_a_simple_reply_except_for_read() -> None:
    replies = StructuredReplies()
    assert SimpleReply.unpack(replies.success(WRITE)) == (WRITE.cookie, 0)
    header, _ = chunk(replies.success(READ), extended=False)
    assert (header.type, header.done, header.length) == (Chunk.NONE, True, 0)


CHUNKED = [(StructuredReplies(), False), (ExtendedReplies(), True)]


@pytest.mark.parametrize(("replies", "extended"), CHUNKED)
@pytest.mark.parametrize("done", [False, True])
def test_data_is_announced_with_its_place(replies: Replies, extended: bool, done: bool) -> None:
    head = replies.data(READ, 65540, 100, done=done)
    header, payload = chunk(head + bytes(100), extended=extended)
    assert (header.type, header.done, header.cookie) == (Chunk.OFFSET_DATA, done, READ.cookie)
    assert struct.unpack_from(">Q", payload) == (65540,)
    assert header.offset == (READ.offset if extended else 0)


@pytest.mark.parametrize(("replies", "extended"), CHUNKED)
def test_hole_has_12_bytes(replies: Replies, extended: bool) -> None:
    header, payload = chunk(replies.hole(READ, 65540, 100, done=False), extended=extended)
    assert (header.type, header.done, header.length) == (Chunk.OFFSET_HOLE, False, 12)
    assert unpack_hole(payload) == (65540, 100)


@pytest.mark.parametrize(("replies", "extended"), CHUNKED)
def test_failure_is_the_last_chunk_with_a_text(replies: Replies, extended: bool) -> None:
    header, payload = chunk(replies.failure(READ, ErrorNumber.EIO, "no\nluck" + "ü" * 300), extended=extended)
    error, text = unpack_error(header.type, payload)
    assert (header.type, header.done, error) == (Chunk.ERROR, True, ErrorNumber.EIO)
    assert text.startswith("no?luckü")
    assert len(text.encode()) <= MAX_ERROR_TEXT


def test_extended_success_is_a_chunk_that_echoes_the_offset() -> None:
    header, _ = chunk(ExtendedReplies().success(WRITE), extended=True)
    assert (header.type, header.done, header.offset) == (Chunk.NONE, True, WRITE.offset)


def test_status_names_the_context_and_the_extents() -> None:
    header, payload = chunk(StructuredReplies().status(READ, 1, [4096, 512], [0, 3]), extended=False)
    assert (header.type, header.done) == (Chunk.BLOCK_STATUS, True)
    assert unpack_extents(payload, extended=False) == (1, [(4096, 0), (512, 3)])


def test_long_extent_is_cut_to_whole_blocks_and_ends_the_reply() -> None:
    _, payload = chunk(StructuredReplies().status(READ, 1, [4096, 2**40, 512], [0, 3, 0]), extended=False)
    assert unpack_extents(payload, extended=False) == (1, [(4096, 0), (MAX_COMPACT_EXTENT, 3)])
    assert MAX_COMPACT_EXTENT % 65536 == 0


def test_extended_status_tells_long_extents_whole() -> None:
    header, payload = chunk(ExtendedReplies().status(READ, 1, [2**40, 512], [3, 0]), extended=True)
    assert header.type == Chunk.BLOCK_STATUS_EXT
    assert unpack_extents(payload, extended=True) == (1, [(2**40, 3), (512, 0)])


# Messages: what is packed can be unpacked


@given(U16, U16, U64, U64, U32)
def test_request_survives(command: int, flags: int, cookie: int, offset: int, length: int) -> None:
    message = RequestHeader(command, flags, cookie, offset, length)
    for extended in (False, True):
        assert RequestHeader.unpack(message.pack(extended=extended), extended=extended) == message


@given(U64, U32)
def test_simple_reply_survives(cookie: int, error: int) -> None:
    assert SimpleReply.unpack(SimpleReply(cookie, error).pack()) == (cookie, error)


@given(U16, U16, U64, U32, U64)
def test_chunk_header_survives(kind: int, flags: int, cookie: int, length: int, offset: int) -> None:
    compact, extended = ChunkHeader(kind, flags, cookie, length), ChunkHeader(kind, flags, cookie, length, offset)
    assert ChunkHeader.unpack(compact.pack()) == compact
    assert ChunkHeader.unpack(extended.pack(extended=True), extended=True) == extended


@given(NAMES, st.lists(U16, max_size=9))
def test_info_request_survives(name: str, infos: list[int]) -> None:
    assert InfoRequest.unpack(InfoRequest(name, tuple(infos)).pack()) == (name, tuple(infos))


@given(NAMES, st.lists(NAMES, max_size=9))
def test_context_request_survives(name: str, queries: list[str]) -> None:
    assert ContextRequest.unpack(ContextRequest(name, tuple(queries)).pack()) == (name, tuple(queries))


@given(NAMES, NAMES)
def test_list_entry_survives(name: str, description: str) -> None:
    assert unpack_server(pack_server(name, description)) == (name, description)


@given(U32, st.lists(st.tuples(st.integers(1, 2**32 - 1), U32), min_size=1, max_size=9))
def test_extents_survive(context_id: int, extents: list[tuple[int, int]]) -> None:
    for extended in (False, True):
        packed = pack_extents(context_id, *zip(*extents, strict=True), extended=extended)
        assert unpack_extents(packed, extended=extended) == (context_id, extents)


def test_headers_and_items_survive() -> None:
    assert unpack_greeting(pack_greeting(3)) == 3
    assert OptionHeader.unpack(OptionHeader(OptionType.GO, 9).pack()) == (OptionType.GO, 9)
    assert OptionReply.unpack(OptionReply(OptionType.GO, Reply.ACK, 9).pack()) == (OptionType.GO, Reply.ACK, 9)
    assert ExportInfo.unpack(ExportInfo(2**63, 0x0DED).pack()) == (2**63, 0x0DED)
    assert BlockSizes.unpack(BlockSizes(1, 512, 2**25).pack()) == (1, 512, 2**25)
    assert unpack_context(pack_context(5, BASE_ALLOCATION)) == (5, BASE_ALLOCATION)
    assert pack_text_info(InfoType.NAME, "a") == b"\0\1a"


# Messages: what is not one is refused


@pytest.mark.parametrize(
    "unpack",
    [
        lambda: RequestHeader.unpack(bytes(28)),
        lambda: RequestHeader.unpack(bytes(32), extended=True),
        lambda: SimpleReply.unpack(bytes(16)),
        lambda: ChunkHeader.unpack(bytes(20)),
        lambda: ChunkHeader.unpack(bytes(32), extended=True),
        lambda: OptionHeader.unpack(bytes(16)),
        lambda: OptionReply.unpack(bytes(20)),
        lambda: unpack_greeting(b"NBDMAGIC" + bytes(10)),
    ],
)
def test_wrong_magic_is_refused(unpack: Callable[[], object]) -> None:
    with pytest.raises(BadMagic):
        unpack()


@pytest.mark.parametrize("length", [0, 11, 13])
def test_hole_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="hole"):
        unpack_hole(bytes(length))


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Chunk.ERROR, b""),
        (Chunk.ERROR, bytes(5)),
        (Chunk.ERROR, bytes(6)),  # number 0
        (Chunk.ERROR, struct.pack(">IH", 5, 1)),
        (Chunk.ERROR_OFFSET, struct.pack(">IHQ", 5, 1, 0)),
        (Chunk.ERROR_OFFSET, pack_error(5, "")),
    ],
)
def test_malformed_error_chunk_is_refused(kind: int, payload: bytes) -> None:
    with pytest.raises(ValueError, match="error chunk"):
        unpack_error(kind, payload)


@pytest.mark.parametrize(
    ("extended", "payload"),
    [
        (False, b""),
        (False, bytes(4)),
        (False, bytes(11)),
        (False, bytes(12)),
        (True, bytes(8)),
        (True, struct.pack(">IIQQ", 1, 2, 512, 0)),
        (True, struct.pack(">IIQQ", 1, 1, 0, 0)),
    ],
)
def test_malformed_status_chunk_is_refused(extended: bool, payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"chunk|extent"):
        unpack_extents(payload, extended=extended)
