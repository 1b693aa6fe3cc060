# SPDX-License-Identifier: Apache-2.0
"""The client's negotiation with servers of all kinds, good and bad."""

from struct import pack
from typing import Any

import pytest

from imageio_daemon.nbdproto.client_negotiation import (
    DEFAULT_SIZES,
    Agreed,
    ClientNegotiation,
    ExportRefused,
    ServerViolation,
)
from imageio_daemon.nbdproto.constants import (
    ALLOCATION_DEPTH,
    BASE_ALLOCATION,
    MAX_CONTEXTS,
    MAX_OPTION_REPLY,
    NBDMAGIC,
    OLDSTYLE,
    OPTION_REPLY,
    ExportFlag,
    InfoType,
    OptionType,
    Reply,
)
from imageio_daemon.nbdproto.messages import BadMagic
from imageio_daemon.nbdproto.option_payloads import (
    BlockSizes,
    ContextRequest,
    InfoRequest,
    OptionHeader,
    OptionReply,
    pack_context,
    pack_greeting,
    pack_text_info,
)
from imageio_daemon.units import KiB, MiB

from .scripted import ACK, FLAGS, MODERN, SIZE, Answers, Handler, Server, contexts, export, fixed

SIZES = BlockSizes(512, 65536, 32 * MiB)
ABORT = OptionHeader(OptionType.ABORT, 0).pack()


def agree(server: Server, **arguments: Any) -> Agreed:
    return server.run(ClientNegotiation("disk", **arguments))


def serving(changes: dict[int, Handler] | None = None, **fields: Any) -> Server:
    return Server({**MODERN, **(changes or {})}, **fields)


def refusing(option: int, reply: int) -> dict[int, Handler]:
    return {option: fixed([(reply, b"no")])}


@pytest.mark.parametrize("byte_by_byte", [False, True])
def test_a_modern_server_is_asked_for_everything_once(byte_by_byte: bool) -> None:
    server = serving({OptionType.GO: export(sizes=SIZES)}, byte_by_byte=byte_by_byte)
    assert agree(server) == Agreed(SIZE, FLAGS, SIZES, True, True, {10: BASE_ALLOCATION})
    assert server.asked == [OptionType.EXTENDED_HEADERS, OptionType.SET_META_CONTEXT, OptionType.GO]
    assert server.client_flags == 3
    assert InfoRequest.unpack(server.payloads[OptionType.GO]) == ("disk", (InfoType.BLOCK_SIZE,))
    asked = ContextRequest.unpack(server.payloads[OptionType.SET_META_CONTEXT])
    assert asked == ("disk", (BASE_ALLOCATION, ALLOCATION_DEPTH))


def test_bitmaps_are_looked_for_when_the_ticket_is_a_dirty_one() -> None:
    bitmaps = ["qemu:dirty-bitmap:a", "qemu:dirty-bitmap:b"]
    known = contexts(BASE_ALLOCATION, ALLOCATION_DEPTH, *bitmaps)
    server = serving({OptionType.LIST_META_CONTEXT: known, OptionType.SET_META_CONTEXT: known})
    agreed = agree(server, dirty=True)
    assert agreed.bitmaps == bitmaps
    assert set(agreed.contexts.values()) == {BASE_ALLOCATION, ALLOCATION_DEPTH, *bitmaps}
    assert agree(serving({OptionType.SET_META_CONTEXT: known})).bitmaps == []


def test_contexts_that_are_named_are_selected_and_no_others() -> None:
    named = ["qemu:dirty-bitmap:a"]
    server = serving({OptionType.SET_META_CONTEXT: contexts(BASE_ALLOCATION, "qemu:dirty-bitmap:b", *named)})
    agreed = agree(server, dirty=True, only=named)
    assert list(agreed.contexts.values()) == agreed.bitmaps == named
    assert server.asked == [OptionType.EXTENDED_HEADERS, OptionType.SET_META_CONTEXT, OptionType.GO]


