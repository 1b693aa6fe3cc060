# SPDX-License-Identifier: Apache-2.0
"""The server's negotiation: bytes in, events out, bytes out (proto.md, "Fixed newstyle negotiation").

The caller feeds what it receives, sends `take_output()`, and acts on each event before it calls next_event() again:

    negotiation.feed(data)
    while event := negotiation.next_event(): ...
"""

from collections.abc import Callable, Iterable
from enum import Enum

from .agreement import Agreement, Close, Event, Export, FindExport, Selection, StartTls, Transmit
from .constants import DIRTY_BITMAP, MAX_OPTION, MAX_OPTIONS_LISTED, OptionType, Reply
from .messages import BadMagic, clean_text
from .option_payloads import ContextRequest, InfoRequest, Malformed, TooMany, unpack_name
from .server_options import ClientFlags, ClientOption, ClientViolation, OptionReplies, OptionStream

#: Most bytes of options that a client may send before the answer to the first one. Known clients wait for each reply.
MAX_PIPELINED = 2 * MAX_OPTION


class Tls(Enum):
    """Whether TLS may or must be started (proto.md, "TLS support": NOTLS, SELECTIVETLS, FORCEDTLS)."""

    OFF = "off"
    OPTIONAL = "optional"
    REQUIRED = "required"


