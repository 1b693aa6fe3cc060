# SPDX-License-Identifier: Apache-2.0
"""The client's negotiation: bytes in, bytes out, and at the end an Agreed (proto.md, "Newstyle negotiation").

while negotiation.agreed is None:
    send(negotiation.take_output())
    if negotiation.wants_tls:
        ...; negotiation.tls_started()
    else:
        negotiation.feed(receive())
"""

import struct
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from .constants import (
    ALLOCATION_DEPTH,
    BASE_ALLOCATION,
    DIRTY_BITMAP,
    LARGEST_MINIMUM,
    MAX_CONTEXTS,
    MAX_OPTION_REPLIES,
    MAX_OPTION_REPLY,
    MAX_PAYLOAD,
    MAX_SIZE,
    NO_MAXIMUM,
    OLDSTYLE,
    SMALLEST_PREFERRED,
    ExportFlag,
    HandshakeFlag,
    InfoType,
    OptionType,
    Reply,
)
from .option_payloads import (
    CLIENT_FLAGS,
    EXPORT,
    GREETING,
    REPLY,
    U16,
    ZEROES,
    BlockSizes,
    ContextRequest,
    ExportInfo,
    InfoRequest,
    OptionHeader,
    OptionReply,
    unpack_context,
    unpack_greeting,
)

#: Block sizes of a server that does not send them (proto.md, "Block size constraints").
DEFAULT_SIZES = BlockSizes(1, 4096, MAX_PAYLOAD)

_INTERMEDIATE = (Reply.SERVER, Reply.INFO, Reply.META_CONTEXT)
_HANDSHAKE_FLAGS = HandshakeFlag.FIXED_NEWSTYLE | HandshakeFlag.NO_ZEROES


class ServerViolation(Exception):
    """The server violated the protocol, and the connection must be closed. The exception's text is for the log."""


class ExportRefused(Exception):
    """The server refuses the export or does not support what is needed. The exception's text is for the log.

    `option` is the refused option, and `reply` the type of the server's reply. Both are 0 if there was none.
    """

    def __init__(self, message: str, option: int = 0, reply: int = 0) -> None:
        super().__init__(message)
        self.option = option
        self.reply = reply


@dataclass(frozen=True)
class Agreed:
    """The result of the negotiation. Sizes are in bytes. `contexts` has the names of the selected contexts, by id."""

    size: int
    flags: int
    sizes: BlockSizes = DEFAULT_SIZES
    structured: bool = False
    extended: bool = False
    contexts: dict[int, str] = field(default_factory=dict)

    def can(self, flag: int) -> bool:
        """Return whether the export has a transmission flag."""
        return bool(self.flags & flag)

    @property
    def bitmaps(self) -> list[str]:
        """Return the names of the dirty bitmaps' contexts."""
        return sorted(name for name in self.contexts.values() if name.startswith(DIRTY_BITMAP))


@dataclass(frozen=True)
class _Answer:
    reply: int
    text: str
    items: list[tuple[int, bytes]]  # replies before the final one

    @property
    def ok(self) -> bool:
        return self.reply == Reply.ACK


