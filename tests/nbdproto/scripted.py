# SPDX-License-Identifier: Apache-2.0
"""A scripted server that talks to the client's negotiation, without I/O."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from imageio_daemon.nbdproto.client_negotiation import Agreed, ClientNegotiation
from imageio_daemon.nbdproto.constants import BASE_ALLOCATION, ExportFlag, OptionType, Reply
from imageio_daemon.nbdproto.option_payloads import (
    CLIENT_FLAGS,
    OPTION,
    BlockSizes,
    ContextRequest,
    ExportInfo,
    OptionHeader,
    OptionReply,
    pack_context,
    pack_greeting,
)

SIZE = 1 << 20
FLAGS = (
    ExportFlag.HAS_FLAGS
    | ExportFlag.SEND_FLUSH
    | ExportFlag.SEND_FUA
    | ExportFlag.SEND_TRIM
    | ExportFlag.SEND_WRITE_ZEROES
    | ExportFlag.SEND_FAST_ZERO
)

Answers = list[tuple[int, bytes]]
Handler = Callable[[bytes], Answers]

ACK: Answers = [(Reply.ACK, b"")]
UNSUP: Answers = [(Reply.ERR_UNSUP, b"")]


def contexts(*names: str) -> Handler:
    """Answer SET_META_CONTEXT and LIST_META_CONTEXT with those of the names that were asked for."""

    def handle(payload: bytes) -> Answers:
        queries = ContextRequest.unpack(payload).queries
        found = [name for name in names if any(name == q or (q.endswith(":") and name.startswith(q)) for q in queries)]
        return [(Reply.META_CONTEXT, pack_context(10 + i, name)) for i, name in enumerate(found)] + ACK

    return handle


def export(
    size: int = SIZE, flags: int = FLAGS, sizes: BlockSizes | None = None, more: Answers | None = None
) -> Handler:
    """Answer GO."""

    def handle(_: bytes) -> Answers:
        told: Answers = [(Reply.INFO, ExportInfo(size, flags).pack())]
        if sizes is not None:
            told.insert(0, (Reply.INFO, sizes.pack()))
        return (more or []) + told + ACK

    return handle


def fixed(answers: Answers) -> Handler:
    """Answer always the same."""
    return lambda _: answers


#: A server that knows everything.
MODERN: Mapping[int, Handler] = {
    OptionType.EXTENDED_HEADERS: fixed(ACK),
    OptionType.STRUCTURED_REPLY: fixed(ACK),
    OptionType.LIST_META_CONTEXT: contexts(BASE_ALLOCATION),
    OptionType.SET_META_CONTEXT: contexts(BASE_ALLOCATION),
    OptionType.STARTTLS: fixed(ACK),
    OptionType.GO: export(),
}


@dataclass
class Server:
    """Answer a client's options; `asked` are those that came. `raw`: bytes to send instead of the replies to one."""

    handlers: Mapping[int, Handler] = field(default_factory=lambda: MODERN)
    greeting: bytes = field(default_factory=lambda: pack_greeting(3))
    raw: dict[int, bytes] = field(default_factory=dict)
    by_name: bytes = b""
    asked: list[int] = field(default_factory=list)
    payloads: dict[int, bytes] = field(default_factory=dict)
    client_flags: int = -1
    byte_by_byte: bool = False

    def run(self, client: ClientNegotiation) -> Agreed:
        """Talk until the client has what it wants."""
        self._feed(client, self.greeting)
        (self.client_flags,) = CLIENT_FLAGS.unpack(self._take(client, CLIENT_FLAGS.size))
        while client.agreed is None:
            if client.wants_tls:
                client.tls_started()
                continue
            header = OptionHeader.unpack(self._take(client, OPTION.size))
            payload = self._take(client, header.length)
            self.asked.append(header.option)
            self.payloads[header.option] = payload
            self._feed(client, self._answer(header.option, payload))
        assert not self._pending + client.take_output()
        return client.agreed

    def _answer(self, option: int, payload: bytes) -> bytes:
        if option in self.raw:
            return self.raw[option]
        if option == OptionType.EXPORT_NAME:
            return self.by_name
        answers = self.handlers.get(option, fixed(UNSUP))(payload)
        return b"".join(OptionReply(option, reply, len(data)).pack() + data for reply, data in answers)

    def __post_init__(self) -> None:
        self._pending = b""

    def _take(self, client: ClientNegotiation, count: int) -> bytes:
        self._pending += client.take_output()
        assert len(self._pending) >= count, "the client says nothing"
        taken, self._pending = self._pending[:count], self._pending[count:]
        return taken

    def _feed(self, client: ClientNegotiation, data: bytes) -> None:
        for piece in [data[i : i + 1] for i in range(len(data))] if self.byte_by_byte else [data]:
            client.feed(piece)
