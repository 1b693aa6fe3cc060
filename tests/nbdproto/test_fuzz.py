# SPDX-License-Identifier: Apache-2.0
"""Random options in random order, and random bytes: the negotiation answers or closes, and keeps its promises."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from imageio_daemon.nbdproto.agreement import Export, Transmission, Transmit
from imageio_daemon.nbdproto.constants import BASE_ALLOCATION, MAX_OPTION, MAX_OPTIONS, ExportFlag, OptionType, Reply
from imageio_daemon.nbdproto.messages import BadMagic
from imageio_daemon.nbdproto.option_payloads import ContextRequest, InfoRequest, OptionHeader
from imageio_daemon.nbdproto.server_negotiation import MAX_PIPELINED, Tls
from tests.nbdproto.conversation import Conversation
from tests.support.nbdoracle.requests import Requests

NAMES = st.sampled_from(["a", "b", "broken", "missing", ""])
BITMAPS = ("qemu:dirty-bitmap:x", "qemu:dirty-bitmap:y")
EXPORTS = {
    "a": Export("a", 1, contexts=(BASE_ALLOCATION, *BITMAPS)),
    "b": Export("b", 2),
    "broken": Export("broken", 3),
}
QUERIES = st.lists(st.sampled_from([BASE_ALLOCATION, "base:", "x-y:z", "qemu:dirty-bitmap:", *BITMAPS]), max_size=6)


class Options(RuleBasedStateMachine):
    """A client that asks anything in any order; the model says what must be in force."""

    def __init__(self) -> None:
        super().__init__()
        self.talk = Conversation(tls=Tls.OPTIONAL, exports=dict(EXPORTS), broken=frozenset(["broken"])).open()
        self.secure = self.structured = self.extended = False
        self.selected: tuple[str, tuple[int, ...]] = ("", ())
        self.refused = False  # a bitmap of "broken" was asked for
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
        reply = self.ask(OptionType.STRUCTURED_REPLY)
        if reply is not None:
            assert reply == (Reply.ERR_EXT_HEADER_REQD if self.extended else Reply.ACK)
            self.structured |= not self.extended

    @precondition(negotiating)
    @rule()
    def extended_headers(self) -> None:
        reply = self.ask(OptionType.EXTENDED_HEADERS)
        if reply is not None:
            assert reply == (Reply.ERR_INVALID if self.extended else Reply.ACK)
            self.extended = True

    @precondition(negotiating)
    @rule()
    def starttls(self) -> None:
        reply = self.ask(OptionType.STARTTLS)
        if reply is not None and not self.secure:
            assert reply == Reply.ACK
            self.secure = True
            self.structured = self.extended = self.refused = False
            self.selected = ("", ())
        elif reply is not None:
            assert reply == Reply.ERR_INVALID

    @precondition(negotiating)
    @rule(name=NAMES, queries=QUERIES)
    def select(self, name: str, queries: list[str]) -> None:
        reply = self.ask(OptionType.SET_META_CONTEXT, ContextRequest(name, tuple(queries)).pack())
        if reply is None:
            return
        self.selected, self.refused = ("", ()), False
        if not (self.structured or self.extended):
            assert reply == Reply.ERR_INVALID
        elif name not in EXPORTS:
            assert reply == Reply.ERR_UNKNOWN
        elif name == "broken" and not {*BITMAPS}.isdisjoint(queries):
            assert reply == Reply.ERR_POLICY
            self.refused = True
        else:
            assert reply == Reply.ACK
            ids = (number for number, context in enumerate(EXPORTS[name].contexts, 1) if context in queries)
            self.selected = (name, tuple(ids))

    @precondition(negotiating)
    @rule(name=NAMES)
    def info(self, name: str) -> None:
        reply = self.ask(OptionType.INFO, InfoRequest(name, ()).pack())
        assert reply in (None, self.of_lookup(name))

    def of_lookup(self, name: str) -> Reply:
        if name not in EXPORTS:
            return Reply.ERR_UNKNOWN
        return Reply.ERR_POLICY if name == "broken" and self.refused else Reply.ACK

    @precondition(negotiating)
    @rule(name=NAMES, queries=QUERIES)
    def list_contexts(self, name: str, queries: list[str]) -> None:
        reply = self.ask(OptionType.LIST_META_CONTEXT, ContextRequest(name, tuple(queries)).pack())
        assert reply in (None, self.of_lookup(name))

    @precondition(negotiating)
    @rule(option=st.integers(12, 99), payload=st.binary(max_size=40))
    def unknown(self, option: int, payload: bytes) -> None:
        assert self.ask(option, payload) in (None, Reply.ERR_UNSUP)

    @precondition(negotiating)
    @rule(option=st.sampled_from([OptionType.INFO, OptionType.LIST_META_CONTEXT]), payload=st.binary(max_size=12))
    def garbage(self, option: OptionType, payload: bytes) -> None:
        assert self.ask(option, payload) in (None, Reply.ERR_INVALID, Reply.ERR_UNKNOWN, Reply.ACK, Reply.ERR_TOO_BIG)

    @precondition(negotiating)
    @rule(name=NAMES)
    def go(self, name: str) -> None:
        reply = self.ask(OptionType.GO, InfoRequest(name, ()).pack())
        assert reply in (None, self.of_lookup(name))
        if reply == Reply.ACK:
            served = self.talk.transmission
            assert (served.structured, served.extended) == (self.structured, self.extended)
            assert served.contexts == (self.selected[1] if self.selected[0] == name else ())

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
        (OptionType.STRUCTURED_REPLY, b""),
        (OptionType.LIST, b""),
        (OptionType.LIST_META_CONTEXT, ContextRequest("disk", ()).pack()),
        (OptionType.SET_META_CONTEXT, ContextRequest("disk", ("base:allocation",)).pack()),
        (OptionType.INFO, InfoRequest("disk", (1, 2, 3)).pack()),
        (OptionType.GO, InfoRequest("disk", (3,)).pack()),
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
    agreed = Transmission(Export("disk", 1 << 40), structured=True, extended=extended, contexts=(1,))
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