def test_bitmaps_are_none_if_one_of_them_is_not_selected() -> None:
    known = contexts(BASE_ALLOCATION, "qemu:dirty-bitmap:a", "qemu:dirty-bitmap:b")
    one = contexts(BASE_ALLOCATION, "qemu:dirty-bitmap:a")
    agreed = agree(serving({OptionType.LIST_META_CONTEXT: known, OptionType.SET_META_CONTEXT: one}), dirty=True)
    assert agreed.bitmaps == []
    assert list(agreed.contexts.values()) == [BASE_ALLOCATION]


# 101: magics


@pytest.mark.parametrize("greeting", [b"NBDMAGIX" + b"IHAVEOPT\0\3", b"NBDMAGIC" + b"IHAVEOPX\0\3", bytes(18)])
def test_a_wrong_magic_is_refused(greeting: bytes) -> None:
    with pytest.raises(BadMagic):
        agree(serving(greeting=greeting))


def test_an_oldstyle_server_is_refused_with_a_clear_reason() -> None:
    with pytest.raises(ExportRefused, match="oldstyle"):
        agree(serving(greeting=pack(">QQH", NBDMAGIC, OLDSTYLE, 0)))


def test_unknown_handshake_flags_are_ignored() -> None:
    server = serving(greeting=pack_greeting(0xFFFF))
    assert agree(server).size == SIZE
    assert server.client_flags == 3


# 102, 103: EXPORT_NAME


@pytest.mark.parametrize(("flags", "zeroes"), [(0, 124), (2, 0)])
@pytest.mark.parametrize("byte_by_byte", [False, True])
def test_a_server_without_options_is_entered_by_name(flags: int, zeroes: int, byte_by_byte: bool) -> None:
    server = serving(
        greeting=pack_greeting(flags), by_name=pack(">QH", SIZE, FLAGS) + bytes(zeroes), byte_by_byte=byte_by_byte
    )
    assert agree(server) == Agreed(SIZE, FLAGS)
    assert server.asked == [OptionType.EXPORT_NAME]
    assert server.payloads[OptionType.EXPORT_NAME] == b"disk"
    assert server.client_flags == flags


def test_a_server_without_options_is_refused_when_tls_is_required() -> None:
    with pytest.raises(ExportRefused, match="TLS"):
        agree(serving(greeting=pack_greeting(0)), tls=True)


@pytest.mark.parametrize(("flags", "zeroes"), [(1, 124), (3, 0)])
def test_a_server_without_go_is_entered_by_name(flags: int, zeroes: int) -> None:
    server = serving(
        {OptionType.GO: fixed([(Reply.ERR_UNSUP, b"")]), OptionType.EXTENDED_HEADERS: fixed([(Reply.ERR_UNSUP, b"")])},
        greeting=pack_greeting(flags),
        by_name=pack(">QH", SIZE, FLAGS) + bytes(zeroes),
    )
    agreed = agree(server)
    assert agreed.structured
    assert agreed.contexts == {10: BASE_ALLOCATION}
    assert server.asked[-1] == OptionType.EXPORT_NAME


# 104: refusals


@pytest.mark.parametrize("reply", [Reply.ERR_UNSUP, Reply.ERR_POLICY, Reply.ERR_INVALID, 0x80001234])
def test_without_structured_replies_it_goes_on_with_simple_ones(reply: int) -> None:
    server = serving(refusing(OptionType.EXTENDED_HEADERS, reply) | refusing(OptionType.STRUCTURED_REPLY, reply))
    agreed = agree(server)
    assert (agreed.structured, agreed.extended, agreed.contexts) == (False, False, {})
    assert server.asked == [OptionType.EXTENDED_HEADERS, OptionType.STRUCTURED_REPLY, OptionType.GO]


def test_without_contexts_it_goes_on() -> None:
    agreed = agree(serving(refusing(OptionType.SET_META_CONTEXT, Reply.ERR_UNSUP)))
    assert (agreed.structured, agreed.contexts) == (True, {})


@pytest.mark.parametrize(
    "reply", [Reply.ERR_UNKNOWN, Reply.ERR_POLICY, Reply.ERR_TLS_REQD, Reply.ERR_SHUTDOWN, 0x80001234]
)
def test_a_refused_export_is_told_with_its_reason_and_the_server_a_goodbye(reply: int) -> None:
    client = ClientNegotiation("disk")
    with pytest.raises(ExportRefused, match="GO refused") as caught:
        serving(refusing(OptionType.GO, reply)).run(client)
    assert caught.value.reply == reply
    assert client.take_output() == ABORT


