# SPDX-License-Identifier: Apache-2.0
"""A scripted client that talks to the server's negotiation, without I/O."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import pack, unpack_from

from imageio_daemon.nbdproto.agreement import Close, Event, Export, FindExport, StartTls, Transmission, Transmit
from imageio_daemon.nbdproto.constants import InfoType, OptionType, Reply
from imageio_daemon.nbdproto.option_payloads import (
    BlockSizes,
    ContextRequest,
    ExportInfo,
    InfoRequest,
    OptionHeader,
    OptionReply,
    unpack_context,
)
from imageio_daemon.nbdproto.server_negotiation import ServerNegotiation, Tls

PREFERRED = 65536

#: How bytes arrive: at once, one by one, or with the first bytes of an option that never becomes complete.
DELIVERIES = ("whole", "byte by byte", "with trailing data")
TRAILING = OptionHeader(OptionType.LIST, 0).pack()[:15]


@dataclass(frozen=True)
class Answer:
    """One reply to an option."""

    option: int
    reply: int
    payload: bytes

    @property
    def info(self) -> int:
        return int(unpack_from(">H", self.payload)[0])


@dataclass
class Conversation:
    """Feed a negotiation, answer its questions from `exports`, and take its replies apart."""

    exports: dict[str, Export] = field(default_factory=lambda: {"disk": Export("disk", 1 << 20)})
    tls: Tls = Tls.OFF
    listed: Iterable[str] | None = None
    delivery: str = "whole"
    lookups: list[FindExport] = field(default_factory=list)
    #: Exports whose bitmaps nobody can tell.
    broken: frozenset[str] = frozenset()
    #: How the negotiation ended.
    end: Transmit | Close | None = None

    def __post_init__(self) -> None:
        names = self.listed
        self.negotiation = ServerNegotiation(
            preferred=PREFERRED, tls=self.tls, listed=None if names is None else lambda: names
        )
        self.received = bytearray()

    def open(self, flags: int = 3) -> "Conversation":
        """Read the greeting and send flags."""
        self.receive()
        del self.received[:18]
        self.send(pack(">I", flags))
        return self

    def send(self, data: bytes) -> None:
        """Deliver bytes and handle what they cause."""
        if self.delivery == "byte by byte":
            for i in range(len(data)):
                self._feed(data[i : i + 1])
        else:
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        self.negotiation.feed(data)
        while (event := self.negotiation.next_event()) is not None:
            self._handle(event)
        self.receive()

    def _handle(self, event: Event | None) -> None:
        if isinstance(event, FindExport):
            self.lookups.append(event)
            export = self.exports.get(event.name)
            if export is not None and event.changes and event.name in self.broken:
                self._handle(self.negotiation.refused(Reply.ERR_POLICY, "the bitmap is in use"))
            elif export is None:
                self._handle(self.negotiation.refused(Reply.ERR_UNKNOWN, "no such export"))
            else:
                self._handle(self.negotiation.found(export))
        elif isinstance(event, StartTls):
            self._handle(self.negotiation.tls_started())
        elif event is not None:
            assert self.end is None, "the negotiation ended twice"
            self.end = event

    def receive(self) -> None:
        self.received += self.negotiation.take_output()

    def answers(self) -> list[Answer]:
        """Return the replies so far, once."""
        self.receive()
        found = []
        while self.received:
            header = OptionReply.unpack(bytes(self.received[:20]))
            payload = bytes(self.received[20 : 20 + header.length])
            assert len(payload) == header.length
            assert header.length < 4096, "some clients read no more"
            del self.received[: 20 + header.length]
            found.append(Answer(header.option, header.reply, payload))
        return found

    def ask(self, option: int, payload: bytes = b"") -> list[Answer]:
        """Send one option and return its replies, of which the last is final and the others are not."""
        trailing = self.delivery == "with trailing data" and option not in (OptionType.STARTTLS, OptionType.GO)
        self.send(OptionHeader(option, len(payload)).pack() + payload + (TRAILING if trailing else b""))
        answers = self.answers()
        if trailing:  # complete it, so that the next option begins where it should
            self.send(OptionHeader(OptionType.LIST, 0).pack()[15:])
            self.answers()
        assert all(answer.option == option for answer in answers)
        assert all(answer.reply in (Reply.SERVER, Reply.INFO, Reply.META_CONTEXT) for answer in answers[:-1])
        return answers

    def final(self, option: int, payload: bytes = b"") -> int:
        """Send one option and return the type of its last reply."""
        return self.ask(option, payload)[-1].reply

    def go(self, name: str = "disk") -> Transmission:
        """Enter the transmission."""
        assert self.final(OptionType.GO, InfoRequest(name, ()).pack()) == Reply.ACK
        return self.transmission

    @property
    def transmission(self) -> Transmission:
        assert isinstance(self.end, Transmit)
        return self.end.transmission

    def flags(self, name: str = "disk") -> int:
        """Return the transmission flags that INFO tells."""
        return self.export_info(self.ask(OptionType.INFO, InfoRequest(name, ()).pack())).flags

    @staticmethod
    def export_info(answers: list[Answer]) -> ExportInfo:
        (item,) = [a for a in answers if a.reply == Reply.INFO and a.info == InfoType.EXPORT]
        return ExportInfo.unpack(item.payload)

    @staticmethod
    def block_sizes(answers: list[Answer]) -> BlockSizes:
        (item,) = [a for a in answers if a.reply == Reply.INFO and a.info == InfoType.BLOCK_SIZE]
        return BlockSizes.unpack(item.payload)

    def contexts(self, option: int, *queries: str, name: str = "disk") -> list[str]:
        """Ask about contexts and return the names that come back."""
        answers = self.ask(option, ContextRequest(name, queries).pack())
        assert answers[-1].reply == Reply.ACK
        return [unpack_context(answer.payload)[1] for answer in answers[:-1]]

    @property
    def dropped(self) -> bool:
        """Tell whether the client was closed because of what it did."""
        return isinstance(self.end, Close) and self.end.reason is not None
