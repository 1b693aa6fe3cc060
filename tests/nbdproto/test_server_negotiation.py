# SPDX-License-Identifier: Apache-2.0
from struct import pack

import pytest

from imageio_daemon.nbdproto.agreement import Close, Export, Transmit
from imageio_daemon.nbdproto.constants import (
    MAX_DRAINED_OPTION,
    MAX_ERROR_TEXT,
    MAX_OPTION,
    MAX_OPTIONS,
    MAX_PAYLOAD,
    MAX_QUERIES,
    ExportFlag,
    InfoType,
    OptionType,
    Reply,
)
from imageio_daemon.nbdproto.option_payloads import ContextRequest, InfoRequest, OptionHeader
from imageio_daemon.nbdproto.server_negotiation import MAX_PIPELINED
from tests.nbdproto.conversation import DELIVERIES, PREFERRED, Conversation
from tests.support.nbd_payloads import unpack_server

KNOWN = sorted(OptionType)
LISTING = "base:", "base:allocation"
MIB = 1 << 20


@pytest.fixture(params=DELIVERIES)
def talk(request: pytest.FixtureRequest) -> Conversation:
    """A client that has sent its flags, however its bytes arrive."""
    return Conversation(delivery=request.param, exports={"disk": Export("disk", MIB), "b": Export("b", 7)}).open()


def info(name: str = "disk", *infos: int) -> bytes:
    return InfoRequest(name, infos).pack()


def contexts(name: str, *queries: str) -> bytes:
    return ContextRequest(name, queries).pack()


# Opening


def test_greeting_is_two_magics_and_two_flags() -> None:
    talk = Conversation()
    talk.receive()
    assert talk.received == b"NBDMAGICIHAVEOPT\0\3"


@pytest.mark.parametrize("flags", [0, 2])
def test_client_without_fixed_newstyle_may_only_name_an_export(flags: int) -> None:
    talk = Conversation().open(flags)
    talk.send(OptionHeader(OptionType.EXPORT_NAME, 4).pack() + b"disk")
    assert isinstance(talk.end, Transmit)


@pytest.mark.parametrize("option", [o for o in KNOWN if o != OptionType.EXPORT_NAME])
def test_client_without_fixed_newstyle_is_closed_after_any_other_option(option: int) -> None:
    talk = Conversation().open(0)
    assert talk.ask(option) == []
    assert talk.dropped


@pytest.mark.parametrize("flags", [4, 7, 1 << 31, 0xFFFFFFFF])
def test_unknown_client_flags_close_without_an_answer(flags: int) -> None:
    talk = Conversation().open(flags)
    assert talk.dropped
    assert talk.answers() == []


def test_wrong_option_magic_closes() -> None:
    talk = Conversation().open()
    talk.send(b"NOTANOPT" + bytes(8))
    assert talk.dropped
    assert talk.answers() == []


# Unknown and long options


@pytest.mark.parametrize("option", [0, 4, 12, 99, 0xFFFFFFFF])
@pytest.mark.parametrize("length", [0, 10, MAX_OPTION])
def test_unknown_option_is_unsupported_and_the_next_one_understood(option: int, length: int) -> None:
    talk = Conversation().open()
    assert talk.final(option, bytes(length)) == Reply.ERR_UNSUP
    assert talk.final(OptionType.INFO, info()) == Reply.ACK


def test_unknown_option_is_unsupported_however_it_arrives(talk: Conversation) -> None:
    assert talk.final(77, b"some data") == Reply.ERR_UNSUP
    assert talk.final(OptionType.INFO, info()) == Reply.ACK


@pytest.mark.parametrize("option", [OptionType.INFO, OptionType.GO, OptionType.SET_META_CONTEXT, OptionType.LIST])
def test_long_payload_is_read_and_too_big(option: int) -> None:
    talk = Conversation().open()
    assert talk.final(option, bytes(MAX_DRAINED_OPTION)) == Reply.ERR_TOO_BIG
    assert talk.final(OptionType.INFO, info()) == Reply.ACK


@pytest.mark.parametrize("option", [77, OptionType.INFO, OptionType.EXPORT_NAME])
@pytest.mark.parametrize("length", [MAX_DRAINED_OPTION + 1, 2**31, 2**32 - 1])
def test_claimed_length_above_the_cap_closes_at_once(option: int, length: int) -> None:
    talk = Conversation().open()
    talk.send(OptionHeader(option, length).pack())
    assert talk.dropped