def test_go_cannot_be_unknown_with_extended_headers() -> None:
    with pytest.raises(ExportRefused):
        agree(serving(refusing(OptionType.GO, Reply.ERR_UNSUP)))


# 105: information


def test_unknown_and_more_items_are_ignored_in_any_order() -> None:
    more: Answers = [
        (Reply.INFO, pack_text_info(InfoType.NAME, "disk")),
        (Reply.INFO, pack(">HQ", 4711, 1)),
        (Reply.SERVER, pack(">I", 0)),
    ]
    assert agree(serving({OptionType.GO: export(sizes=SIZES, more=more)})).sizes == SIZES


def test_a_server_that_tells_no_sizes_has_the_default_ones() -> None:
    assert agree(serving()).sizes == DEFAULT_SIZES


def test_an_acknowledgement_without_the_export_is_refused() -> None:
    with pytest.raises(ServerViolation, match="nothing was told"):
        agree(serving({OptionType.GO: fixed([(Reply.INFO, SIZES.pack()), *ACK])}))


@pytest.mark.parametrize(
    "payload", [b"", b"\0", pack(">HQ", 0, 1), pack(">HQHH", 0, 1, 1, 1), pack(">HII", 3, 512, 4096)]
)
def test_an_item_of_a_wrong_length_is_refused(payload: bytes) -> None:
    with pytest.raises(ServerViolation, match="cannot be read"):
        agree(serving({OptionType.GO: fixed([(Reply.INFO, payload), *ACK])}))


# 106: block sizes


@pytest.mark.parametrize(
    "sizes",
    [
        (0, 4096, MiB),
        (3, 4096, MiB),
        (128 * KiB, 128 * KiB, MiB),
        (512, 256, MiB),
        (8192, 4096, MiB),
        (512, 5000, MiB),
        (512, 4096, 1024),
        (512, 4096, MiB + 1),
        (1, 256, MiB),
    ],
)
def test_insane_block_sizes_are_ignored(sizes: tuple[int, int, int]) -> None:
    assert agree(serving({OptionType.GO: export(sizes=BlockSizes(*sizes))})).sizes == DEFAULT_SIZES


@pytest.mark.parametrize(
    ("told", "used"), [((1, 512, 0xFFFFFFFF), 32 * MiB), ((1, 512, 64 * MiB), 32 * MiB), ((512, 4096, 4096), 4096)]
)
def test_the_largest_payload_is_no_more_than_ours(told: tuple[int, int, int], used: int) -> None:
    assert agree(serving({OptionType.GO: export(sizes=BlockSizes(*told))})).sizes.maximum == used


# 107: option replies


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (OptionReply(OptionType.LIST, Reply.ACK, 0).pack(), "a reply to option 3"),
        (OptionReply(OptionType.GO, Reply.ACK, 1).pack() + b"x", "acknowledgement with a payload"),
        (OptionReply(OptionType.GO, Reply.INFO, MAX_OPTION_REPLY + 1).pack(), f"{MAX_OPTION_REPLY + 1} bytes"),
        (OptionReply(OptionType.GO, Reply.ERR_UNKNOWN, 0xFFFFFFFF).pack(), "4294967295 bytes"),
        (OptionReply(OptionType.GO, 77, 0).pack(), "unknown option reply"),
        (OptionReply(OptionType.GO, Reply.SERVER, 0).pack() * 1025, "too many option replies"),
    ],
)
def test_a_wrong_option_reply_is_a_violation(reply: bytes, reason: str) -> None:
    with pytest.raises(ServerViolation, match=reason):
        agree(serving(raw={OptionType.GO: reply}))


def test_a_wrong_magic_of_an_option_reply_is_refused() -> None:
    with pytest.raises(BadMagic):
        agree(serving(raw={OptionType.GO: pack(">QIII", OPTION_REPLY + 1, OptionType.GO, Reply.ACK, 0)}))