class ClientNegotiation:
    """The negotiation of one connection.

    `export` is the export's name. With `tls`, begin with STARTTLS, and refuse a server without TLS. With `dirty`,
    select the dirty bitmaps, too. With `only`, select these contexts, and nothing else.
    """

    def __init__(self, export: str, *, tls: bool = False, dirty: bool = False, only: Sequence[str] = ()) -> None:
        #: Set when the negotiation is complete.
        self.agreed: Agreed | None = None
        #: Set when the caller has to send the output, start TLS and call tls_started().
        self.wants_tls = False
        #: Set when the server's greeting is complete.
        self.greeted = False
        self._export = export
        self._tls = tls
        self._dirty, self._only = dirty and not only, only
        self._replies_left = MAX_OPTION_REPLIES
        self._input = bytearray()
        self._output = bytearray()
        self._talk = self._negotiate()
        self._need = next(self._talk)

    def take_output(self) -> bytes:
        """Return the bytes to send to the server, once. After ExportRefused they have the option ABORT."""
        output = bytes(self._output)
        self._output.clear()
        return output

    def feed(self, data: bytes | memoryview) -> None:
        """Take bytes that were received. Raises ServerViolation, BadMagic, ExportRefused."""
        self._input += data
        try:
            self._go_on()
        except struct.error as e:
            raise ServerViolation(f"a reply that cannot be read: {e}") from None
        if self._input and (self.agreed is not None or self.wants_tls):
            raise ServerViolation("the server speaks without being asked")

    def tls_started(self) -> None:
        """Continue after wants_tls, when the TLS handshake is complete."""
        self.wants_tls = False
        self._need = self._talk.send(b"")

    def _go_on(self) -> None:
        while self.agreed is None and not self.wants_tls and len(self._input) >= self._need:
            data = bytes(self._input[: self._need])
            del self._input[: self._need]
            try:
                self._need = self._talk.send(data)
            except StopIteration as e:
                self.agreed = _checked(e.value)

    # The dialogue, as generators: each yields the number of bytes that it needs next, and is sent these bytes.

    def _negotiate(self) -> Generator[int, bytes, Agreed]:
        flags = unpack_greeting(_not_oldstyle((yield GREETING.size)))
        self.greeted = True
        self._output += CLIENT_FLAGS.pack(flags & _HANDSHAKE_FLAGS)
        zeroes = not flags & HandshakeFlag.NO_ZEROES
        if not flags & HandshakeFlag.FIXED_NEWSTYLE:
            if self._tls:
                raise ExportRefused("the server is too old for TLS")
            return (yield from self._enter_by_name(structured=False, zeroes=zeroes))
        if self._tls:
            yield from self._start_tls()
        extended = (yield from self._ask(OptionType.EXTENDED_HEADERS)).ok
        structured = extended or (yield from self._ask(OptionType.STRUCTURED_REPLY)).ok
        contexts = (yield from self._select_contexts()) if structured else {}
        answer = yield from self._ask(OptionType.GO, InfoRequest(self._export, (InfoType.BLOCK_SIZE,)).pack())
        if answer.reply == Reply.ERR_UNSUP and not extended:
            return (yield from self._enter_by_name(structured=structured, zeroes=zeroes, contexts=contexts))
        if not answer.ok:
            raise self._refused(OptionType.GO, answer)
        export, sizes = _infos(answer)
        return Agreed(export.size, export.flags, sizes, structured, extended, contexts)

    def _start_tls(self) -> Generator[int, bytes, None]:
        answer = yield from self._ask(OptionType.STARTTLS)
        if not answer.ok:
            raise self._refused(OptionType.STARTTLS, answer)
        self.wants_tls = True
        yield 0

    def _select_contexts(self) -> Generator[int, bytes, dict[int, str]]:
        bitmaps: list[str] = []
        if self._dirty:
            answer = yield from self._ask(OptionType.LIST_META_CONTEXT, self._asking(DIRTY_BITMAP))
            bitmaps = sorted({name for _, name in _contexts(answer) if name.startswith(DIRTY_BITMAP)} - {DIRTY_BITMAP})
        wanted = self._only or [BASE_ALLOCATION, ALLOCATION_DEPTH, *bitmaps]
        if len(wanted) > MAX_CONTEXTS:
            raise ExportRefused(f"the server has more than {MAX_CONTEXTS} bitmaps")
        answer = yield from self._ask(OptionType.SET_META_CONTEXT, self._asking(*wanted))
        if not answer.ok:
            return {}
        selected = dict(_contexts(answer))
        if not set(selected.values()) <= set(wanted):
            raise ServerViolation("a context that was not asked for")
        if not set(bitmaps) <= set(selected.values()):  # changes that only the missing ones mark would be lost
            return {number: name for number, name in selected.items() if name not in bitmaps}
        return selected

    def _asking(self, *contexts: str) -> bytes:
        return ContextRequest(self._export, contexts).pack()

    def _enter_by_name(
        self, *, structured: bool, zeroes: bool, contexts: dict[int, str] | None = None
    ) -> Generator[int, bytes, Agreed]:
        name = self._export.encode()
        self._output += OptionHeader(OptionType.EXPORT_NAME, len(name)).pack() + name
        size, flags = EXPORT.unpack((yield EXPORT.size))
        if zeroes:
            yield len(ZEROES)
        return Agreed(size, flags, DEFAULT_SIZES, structured, False, contexts or {})

    def _ask(self, option: OptionType, payload: bytes = b"") -> Generator[int, bytes, _Answer]:
        self._output += OptionHeader(option, len(payload)).pack() + payload
        items: list[tuple[int, bytes]] = []
        while True:
            header = OptionReply.unpack((yield REPLY.size))
            if header.option != option:
                raise ServerViolation(f"a reply to option {header.option}, asked was {option}")
            if header.length > MAX_OPTION_REPLY:
                raise ServerViolation(f"an option reply of {header.length} bytes")
            if not self._replies_left:
                raise ServerViolation("too many option replies")
            self._replies_left -= 1
            data = (yield header.length) if header.length else b""
            if header.reply not in _INTERMEDIATE:
                return _final(header.reply, data, items)
            items.append((header.reply, data))

    def _refused(self, option: OptionType, answer: _Answer) -> ExportRefused:
        self._output += OptionHeader(OptionType.ABORT, 0).pack()
        try:
            reason = Reply(answer.reply).name
        except ValueError:
            reason = f"{answer.reply:#x}"
        return ExportRefused(f"{option.name} refused: {reason} {answer.text!r}", option, answer.reply)