def test_export_name_longer_than_any_closes() -> None:
    talk = Conversation().open()
    talk.send(OptionHeader(OptionType.EXPORT_NAME, MAX_OPTION + 1).pack())
    assert talk.dropped


def test_more_options_than_the_limit_close() -> None:
    talk = Conversation().open()
    for _ in range(MAX_OPTIONS):
        assert talk.final(77) == Reply.ERR_UNSUP
    assert talk.ask(77) == []
    assert talk.dropped


def test_a_list_of_50_exports_allows_two_options_about_each() -> None:
    names = [f"export-{i}" for i in range(50)]
    talk = Conversation(exports={name: Export(name, 1) for name in names}, listed=names).open()
    assert talk.final(OptionType.LIST) == Reply.ACK
    for name in names:
        assert talk.final(OptionType.INFO, info(name)) == Reply.ACK
        assert talk.contexts(OptionType.LIST_META_CONTEXT, name=name) == ["base:allocation"]


def test_listing_again_allows_no_more_options() -> None:
    talk = Conversation(listed=["a", "b"]).open()
    count = 0
    while talk.end is None:
        talk.ask(OptionType.LIST)
        count += 1
    assert count <= MAX_OPTIONS + 17


def test_pipelined_options_are_answered_in_order() -> None:
    talk = Conversation().open()
    talk.send(OptionHeader(77, 0).pack() + OptionHeader(OptionType.INFO, len(info())).pack() + info())
    assert [(a.option, a.reply) for a in talk.answers()] == [
        (77, Reply.ERR_UNSUP),
        (OptionType.INFO, Reply.INFO),
        (OptionType.INFO, Reply.INFO),
        (OptionType.INFO, Reply.ACK),
    ]


def test_more_than_the_limit_sent_before_an_answer_closes() -> None:
    talk = Conversation().open()
    talk.negotiation.feed(OptionHeader(OptionType.INFO, len(info())).pack() + info())
    assert talk.negotiation.next_event() is not None
    talk.negotiation.feed(bytes(MAX_PIPELINED + 1))
    assert isinstance(talk.negotiation.next_event(), Close)


# ABORT, LIST


@pytest.mark.parametrize("payload", [b"", b"bye"])
def test_abort_is_acknowledged_and_closes_without_a_fault(talk: Conversation, payload: bytes) -> None:
    assert talk.final(OptionType.ABORT, payload) == Reply.ACK
    assert talk.end == Close(None)


def test_list_is_refused_unless_configured(talk: Conversation) -> None:
    assert talk.final(OptionType.LIST) == Reply.ERR_POLICY


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_list_tells_every_name(delivery: str) -> None:
    talk = Conversation(listed=["a", "bär", ""], delivery=delivery).open()
    answers = talk.ask(OptionType.LIST)
    assert [unpack_server(a.payload) for a in answers[:-1]] == [("a", ""), ("bär", ""), ("", "")]
    assert answers[-1].reply == Reply.ACK


def test_list_with_data_is_invalid(talk: Conversation) -> None:
    assert talk.final(OptionType.LIST, b"x") == Reply.ERR_INVALID
    assert talk.final(OptionType.INFO, info()) == Reply.ACK


# INFO and GO


def test_info_tells_the_export_and_stays_in_the_negotiation(talk: Conversation) -> None:
    answers = talk.ask(OptionType.INFO, info())
    told = talk.export_info(answers)
    assert told.size == MIB
    assert told.flags & ExportFlag.HAS_FLAGS
    assert answers[-1].reply == Reply.ACK
    assert talk.end is None


@pytest.mark.parametrize("option", [OptionType.INFO, OptionType.GO])
def test_export_and_block_sizes_are_told_unasked(option: OptionType) -> None:
    talk = Conversation().open()
    answers = talk.ask(option, info("disk"))
    assert len(next(a for a in answers if a.info == InfoType.EXPORT).payload) == 12
    assert talk.block_sizes(answers) == (1, PREFERRED, MAX_PAYLOAD)


