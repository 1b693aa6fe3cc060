# SPDX-License-Identifier: Apache-2.0
from struct import pack

import pytest

from imageio_daemon.nbdproto.agreement import Close, StartTls
from imageio_daemon.nbdproto.constants import ExportFlag, OptionType, Reply
from imageio_daemon.nbdproto.option_payloads import ContextRequest, InfoRequest, OptionHeader
from imageio_daemon.nbdproto.server_negotiation import Tls
from tests.nbdproto.conversation import DELIVERIES, Conversation

INFO = InfoRequest("disk", ()).pack()
PAYLOADS = {
    OptionType.LIST: b"",
    OptionType.INFO: INFO,
    OptionType.GO: INFO,
    OptionType.STRUCTURED_REPLY: b"",
    OptionType.LIST_META_CONTEXT: ContextRequest("disk", ()).pack(),
    OptionType.SET_META_CONTEXT: ContextRequest("disk", ()).pack(),
    OptionType.EXTENDED_HEADERS: b"",
    77: b"",
}


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_starttls_is_refused_where_there_is_no_tls(delivery: str) -> None:
    talk = Conversation(delivery=delivery).open()
    assert talk.final(OptionType.STARTTLS) == Reply.ERR_POLICY
    talk.go()


@pytest.mark.parametrize("option", PAYLOADS)
def test_without_tls_nothing_asks_for_it(option: int) -> None:
    talk = Conversation().open()
    assert talk.final(option, PAYLOADS[option]) != Reply.ERR_TLS_REQD


@pytest.mark.parametrize("option", PAYLOADS)
def test_required_tls_comes_before_everything(option: int) -> None:
    talk = Conversation(tls=Tls.REQUIRED, listed=["disk"]).open()
    assert talk.final(option, PAYLOADS[option]) == Reply.ERR_TLS_REQD
    assert talk.lookups == []


def test_abort_needs_no_tls() -> None:
    assert Conversation(tls=Tls.REQUIRED).open().final(OptionType.ABORT) == Reply.ACK


def test_export_name_before_required_tls_closes() -> None:
    talk = Conversation(tls=Tls.REQUIRED).open()
    talk.send(OptionHeader(OptionType.EXPORT_NAME, 4).pack() + b"disk")
    assert talk.dropped
    assert talk.lookups == []


def test_client_that_cannot_start_tls_is_closed() -> None:
    talk = Conversation(tls=Tls.REQUIRED).open(0)
    talk.send(OptionHeader(OptionType.EXPORT_NAME, 4).pack() + b"disk")
    assert talk.dropped


def test_starttls_with_data_is_invalid() -> None:
    talk = Conversation(tls=Tls.REQUIRED).open()
    assert talk.final(OptionType.STARTTLS, b"x") == Reply.ERR_INVALID
    assert talk.final(OptionType.STARTTLS) == Reply.ACK


def test_second_starttls_is_invalid_and_tls_is_asked_for_no_more() -> None:
    talk = Conversation(tls=Tls.REQUIRED).open()
    assert talk.final(OptionType.STARTTLS) == Reply.ACK
    assert talk.final(OptionType.STARTTLS) == Reply.ERR_INVALID
    talk.go()


@pytest.mark.parametrize("first", [OptionType.STRUCTURED_REPLY, OptionType.EXTENDED_HEADERS])
def test_what_was_said_in_the_clear_is_forgotten(first: OptionType) -> None:
    talk = Conversation(tls=Tls.OPTIONAL).open()
    talk.final(first)
    talk.contexts(OptionType.SET_META_CONTEXT, "base:allocation")
    talk.final(OptionType.STARTTLS)
    assert not talk.flags() & ExportFlag.SEND_DF
    transmission = talk.go()
    assert (transmission.structured, transmission.extended, transmission.contexts) == (False, False, ())


@pytest.mark.parametrize("pipelined", [b"\0", OptionHeader(OptionType.STRUCTURED_REPLY, 0).pack()])
def test_clear_text_behind_starttls_closes(pipelined: bytes) -> None:
    talk = Conversation(tls=Tls.REQUIRED).open()
    talk.send(OptionHeader(OptionType.STARTTLS, 0).pack() + pipelined)
    assert talk.dropped
    assert talk.answers() == []


def test_optional_tls_serves_both_ways_and_can_ask_for_it() -> None:
    talk = Conversation(tls=Tls.OPTIONAL).open()
    talk.negotiation.feed(OptionHeader(OptionType.INFO, len(INFO)).pack() + INFO)
    talk.negotiation.next_event()
    talk.negotiation.refused(Reply.ERR_TLS_REQD, "only with TLS")
    assert talk.answers()[-1].reply == Reply.ERR_TLS_REQD
    assert talk.final(OptionType.STARTTLS) == Reply.ACK
    talk.go()


def test_flags_before_tls_hold_after_it() -> None:
    talk = Conversation(tls=Tls.REQUIRED).open(1)
    talk.final(OptionType.STARTTLS)
    talk.send(OptionHeader(OptionType.EXPORT_NAME, 4).pack() + b"disk")
    assert talk.received == pack(">QH", 1 << 20, 0x0D6D) + bytes(124)


def test_clear_text_that_arrives_while_tls_starts_closes() -> None:
    talk = Conversation(tls=Tls.REQUIRED).open()
    talk.negotiation.feed(OptionHeader(OptionType.STARTTLS, 0).pack())
    assert isinstance(talk.negotiation.next_event(), StartTls)
    talk.negotiation.feed(OptionHeader(OptionType.STRUCTURED_REPLY, 0).pack())
    assert isinstance(talk.negotiation.tls_started(), Close)