def _not_oldstyle(greeting: bytes) -> bytes:
    if int.from_bytes(greeting[8:16]) == OLDSTYLE:
        raise ExportRefused("the server is older than what can be talked to (oldstyle negotiation)")
    return greeting


def _final(reply: int, data: bytes, items: list[tuple[int, bytes]]) -> _Answer:
    if reply == Reply.ACK and data:
        raise ServerViolation("an acknowledgement with a payload")
    if reply != Reply.ACK and not reply & 0x80000000:
        raise ServerViolation(f"an unknown option reply {reply:#x}")
    return _Answer(reply, data.decode(errors="replace"), items)


def _contexts(answer: _Answer) -> list[tuple[int, str]]:
    try:
        return [unpack_context(data) for reply, data in answer.items if reply == Reply.META_CONTEXT]
    except UnicodeDecodeError:
        raise ServerViolation("a context's name that is not UTF-8") from None


def _infos(answer: _Answer) -> tuple[ExportInfo, BlockSizes]:
    export, sizes = None, DEFAULT_SIZES
    for reply, data in answer.items:
        if reply != Reply.INFO:
            continue
        (kind,) = U16.unpack_from(data)
        if kind == InfoType.EXPORT:
            export = ExportInfo.unpack(data)
        elif kind == InfoType.BLOCK_SIZE:
            sizes = _sane(BlockSizes.unpack(data))
    if export is None:
        raise ServerViolation("nothing was told about the export")
    return export, sizes


def _sane(sizes: BlockSizes) -> BlockSizes:
    """Return the sizes, or the default ones if they violate proto.md, "Block size constraints"."""
    minimum, preferred, maximum = sizes
    power_of_two = minimum & (minimum - 1) == 0 and preferred & (preferred - 1) == 0
    whole = maximum == NO_MAXIMUM or (minimum and maximum % minimum == 0)
    in_order = 0 < minimum <= preferred <= maximum
    if not (power_of_two and whole and in_order) or minimum > LARGEST_MINIMUM or preferred < SMALLEST_PREFERRED:
        return DEFAULT_SIZES
    return BlockSizes(minimum, preferred, min(maximum, MAX_PAYLOAD))


def _checked(agreed: Agreed) -> Agreed:
    if agreed.size > MAX_SIZE:
        raise ServerViolation(f"an export of {agreed.size} bytes")
    if not agreed.can(ExportFlag.HAS_FLAGS):
        raise ServerViolation("an export without flags")
    return agreed
