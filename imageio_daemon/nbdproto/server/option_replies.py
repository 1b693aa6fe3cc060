# SPDX-License-Identifier: Apache-2.0
"""The server's output in the negotiation: the greeting and replies to options (proto.md, "Option reply types")."""

from collections.abc import Iterable, Sequence

from ..constants import MAX_PAYLOAD, MIN_BLOCK, HandshakeFlag, InfoType, Reply
from ..messages import clean_text
from ..option_payloads import (
    EXPORT,
    ZEROES,
    BlockSizes,
    ExportInfo,
    OptionReply,
    pack_context,
    pack_greeting,
    pack_server,
    pack_text_info,
)
from .transmission import Export


class OptionReplies:
    """The bytes to send to the client, from the greeting on."""

    def __init__(self) -> None:
        self._output = bytearray(pack_greeting(HandshakeFlag.FIXED_NEWSTYLE | HandshakeFlag.NO_ZEROES))
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
