# SPDX-License-Identifier: Apache-2.0
"""The bytes of the server's negotiation: the client's flags and options, and the replies (proto.md, "Option types")."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .agreement import Export
from .constants import (
    MAX_DRAINED_OPTION,
    MAX_OPTION,
    MAX_OPTIONS,
    MAX_PAYLOAD,
    MIN_BLOCK,
    HandshakeFlag,
    InfoType,
    Reply,
)
from .messages import clean_text
from .option_payloads import (
    CLIENT_FLAGS,
    EXPORT,
    OPTION,
    ZEROES,
    BlockSizes,
    ExportInfo,
    OptionHeader,
    OptionReply,
    pack_context,
    pack_greeting,
    pack_server,
    pack_text_info,
)

_FLAGS = HandshakeFlag.FIXED_NEWSTYLE | HandshakeFlag.NO_ZEROES


class ClientViolation(Exception):
    """The client violated the protocol, and the connection must be closed. The exception's text is for the log."""


class ClientFlags(NamedTuple):
    """The client's handshake flags, its first message."""

    fixed_newstyle: bool
    no_zeroes: bool


class ClientOption(NamedTuple):
    """One option. `payload` is None if it was longer than MAX_OPTION, and so was skipped."""

    option: int
    payload: bytes | None


class OptionStream:
    """Collect bytes until a message is complete. Skip the payload of a long option, to save memory."""

    def __init__(self) -> None:
        self._input = bytearray()
        self._skip = 0  # bytes of a too long payload that are still missing
        self._flags_seen = False
        #: How many more options the client may send.
        self.options_left = MAX_OPTIONS

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes that were received."""
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        self._input += data[skipped:]

    @property
    def waiting(self) -> int:
        """Return the number of bytes that next() has not returned."""
        return len(self._input)

    def rest(self) -> bytes:
        """Return the bytes after the last message that next() has returned."""
        return bytes(self._input)

    def next(self) -> ClientFlags | ClientOption | None:
        """Return the next message, or None if more bytes are needed. Raises ClientViolation, BadMagic."""
        if self._skip:
            return None
        return self._next_option() if self._flags_seen else self._next_flags()

    def _next_flags(self) -> ClientFlags | None:
        if len(self._input) < CLIENT_FLAGS.size:
            return None
        (flags,) = CLIENT_FLAGS.unpack(self._take(CLIENT_FLAGS.size))
        if flags & ~_FLAGS:
            raise ClientViolation(f"client flags {flags:#x}")
        self._flags_seen = True
        return ClientFlags(bool(flags & HandshakeFlag.FIXED_NEWSTYLE), bool(flags & HandshakeFlag.NO_ZEROES))

    def _next_option(self) -> ClientOption | None:
        if len(self._input) < OPTION.size:
            return None
        header = OptionHeader.unpack(bytes(self._input[: OPTION.size]))
        if header.length > MAX_DRAINED_OPTION:
            raise ClientViolation(f"option {header.option} with {header.length} bytes")
        too_long = header.length > MAX_OPTION
        if not too_long and len(self._input) < OPTION.size + header.length:
            return None
        if not self.options_left:
            raise ClientViolation("too many options")
        self.options_left -= 1
        self._take(OPTION.size)
        payload = self._take(min(header.length, len(self._input)))
        self._skip = header.length - len(payload)
        return ClientOption(header.option, None if too_long else payload)

    def _take(self, count: int) -> bytes:
        taken = bytes(self._input[:count])
        del self._input[:count]
        return taken


class OptionReplies:
    """The bytes to send to the client, from the greeting on."""

    def __init__(self) -> None:
        self._output = bytearray(pack_greeting(_FLAGS))
        #: The option that replies are for.
        self.option = 0

    def take(self) -> bytes:
        """Return the bytes that were added since the last call."""
        output = bytes(self._output)
        self._output.clear()
        return output

    def add(self, reply: Reply, payload: bytes = b"") -> None:
        """Add a reply to the option."""
        self._output += OptionReply(self.option, reply, len(payload)).pack() + payload

    def add_names(self, names: Sequence[str]) -> None:
        """Answer LIST."""
        for name in names:
            self.add(Reply.SERVER, pack_server(name))
        self.add(Reply.ACK)

    def add_contexts(self, contexts: Iterable[tuple[int, str]]) -> None:
        """Answer LIST_META_CONTEXT or SET_META_CONTEXT with the id and name of each context."""
        for number, name in contexts:
            self.add(Reply.META_CONTEXT, pack_context(number, name))
        self.add(Reply.ACK)

    def add_infos(self, export: Export, infos: tuple[int, ...], *, preferred: int, chunks: bool) -> None:
        """Answer INFO or GO.

        `infos` has the types of information that the client asks for. `preferred` is the preferred block size, in
        bytes. Export.flags() explains `chunks`.
        """
        self.add(Reply.INFO, ExportInfo(export.size, export.flags(chunks=chunks)).pack())
        self.add(Reply.INFO, BlockSizes(MIN_BLOCK, preferred, MAX_PAYLOAD).pack())
        if InfoType.NAME in infos:
            self.add(Reply.INFO, pack_text_info(InfoType.NAME, export.name))
        if InfoType.DESCRIPTION in infos and export.description:
            # Clients limit the length of a reply, and a file name may be longer.
            text = clean_text(export.description).decode()
            self.add(Reply.INFO, pack_text_info(InfoType.DESCRIPTION, text))
        self.add(Reply.ACK)

    def add_export(self, export: Export, *, chunks: bool, zeroes: bool) -> None:
        """Answer EXPORT_NAME by a reply without a header. With `zeroes`, append the reserved bytes."""
        self._output += EXPORT.pack(export.size, export.flags(chunks=chunks))
        if zeroes:
            self._output += ZEROES