class ServerNegotiation:
    """The negotiation of one connection.

    `listed` returns the names for LIST. Without it, LIST is refused.
    """

    def __init__(
        self, *, preferred: int, tls: Tls = Tls.OFF, listed: Callable[[], Iterable[str]] | None = None
    ) -> None:
        #: Set this when the server stops. Then the answer to options is ERR_SHUTDOWN.
        self.stopping = False
        #: The preferred block size for clients, in bytes.
        self.preferred = preferred
        self._tls = tls
        self._secure = False
        self._listed = listed
        self._listed_once = False
        self._stream = OptionStream()
        self._replies = OptionReplies()
        self._flags = ClientFlags(fixed_newstyle=False, no_zeroes=False)
        self._ended = False
        self._answer: Callable[[Export], Event | None] | None = None
        self._agreed = Agreement()

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes that were received."""
        self._stream.feed(data)

    def take_output(self) -> bytes:
        """Return the bytes to send to the client, once."""
        return self._replies.take()

    def next_event(self) -> Event | None:
        """Return what the caller has to do, or None if it has to feed more, or to answer the last event."""
        if self._answer is not None and self._stream.waiting > MAX_PIPELINED:
            return self._close("options sent before the first was answered")
        try:
            while not self._ended and self._answer is None:
                message = self._stream.next()
                if message is None:
                    return None
                event = self._take(message)
                if event is not None:
                    return event
        except (BadMagic, ClientViolation) as e:
            return self._close(str(e))
        return None

    def found(self, export: Export) -> Event | None:
        """Answer FindExport with the export. Return the next event, if there is already one."""
        answer, self._answer = self._answer, None
        if answer is None:
            raise RuntimeError("nobody asked for an export")
        return answer(export)

    def refused(self, reply: Reply, text: str) -> Event | None:
        """Answer FindExport with an error, because the export is unknown or forbidden. The text is for the client."""
        self._answer = None
        if self._replies.option == OptionType.EXPORT_NAME:
            return self._close(None)  # EXPORT_NAME has no error reply
        self._replies.add(reply, clean_text(text))
        return None

    def tls_started(self) -> Event | None:
        """Answer StartTls. Discard what was negotiated before, in the clear (proto.md, "TLS support")."""
        if self._stream.waiting:
            return self._close("clear text after STARTTLS")
        self._secure = True
        self._agreed = Agreement()
        return None

    def _take(self, message: ClientFlags | ClientOption) -> Event | None:
        if isinstance(message, ClientFlags):
            self._flags = message
            return None
        option, payload = message
        self._replies.option = option
        self._require_polite(option)
        if option == OptionType.SET_META_CONTEXT:
            self._agreed.selected = None  # proto.md: after an error no context is selected
        refusal = self._refusal(option, payload)
        if refusal is not None:
            if option == OptionType.EXPORT_NAME:
                raise ClientViolation(f"EXPORT_NAME answered by {refusal[0].name}")
            self._replies.add(*refusal)
            return None
        try:
            return _HANDLERS[option](self, payload or b"")
        except Malformed as e:
            if option == OptionType.EXPORT_NAME:
                raise ClientViolation(str(e)) from None
            self._replies.add(Reply.ERR_INVALID, str(e).encode())
        except TooMany as e:
            self._replies.add(Reply.ERR_TOO_BIG, str(e).encode())
        return None

    def _require_polite(self, option: int) -> None:
        if not self._flags.fixed_newstyle and option != OptionType.EXPORT_NAME:
            raise ClientViolation(f"option {option} from a client that does not know replies")

    def _refusal(self, option: int, payload: bytes | None) -> tuple[Reply, bytes] | None:
        """Return the error reply to an option that is refused with any payload, or None if it is not refused."""
        if self.stopping and option != OptionType.ABORT:
            return Reply.ERR_SHUTDOWN, b"the server is shutting down"
        clear = self._tls is Tls.REQUIRED and not self._secure
        if clear and option not in (OptionType.ABORT, OptionType.STARTTLS):
            return Reply.ERR_TLS_REQD, b"TLS first"
        if option not in _HANDLERS:
            return Reply.ERR_UNSUP, b"unknown option"
        if payload is None:
            return Reply.ERR_TOO_BIG, b"payload too long"
        return None

    # Options

    def _export_name(self, payload: bytes) -> Event | None:
        if self._agreed.extended:
            raise ClientViolation("EXPORT_NAME with extended headers")
        return self._find(unpack_name(payload), self._enter_by_name, enter=True)

    def _enter_by_name(self, export: Export) -> Event | None:
        self._replies.add_export(export, chunks=self._agreed.structured, zeroes=not self._flags.no_zeroes)
        return self._transmit(export)

    def _abort(self, _: bytes) -> Event | None:
        self._replies.add(Reply.ACK)
        return self._close(None)

    def _list(self, payload: bytes) -> Event | None:
        self._require_empty(payload)
        if self._listed is None:
            self._replies.add(Reply.ERR_POLICY, b"exports are not listed")
            return None
        names = list(self._listed())
        self._stream.options_left += 0 if self._listed_once else MAX_OPTIONS_LISTED * len(names)
        self._listed_once = True
        self._replies.add_names(names)
        return None

    def _starttls(self, payload: bytes) -> Event | None:
        self._require_empty(payload)
        if self._tls is Tls.OFF:
            self._replies.add(Reply.ERR_POLICY, b"no TLS here")
            return None
        if self._secure:
            raise Malformed("TLS has already started")
        if self._stream.waiting:
            raise ClientViolation("clear text after STARTTLS")
        self._replies.add(Reply.ACK)
        return StartTls()

    def _info(self, payload: bytes) -> Event | None:
        request = InfoRequest.unpack(payload)
        return self._find(request.name, lambda export: self._tell(export, request.infos))

    def _go(self, payload: bytes) -> Event | None:
        request = InfoRequest.unpack(payload)

        def enter(export: Export) -> Event | None:
            self._tell(export, request.infos)
            return self._transmit(export)

        return self._find(request.name, enter, enter=True)

    def _tell(self, export: Export, infos: tuple[int, ...]) -> None:
        self._replies.add_infos(export, infos, preferred=self.preferred, chunks=self._agreed.chunks)

    def _structured_reply(self, payload: bytes) -> Event | None:
        self._require_empty(payload)
        if self._agreed.extended:
            self._replies.add(Reply.ERR_EXT_HEADER_REQD, b"extended headers are in use")
            return None
        self._agreed.structured = True
        self._replies.add(Reply.ACK)
        return None

    def _extended_headers(self, payload: bytes) -> Event | None:
        self._require_empty(payload)
        if self._agreed.extended:
            raise Malformed("extended headers are already in use")
        self._agreed.extended = True
        self._replies.add(Reply.ACK)
        return None

    def _list_contexts(self, payload: bytes) -> Event | None:
        request = ContextRequest.unpack(payload)

        def answer(export: Export) -> None:
            told = [name for name in export.contexts if not request.queries or any(_lists(q, name) for q in queries)]
            self._replies.add_contexts((0, name) for name in told)

        queries = set(request.queries)
        return self._find(request.name, answer)

    def _set_contexts(self, payload: bytes) -> Event | None:
        if not self._agreed.chunks:
            raise Malformed("structured replies are not in use")
        request = ContextRequest.unpack(payload)
        changes = any(query.startswith(DIRTY_BITMAP) and query != DIRTY_BITMAP for query in request.queries)
        self._agreed.selected = Selection(request.name, changes=changes)

        def answer(export: Export) -> None:
            found = [item for item in enumerate(export.contexts, 1) if item[1] in request.queries]
            ids = tuple(number for number, _ in found)
            self._agreed.selected = Selection(request.name, export.contexts, ids, changes)
            self._replies.add_contexts(found)

        return self._find(request.name, answer)

    # Shared by options

    def _find(self, name: str, answer: Callable[[Export], Event | None], *, enter: bool = False) -> Event:
        self._answer = answer
        return FindExport(name, enter, self._agreed.wants_changes(name))

    def _transmit(self, export: Export) -> Event:
        self._ended = True
        return Transmit(self._agreed.transmission(export), self._stream.rest())

    def _close(self, reason: str | None) -> Close:
        self._ended = True
        self._answer = None
        return Close(reason)

    @staticmethod
    def _require_empty(payload: bytes) -> None:
        if payload:
            raise Malformed("this option has no payload")


def _lists(query: str, name: str) -> bool:
    """Return whether a query lists a context: by its name, or by its beginning up to a colon (proto.md)."""
    return query == name or (query.endswith(":") and name.startswith(query))


_HANDLERS: dict[int, Callable[[ServerNegotiation, bytes], Event | None]] = {
    OptionType.EXPORT_NAME: ServerNegotiation._export_name,
    OptionType.ABORT: ServerNegotiation._abort,
    OptionType.LIST: ServerNegotiation._list,
    OptionType.STARTTLS: ServerNegotiation._starttls,
    OptionType.INFO: ServerNegotiation._info,
    OptionType.GO: ServerNegotiation._go,
    OptionType.STRUCTURED_REPLY: ServerNegotiation._structured_reply,
    OptionType.LIST_META_CONTEXT: ServerNegotiation._list_contexts,
    OptionType.SET_META_CONTEXT: ServerNegotiation._set_contexts,
    OptionType.EXTENDED_HEADERS: ServerNegotiation._extended_headers,
}
