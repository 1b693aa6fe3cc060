# SPDX-License-Identifier: Apache-2.0
"""Random options in random order, and random bytes: the negotiation answers or closes, and keeps its promises."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from imageio_daemon.nbdproto.constants import MAX_OPTION, MAX_OPTIONS, ExportFlag, Option, Reply
from imageio_daemon.nbdproto.messages import BadMagic
from imageio_daemon.nbdproto.options import ContextRequest, InfoRequest, OptionHeader
from imageio_daemon.nbdproto.server.events import Transmit
from imageio_daemon.nbdproto.server.negotiation import MAX_PIPELINED, Tls
from imageio_daemon.nbdproto.server.transmission import Export, Transmission
from tests.nbdproto.server.conversation import Conversation
from tests.support.nbdoracle.requests import Requests

NAMES = st.sampled_from(["a", "b", "missing", ""])


class Options(RuleBasedStateMachine):
    """A client that asks anything in any order; the model says what must be in force."""

    def __init__(self) -> None:
        super().__init__()
        self.talk = Conversation(tls=Tls.OPTIONAL, exports={"a": Export("a", 1), "b": Export("b", 2)}).open()
        self.secure = self.structured = self.extended = False
        self.selected: str | None = None
        self.count = 0

    def ask(self, option: int, payload: bytes = b"") -> int | None:
        self.count += 1
        answers = self.talk.ask(option, payload)
        if self.count > MAX_OPTIONS:
            assert self.talk.dropped
            return None
        return answers[-1].reply

    def negotiating(self) -> bool:
        return self.talk.end is None

    @precondition(lambda self: not self.negotiating())
    @rule()
    def ended(self) -> None:
        assert self.talk.negotiation.next_event() is None

    @precondition(negotiating)
    @rule()
    def structured_reply(self) -> None:
        reply = self.ask(Option.STRUCTURED_REPLY)
        if reply is not None:
            assert reply == (Reply.ERR_EXT_HEADER_REQD if self.extended else Reply.ACK)
            self.structured |= not self.extended

    @precondition(negotiating)
    @rule()
    def extended_headers(self) -> None:
        reply = self.ask(Option.EXTENDED_HEADERS)
        if reply is not None:
            assert reply == (Reply.ERR_INVALID if self.extended else Reply.ACK)
            self.extended = True

    @precondition(negotiating)
    @rule()
    def starttls(self) -> None:
        reply = self.ask(Option.STARTTLS)
        if reply is not None and not self.secure:
            assert reply == Reply.ACK
            self.secure = True
            self.structured = self.extended = False
            self.selected = None
        elif reply is not None:
            assert reply == Reply.ERR_INVALID

    @precondition(negotiating)
    @rule(name=NAMES, query=st.sampled_from(["base:allocation", "base:", "x-y:z"]))
    def select(self, name: str, query: str) -> None:
        reply = self.ask(Option.SET_META_CONTEXT, ContextRequest(name, (query,)).pack())
        if reply is None:
            return
        self.selected = None
        if not (self.structured or self.extended):
            assert reply == Reply.ERR_INVALID
        elif name not in ("a", "b"):
            assert reply == Reply.ERR_UNKNOWN
        else:
            assert reply == Reply.ACK
            self.selected = name if query == "base:allocation" else None

    @precondition(negotiating)
    @rule(name=NAMES)
    def info(self, name: str) -> None:
        reply = self.ask(Option.INFO, InfoRequest(name, ()).pack())
        assert reply in (None, Reply.ACK if name in ("a", "b") else Reply.ERR_UNKNOWN)

    @precondition(negotiating)
    @rule(option=st.integers(12, 99), payload=st.binary(max_size=40))
    def unknown(self, option: int, payload: bytes) -> None:
        assert self.ask(option, payload) in (None, Reply.ERR_UNSUP)

    @precondition(negotiating)
    @rule(option=st.sampled_from([Option.INFO, Option.LIST_META_CONTEXT]), payload=st.binary(max_size=12))
    def garbage(self, option: Option, payload: bytes) -> None:
        assert self.ask(option, payload) in (None, Reply.ERR_INVALID, Reply.ERR_UNKNOWN, Reply.ACK, Reply.ERR_TOO_BIG)

    @precondition(negotiating)
    @rule(name=NAMES)
    def go(self, name: str) -> None:
        reply = self.ask(Option.GO, InfoRequest(name, ()).pack())
        if reply == Reply.ACK:
            served = self.talk.transmission
            assert (served.structured, served.extended) == (self.structured, self.extended)
            assert served.allocation == (self.selected == name)

    @invariant()
    def extended_headers_win(self) -> None:
        if isinstance(self.talk.end, Transmit):
            served = self.talk.end.transmission
            flags = served.export.flags(chunks=served.structured or served.extended)
            assert bool(flags & ExportFlag.SEND_DF) == (served.structured or served.extended)


TestOptions = Options.TestCase
TestOptions.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

VALID = b"".join(
    OptionHeader(option, len(payload)).pack() + payload
    for option, payload in [
        (Option.STRUCTURED_REPLY, b""),
        (Option.LIST, b""),
        (Option.LIST_META_CONTEXT, ContextRequest("disk", ()).pack()),
        (Option.SET_META_CONTEXT, ContextRequest("disk", ("base:allocation",)).pack()),
        (Option.INFO, InfoRequest("disk", (1, 2, 3)).pack()),
        (Option.GO, InfoRequest("disk", (3,)).pack()),
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 8))
def test_mutated_bytes_are_answered_or_closed(chance: random.Random, changes: int) -> None:
    data = bytearray(b"\0\0\0\3" + VALID)
    for _ in range(changes):
        place = chance.randrange(len(data))
        what = chance.randrange(3)
        if what == 0:
            data[place] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        elif what == 1:
            del data[place : place + chance.randrange(1, 9)]
        else:
            data[place:place] = chance.randbytes(chance.randrange(1, 9))
    talk = Conversation(listed=["disk"])
    while data and talk.end is None:
        size = chance.randrange(1, 40)
        talk.send(bytes(data[:size]))
        del data[:size]
    assert len(talk.received) < MAX_PIPELINED + MAX_OPTION


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.booleans(), st.booleans())
def test_random_headers_are_requests_or_the_end(data: bytes, extended: bool, with_magic: bool) -> None:
    agreed = Transmission(Export("disk", 1 << 40), structured=True, extended=extended, allocation=True)
    serve = Requests(agreed)
    if with_magic:
        data = (b"\x21\xe4\x1c\x71" if extended else b"\x25\x60\x95\x13") + data[4:]
    try:
        request = serve.parse(data)
    except BadMagic:
        assert not with_magic
        return
    if request.error is None and request.command not in (2, 3):
        assert request.offset + request.length <= 1 << 40