def test_unknown_and_repeated_info_ids_are_ignored(talk: Conversation) -> None:
    answers = talk.ask(OptionType.INFO, info("disk", 3, 3, 77, 1, 1, 0, 0xFFFF))
    assert sorted(a.info for a in answers[:-1]) == [InfoType.EXPORT, InfoType.NAME, InfoType.BLOCK_SIZE]


def test_name_and_description_are_told_when_asked() -> None:
    talk = Conversation(exports={"disk": Export("disk", 1, description="für Ünïcode")}).open()
    answers = talk.ask(OptionType.INFO, info("disk", InfoType.NAME, InfoType.DESCRIPTION))
    texts = {a.info: a.payload[2:].decode() for a in answers[:-1]}
    assert texts[InfoType.NAME] == "disk"
    assert texts[InfoType.DESCRIPTION] == "für Ünïcode"


@pytest.mark.parametrize("option", [OptionType.INFO, OptionType.GO])
def test_no_reply_is_longer_than_clients_take_and_each_echoes_its_option(option: OptionType) -> None:
    name = "n" * 255
    talk = Conversation(exports={name: Export(name, 1, description="ü" * 2000)}, listed=[name] * 50).open()
    for asked, payload in [
        (OptionType.LIST, b""),
        (OptionType.LIST_META_CONTEXT, contexts(name)),
        (OptionType.INFO, info("x" * 4096)),
        (77, b""),
        (option, info(name, InfoType.NAME, InfoType.DESCRIPTION, InfoType.BLOCK_SIZE)),
    ]:
        answers = talk.ask(asked, payload)
        assert {answer.option for answer in answers} == {asked}
        assert max(len(answer.payload) for answer in answers) < 4096


@pytest.mark.parametrize(
    "options",
    [
        [OptionType.INFO, OptionType.INFO, OptionType.GO],
        [OptionType.INFO, OptionType.LIST, OptionType.GO],
        [OptionType.INFO, OptionType.SET_META_CONTEXT, OptionType.INFO, OptionType.GO],
        [OptionType.LIST_META_CONTEXT, OptionType.INFO, OptionType.STRUCTURED_REPLY, OptionType.GO],
        [OptionType.SET_META_CONTEXT, OptionType.SET_META_CONTEXT, OptionType.EXTENDED_HEADERS, OptionType.GO],
    ],
    ids=lambda options: "-".join(option.name for option in options),
)
@pytest.mark.parametrize("fails_first", [False, True])
def test_options_in_any_legal_order_lead_to_the_transmission(
    talk: Conversation, options: list[OptionType], fails_first: bool
) -> None:
    if fails_first:
        assert talk.final(OptionType.GO, info("other")) == Reply.ERR_UNKNOWN
    for option in options:
        named = option in (OptionType.INFO, OptionType.GO)
        selects = option in (OptionType.SET_META_CONTEXT, OptionType.LIST_META_CONTEXT)
        talk.ask(option, info() if named else contexts("disk", "base:allocation") if selects else b"")
    assert talk.transmission.export.name == "disk"


def test_block_sizes_keep_the_rules() -> None:
    talk = Conversation().open()
    sizes = talk.block_sizes(talk.ask(OptionType.INFO, info("disk", InfoType.BLOCK_SIZE)))
    assert all(size & (size - 1) == 0 for size in (sizes.minimum, sizes.preferred))
    assert 512 <= sizes.preferred <= sizes.maximum


@pytest.mark.parametrize("option", [OptionType.INFO, OptionType.GO])
def test_unknown_export_is_refused_and_the_next_name_served(talk: Conversation, option: OptionType) -> None:
    assert talk.final(option, info("other")) == Reply.ERR_UNKNOWN
    talk.go()


MALFORMED = {
    "empty": b"",
    "one byte": b"\0",
    "five bytes": bytes(5),
    "name of 4 GiB": pack(">I", 0xFFFFFFFF) + b"disk\0\0",
    "name of 2 GiB": pack(">I", 0x80000000) + b"disk\0\0",
    "name takes the count": pack(">I", 6) + b"disk\0\0",
    "name takes one byte of the count": pack(">I", 5) + b"disk\0\0",
    "count without infos": pack(">I", 4) + b"disk" + pack(">H", 1),
    "count of 65535": pack(">I", 4) + b"disk" + pack(">H", 65535),
    "trailing bytes": info("disk") + b"x",
    "long leftovers": info("disk") + bytes(2000),
    "half an info": info("disk") + b"\0",
    "NUL": info("di\0sk"),
    "4097 bytes": info("d" * 4097),
    "not UTF-8": pack(">I", 2) + b"\xff\xfe\0\0",
}