@pytest.mark.parametrize("option", [OptionType.EXTENDED_HEADERS, OptionType.GO])
def test_bytes_that_nobody_asked_for_are_a_violation(option: OptionType) -> None:
    answers = MODERN[option](b"")
    raw = b"".join(OptionReply(option, reply, len(data)).pack() + data for reply, data in answers)
    with pytest.raises((ServerViolation, BadMagic)):
        agree(serving(raw={option: raw + bytes(100)}))


# 108: texts


@pytest.mark.parametrize("text", [b"", b"x" * 4096, b"\xff\0\n\x1b[31m" * 100])
def test_error_texts_of_any_kind_are_accepted_and_escaped(text: bytes) -> None:
    with pytest.raises(ExportRefused) as caught:
        agree(serving({OptionType.GO: fixed([(Reply.ERR_UNKNOWN, text)])}))
    assert str(caught.value).isprintable()


# 109: size and flags


@pytest.mark.parametrize("size", [2**63, 2**64 - 1])
def test_a_size_that_no_offset_reaches_is_refused(size: int) -> None:
    with pytest.raises(ServerViolation, match="bytes"):
        agree(serving({OptionType.GO: export(size=size)}))


def test_the_largest_size_is_taken() -> None:
    assert agree(serving({OptionType.GO: export(size=2**63 - 1)})).size == 2**63 - 1


@pytest.mark.parametrize("flags", [0, ExportFlag.SEND_FLUSH])
def test_an_export_without_flags_is_refused(flags: int) -> None:
    with pytest.raises(ServerViolation, match="without flags"):
        agree(serving({OptionType.GO: export(flags=flags)}))
    with pytest.raises(ServerViolation, match="without flags"):
        agree(serving(greeting=pack_greeting(2), by_name=pack(">QH", SIZE, flags)))


# Contexts


def test_a_context_that_was_not_asked_for_is_a_violation() -> None:
    answers = fixed([(Reply.META_CONTEXT, pack_context(1, "x:y")), *ACK])
    with pytest.raises(ServerViolation, match="not asked for"):
        agree(serving({OptionType.SET_META_CONTEXT: answers}))


@pytest.mark.parametrize("payload", [b"", b"\0\0\0", b"\0\0\0\1\xff"])
def test_a_broken_context_is_a_violation(payload: bytes) -> None:
    with pytest.raises(ServerViolation):
        agree(serving({OptionType.SET_META_CONTEXT: fixed([(Reply.META_CONTEXT, payload), *ACK])}))


def test_a_context_that_comes_twice_is_one() -> None:
    twice = [(int(Reply.META_CONTEXT), pack_context(1, BASE_ALLOCATION))] * 2
    assert agree(serving({OptionType.SET_META_CONTEXT: fixed(twice + ACK)})).contexts == {1: BASE_ALLOCATION}


def test_more_bitmaps_than_the_limit_are_refused() -> None:
    known = contexts(*(f"qemu:dirty-bitmap:{i}" for i in range(MAX_CONTEXTS)))
    with pytest.raises(ExportRefused, match="bitmaps"):
        agree(serving({OptionType.LIST_META_CONTEXT: known}), dirty=True)


# TLS


def test_tls_comes_before_everything_else() -> None:
    server = serving()
    assert agree(server, tls=True).size == SIZE
    assert server.asked[0] == OptionType.STARTTLS
    assert server.asked.count(OptionType.STARTTLS) == 1


@pytest.mark.parametrize("reply", [Reply.ERR_UNSUP, Reply.ERR_POLICY, Reply.ERR_INVALID])
def test_a_server_without_tls_is_refused_and_learns_no_name(reply: int) -> None:
    client = ClientNegotiation("secret", tls=True)
    server = serving(refusing(OptionType.STARTTLS, reply))
    with pytest.raises(ExportRefused, match="STARTTLS"):
        server.run(client)
    assert server.asked == [OptionType.STARTTLS]
    assert client.take_output() == ABORT


def test_clear_text_after_the_start_of_tls_is_a_violation() -> None:
    raw = OptionReply(OptionType.STARTTLS, Reply.ACK, 0).pack() + OptionReply(OptionType.GO, Reply.ACK, 0).pack()
    with pytest.raises(ServerViolation, match="without being asked"):
        agree(serving(raw={OptionType.STARTTLS: raw}), tls=True)