@pytest.mark.parametrize("payload", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.parametrize("option", [OptionType.INFO, OptionType.GO])
def test_malformed_info_is_invalid_and_sync_is_kept(talk: Conversation, option: OptionType, payload: bytes) -> None:
    assert talk.final(option, payload) == Reply.ERR_INVALID
    talk.go()


@pytest.mark.parametrize("length", [255, 256, 257, 1024, 4095, 4096])
def test_long_unknown_name_is_answered_by_a_short_text(length: int) -> None:
    talk = Conversation().open()
    (answer,) = talk.ask(OptionType.GO, info("n" * length))
    assert answer.reply == Reply.ERR_UNKNOWN
    assert len(answer.payload) <= MAX_ERROR_TEXT


def test_refusal_text_is_cut_between_characters_and_has_no_control_characters() -> None:
    talk = Conversation().open()
    talk.negotiation.feed(OptionHeader(OptionType.GO, len(info())).pack() + info())
    talk.negotiation.next_event()
    talk.negotiation.refused(Reply.ERR_PLATFORM, "a\n" + "ü" * 300)
    (answer,) = talk.answers()
    assert answer.payload.decode().startswith("a?ü")
    assert MAX_ERROR_TEXT - 2 < len(answer.payload) <= MAX_ERROR_TEXT


def test_info_then_go_tell_the_same() -> None:
    talk = Conversation().open()
    payload = info("disk", InfoType.BLOCK_SIZE, InfoType.NAME, InfoType.DESCRIPTION)
    asked, gone = talk.ask(OptionType.INFO, payload), talk.ask(OptionType.GO, payload)
    assert [(a.reply, a.payload) for a in asked] == [(a.reply, a.payload) for a in gone]


@pytest.mark.parametrize("flags", [1, 3])
def test_nothing_follows_the_acknowledgement_of_go(flags: int) -> None:
    talk = Conversation().open(flags)
    talk.send(OptionHeader(OptionType.GO, len(info())).pack() + info())
    assert talk.received.endswith(pack(">QIII", 0x3E889045565A9, OptionType.GO, Reply.ACK, 0))


def test_only_go_and_export_name_enter() -> None:
    talk = Conversation().open()
    talk.final(OptionType.STRUCTURED_REPLY)
    talk.final(OptionType.INFO, info())
    talk.contexts(OptionType.SET_META_CONTEXT, "base:allocation")
    talk.go()
    assert [lookup.enter for lookup in talk.lookups] == [False, False, True]


def test_bytes_after_go_belong_to_the_transmission() -> None:
    talk = Conversation().open()
    talk.send(OptionHeader(OptionType.GO, len(info())).pack() + info() + b"a request")
    assert isinstance(talk.end, Transmit)
    assert talk.end.rest == b"a request"


def test_after_the_end_nothing_happens() -> None:
    talk = Conversation().open()
    talk.final(OptionType.ABORT)
    talk.send(OptionHeader(OptionType.INFO, len(info())).pack() + info())
    assert talk.answers() == []


# EXPORT_NAME


@pytest.mark.parametrize(("flags", "length"), [(1, 134), (3, 10), (0, 134), (2, 10)])
def test_export_name_is_answered_by_size_flags_and_zeroes(flags: int, length: int) -> None:
    talk = Conversation().open(flags)
    talk.send(OptionHeader(OptionType.EXPORT_NAME, 4).pack() + b"disk")
    assert len(talk.received) == length
    assert talk.received[:8] == pack(">Q", MIB)
    assert not any(talk.received[10:])
    assert isinstance(talk.end, Transmit)


@pytest.mark.parametrize("name", [b"other", b"", b"di\0sk", b"\xff", b"d" * 4097])
def test_export_name_that_is_not_served_closes_without_a_byte(name: bytes) -> None:
    talk = Conversation().open()
    talk.send(OptionHeader(OptionType.EXPORT_NAME, len(name)).pack() + name)
    assert isinstance(talk.end, Close)
    assert not talk.received


@pytest.mark.parametrize(
    "option", [OptionType.INFO, OptionType.GO, OptionType.LIST_META_CONTEXT, OptionType.SET_META_CONTEXT]
)
def test_empty_name_is_no_export(option: OptionType) -> None:
    talk = Conversation().open()
    talk.final(OptionType.STRUCTURED_REPLY)
    payload = info("") if option in (OptionType.INFO, OptionType.GO) else contexts("")
    assert talk.final(option, payload) == Reply.ERR_UNKNOWN


def test_export_name_is_impossible_with_extended_headers() -> None:
    talk = Conversation().open()
    talk.final(OptionType.EXTENDED_HEADERS)
    talk.send(OptionHeader(OptionType.EXPORT_NAME, 4).pack() + b"disk")
    assert talk.dropped


# Structured replies and extended headers


def test_structured_replies_can_be_asked_for_again(talk: Conversation) -> None:
    assert talk.final(OptionType.STRUCTURED_REPLY, b"x") == Reply.ERR_INVALID
    assert not talk.flags() & ExportFlag.SEND_DF
    assert talk.final(OptionType.STRUCTURED_REPLY) == Reply.ACK
    assert talk.final(OptionType.STRUCTURED_REPLY) == Reply.ACK
    assert talk.flags() & ExportFlag.SEND_DF
    assert talk.go().structured


def test_extended_headers_come_once_and_before_structured_replies(talk: Conversation) -> None:
    assert talk.final(OptionType.EXTENDED_HEADERS, b"x") == Reply.ERR_INVALID
    assert talk.final(OptionType.EXTENDED_HEADERS) == Reply.ACK
    assert talk.final(OptionType.EXTENDED_HEADERS) == Reply.ERR_INVALID
    assert talk.final(OptionType.STRUCTURED_REPLY) == Reply.ERR_EXT_HEADER_REQD
    assert talk.flags() & ExportFlag.SEND_DF
    assert talk.go().extended


def test_flags_of_a_writable_export() -> None:
    talk = Conversation().open()
    talk.final(OptionType.STRUCTURED_REPLY)
    assert talk.flags() == 0x0DED


def test_flags_of_a_read_only_export() -> None:
    talk = Conversation(exports={"disk": Export("disk", 1, read_only=True)}).open()
    assert talk.flags() == 0x050F


# Contexts


def test_no_query_lists_every_context(talk: Conversation) -> None:
    assert talk.contexts(OptionType.LIST_META_CONTEXT) == ["base:allocation"]


@pytest.mark.parametrize("query", LISTING)
def test_query_lists_what_it_matches(talk: Conversation, query: str) -> None:
    assert talk.contexts(OptionType.LIST_META_CONTEXT, query) == ["base:allocation"]


@pytest.mark.parametrize("option", [OptionType.LIST_META_CONTEXT, OptionType.SET_META_CONTEXT])
@pytest.mark.parametrize("query", ["qemu:allocation-depth", "x-y:z", "base", "", "base:other", "base:allocation "])
def test_unknown_context_is_ignored(option: OptionType, query: str) -> None:
    talk = Conversation().open()
    talk.final(OptionType.STRUCTURED_REPLY)
    assert talk.contexts(option, query) == []


def test_selection_takes_exact_names_once(talk: Conversation) -> None:
    talk.final(OptionType.STRUCTURED_REPLY)
    queries = ("qemu:allocation-depth", "base:allocation", "base:allocation")
    assert talk.contexts(OptionType.SET_META_CONTEXT, *queries) == ["base:allocation"]
    assert talk.go().contexts == (1,)


def test_wildcard_selects_nothing(talk: Conversation) -> None:
    talk.final(OptionType.STRUCTURED_REPLY)
    assert talk.contexts(OptionType.SET_META_CONTEXT, "base:") == []
    assert not talk.go().contexts


def test_selection_without_structured_replies_is_invalid(talk: Conversation) -> None:
    assert talk.final(OptionType.SET_META_CONTEXT, contexts("disk", "base:allocation")) == Reply.ERR_INVALID


def test_selection_works_with_extended_headers(talk: Conversation) -> None:
    talk.final(OptionType.EXTENDED_HEADERS)
    assert talk.contexts(OptionType.SET_META_CONTEXT, "base:allocation") == ["base:allocation"]
    assert talk.go().contexts == (1,)


BAD_SELECTIONS = {
    "unknown export": contexts("other", "base:allocation"),
    "no queries": contexts("disk"),
    "malformed": contexts("disk", "base:allocation") + b"x",
    "too many": contexts("disk", *["base:allocation"] * (MAX_QUERIES + 1)),
    "too long": bytes(MAX_OPTION + 1),
}


@pytest.mark.parametrize("payload", BAD_SELECTIONS.values(), ids=BAD_SELECTIONS.keys())
def test_another_selection_replaces_the_one_before_even_when_it_fails(talk: Conversation, payload: bytes) -> None:
    talk.final(OptionType.STRUCTURED_REPLY)
    talk.contexts(OptionType.SET_META_CONTEXT, "base:allocation")
    talk.ask(OptionType.SET_META_CONTEXT, payload)
    assert not talk.go().contexts


def test_selection_holds_for_its_export_only(talk: Conversation) -> None:
    talk.final(OptionType.STRUCTURED_REPLY)
    talk.contexts(OptionType.SET_META_CONTEXT, "base:allocation", name="disk")
    assert not talk.go("b").contexts


MALFORMED_CONTEXTS = {
    "empty": b"",
    "no count": pack(">I", 4) + b"disk",
    "name of 4 GiB": pack(">I", 0xFFFFFFFF) + b"disk" + bytes(4),
    "name of 2 GiB": pack(">I", 0x80000000) + b"disk" + bytes(4),
    "name takes the count": pack(">I", 8) + b"disk" + bytes(4),
    "1000 queries without any": pack(">I", 4) + b"disk" + pack(">I", 1000),
    "query of 4 GiB": pack(">I", 4) + b"disk" + pack(">II", 1, 0xFFFFFFFF) + b"base:",
    "query past the end": pack(">I", 4) + b"disk" + pack(">II", 1, 6) + b"base:",
    "query of 4097 bytes": contexts("disk", "q" * 4097),
    "trailing bytes": contexts("disk", "base:") + b"x",
    "NUL": contexts("disk", "base:\0"),
}


@pytest.mark.parametrize("payload", MALFORMED_CONTEXTS.values(), ids=MALFORMED_CONTEXTS.keys())
@pytest.mark.parametrize("option", [OptionType.LIST_META_CONTEXT, OptionType.SET_META_CONTEXT])
def test_malformed_queries_are_invalid_and_sync_is_kept(talk: Conversation, option: OptionType, payload: bytes) -> None:
    talk.final(OptionType.STRUCTURED_REPLY)
    assert talk.final(option, payload) == Reply.ERR_INVALID
    talk.go()


@pytest.mark.parametrize("option", [OptionType.LIST_META_CONTEXT, OptionType.SET_META_CONTEXT])
def test_more_queries_than_the_limit_are_too_big(option: OptionType) -> None:
    talk = Conversation().open()
    talk.final(OptionType.STRUCTURED_REPLY)
    payload = contexts("disk", *["q:"] * (MAX_QUERIES + 1))
    assert talk.final(option, payload) == Reply.ERR_TOO_BIG
    assert talk.final(option, contexts("disk", *["q:"] * MAX_QUERIES)) == Reply.ACK


def test_contexts_of_an_unknown_export_are_unknown(talk: Conversation) -> None:
    assert talk.final(OptionType.LIST_META_CONTEXT, contexts("other")) == Reply.ERR_UNKNOWN


# The end of the server


@pytest.mark.parametrize("option", [OptionType.LIST, OptionType.INFO, OptionType.GO, OptionType.STRUCTURED_REPLY, 77])
def test_options_of_a_stopping_server_are_answered_so(option: int) -> None:
    talk = Conversation().open()
    talk.negotiation.stopping = True
    assert talk.final(option) == Reply.ERR_SHUTDOWN
    assert talk.final(OptionType.ABORT) == Reply.ACK


def test_stopping_server_closes_on_export_name() -> None:
    talk = Conversation().open()
    talk.negotiation.stopping = True
    talk.send(OptionHeader(OptionType.EXPORT_NAME, 4).pack() + b"disk")
    assert talk.dropped


def test_answer_without_a_question_is_a_bug() -> None:
    with pytest.raises(RuntimeError):
        Conversation().negotiation.found(Export("disk", 1))
