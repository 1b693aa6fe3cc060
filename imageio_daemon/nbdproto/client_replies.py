# SPDX-License-Identifier: Apache-2.0
"""The client's transmission phase: requests, and the parser of replies (proto.md, "Transmission").

The data of a READ is received into the memory of its request. A server cannot make the parser write anywhere else.
"""

from collections.abc import Callable, Generator
from struct import Struct

from ..image.ranges import RangeSet
from .client_negotiation import Agreed, ServerViolation
from .constants import (
    CHUNK,
    EXTENDED_CHUNK,
    MAX_ERROR_CHUNK,
    MAX_PIECES,
    MAX_STATUS_BYTES,
    MAX_STATUS_EXTENTS,
    SIMPLE_REPLY,
    Chunk,
    Command,
    CommandFlag,
    ErrorNumber,
)
from .messages import (
    CONTEXT,
    CONTEXT_COUNT,
    EXTENDED,
    EXTENDED_EXTENT,
    HOLE,
    OFFSET,
    SIMPLE,
    STRUCTURED,
    ChunkHeader,
    RequestHeader,
    SimpleReply,
    unpack_error,
    unpack_hole,
)

_MAX_STATUS = CONTEXT_COUNT.size + MAX_STATUS_EXTENTS * EXTENDED_EXTENT.size
_MAGIC = Struct(">I")
_ERROR_TYPE = 0x8000
# Plain numbers, because looking up an enumeration's member takes a tenth of the time of a chunk.
_NONE, _OFFSET_DATA, _OFFSET_HOLE = int(Chunk.NONE), int(Chunk.OFFSET_DATA), int(Chunk.OFFSET_HOLE)
_BLOCK_STATUS, _BLOCK_STATUS_EXT = int(Chunk.BLOCK_STATUS), int(Chunk.BLOCK_STATUS_EXT)
_READ = int(Command.READ)
_ERRORS = frozenset(ErrorNumber)

#: A part of the parser: it yields the memory that it needs filled next.
_Parser = Generator[memoryview, None, None]


class ClientRequest:
    """One request. `offset` and `length` are in bytes. `view` is memory for the `length` bytes of a READ.

    After the reply, `error` is an ErrorNumber or 0 for success, `text` is the server's message, and `statuses` has the
    payloads of the reply to BLOCK_STATUS, by id of the context.
    """

    __slots__ = ("_pieces", "command", "cookie", "error", "flags", "length", "offset", "statuses", "text", "view")

    def __init__(
        self, command: Command, offset: int = 0, length: int = 0, flags: int = 0, view: memoryview | None = None
    ) -> None:
        self.command = command
        self.offset = offset
        self.length = length
        self.flags = flags
        self.view = view
        self.cookie = 0
        self.error = 0
        self.text = ""
        self.statuses: dict[int, bytes] = {}
        self._pieces: RangeSet | None = None

    def __repr__(self) -> str:
        return f"<ClientRequest {self.command.name} {self.offset}+{self.length}>"

    def fail(self, error: int, text: str = "") -> None:
        """Set the error, unless there is one. Unknown numbers become EINVAL (proto.md, "Error values")."""
        known = error in _ERRORS and (error != ErrorNumber.ENOTSUP or self.flags & CommandFlag.FAST_ZERO)
        if not self.error:
            self.error, self.text = (error if known else ErrorNumber.EINVAL), text

    def place(self, offset: int, length: int) -> memoryview:
        """Return the memory for a range of the image. Raises ServerViolation if the reply may have no data there."""
        start = offset - self.offset
        if self.command != _READ or self.view is None:
            raise ServerViolation(f"data in reply to {self.command.name}")
        if not length or start < 0 or start + length > self.length:
            raise ServerViolation("data outside of what was asked for")
        if self._pieces is None:
            self._pieces = RangeSet(MAX_PIECES)
        before = self._pieces.size()
        self._pieces.add(offset, offset + length)
        # Above MAX_PIECES the set joins ranges across gaps, so that it grows by more than `length`.
        if self._pieces.size() != before + length:
            raise ServerViolation("data that was there before, or in too many pieces")
        return self.view[start : start + length]

    def check_complete(self) -> None:
        """Raise ServerViolation if a reply without error does not have all data."""
        if self.error or self.command != Command.READ:
            return
        if self._pieces is None or self._pieces.size() != self.length:
            raise ServerViolation("a reply without all data")


class ClientReplies:
    """The requests of one connection that wait for replies, and the parser of received bytes.

    The caller receives into get_buffer() and calls received(). That calls `ended` with each request whose reply is
    complete.
    """

    def __init__(self, agreed: Agreed, ended: Callable[[ClientRequest], None]) -> None:
        #: Requests without a complete reply, by cookie.
        self.waiting: dict[int, ClientRequest] = {}
        self._agreed = agreed
        self._ended = ended
        self._cookie = 0
        self._parser = self._replies()
        self._room = next(self._parser)

    def begin(self, request: ClientRequest) -> bytes:
        """Add a request and return its header. The caller sends it, and then the payload of a WRITE."""
        self._cookie += 1
        request.cookie = self._cookie
        self.waiting[request.cookie] = request
        extended = self._agreed.extended
        flags = request.flags
        if extended and request.command == Command.WRITE:
            flags |= CommandFlag.PAYLOAD_LEN
        header = RequestHeader(request.command, flags, request.cookie, request.offset, request.length)
        return header.pack(extended=extended)

    def get_buffer(self) -> memoryview:
        """Return the memory to receive the next bytes into."""
        return self._room

    def received(self, count: int) -> None:
        """Take `count` bytes that were received into get_buffer(). Raises ServerViolation, BadMagic."""
        self._room = self._room[count:] if count < len(self._room) else next(self._parser)

    def _replies(self) -> _Parser:
        extended, structured = self._agreed.extended, self._agreed.structured
        header = bytearray((EXTENDED if extended else STRUCTURED).size)
        view, magic_of_chunks = memoryview(header), EXTENDED_CHUNK if extended else CHUNK
        while True:
            yield view[: SIMPLE.size]
            (magic,) = _MAGIC.unpack_from(header)
            if magic == SIMPLE_REPLY and not extended:
                yield from self._simple_reply(SimpleReply.unpack(bytes(view[: SIMPLE.size])))
            elif magic == magic_of_chunks and structured:
                yield view[SIMPLE.size :]
                yield from self._chunk(ChunkHeader.unpack(bytes(header), extended=extended))
            else:
                raise ServerViolation(f"a reply that begins with {magic:#x}")

    def _find(self, cookie: int) -> ClientRequest:
        request = self.waiting.get(cookie)
        if request is None:
            raise ServerViolation("a reply to no request")
        return request

    def _end_request(self, request: ClientRequest) -> None:
        request.check_complete()
        del self.waiting[request.cookie]
        self._ended(request)

    def _simple_reply(self, reply: SimpleReply) -> _Parser:
        request = self._find(reply.cookie)
        if request.command == Command.BLOCK_STATUS and not reply.error:
            raise ServerViolation("a status without extents")
        if request.command == Command.READ and self._agreed.structured:
            raise ServerViolation("a simple reply to a READ")
        if reply.error:
            request.fail(reply.error)
        elif request.command == Command.READ:
            yield request.place(request.offset, request.length)
        self._end_request(request)

    def _chunk(self, header: ChunkHeader) -> _Parser:
        request = self._find(header.cookie)
        if self._agreed.extended and header.offset != request.offset:
            raise ServerViolation("a reply with the offset of another request")
        if header.type == _OFFSET_DATA:
            if header.length <= OFFSET.size:
                raise ServerViolation("data of no bytes")
            start = bytearray(OFFSET.size)
            yield memoryview(start)
            (offset,) = OFFSET.unpack(start)
            yield request.place(offset, header.length - OFFSET.size)
        elif header.type == _NONE:
            if header.length or not header.done:
                raise ServerViolation("an empty chunk that is not empty, or not the last one")
        else:
            payload = bytearray(self._checked_length(request, header))
            yield memoryview(payload)
            self._small_chunk(request, header, bytes(payload))
        if header.done:
            self._end_request(request)

    def _checked_length(self, request: ClientRequest, header: ChunkHeader) -> int:
        status = _BLOCK_STATUS_EXT if self._agreed.extended else _BLOCK_STATUS
        if header.type == _OFFSET_HOLE:
            limit = HOLE.size
        elif header.type == status:
            limit = min(_MAX_STATUS, MAX_STATUS_BYTES - sum(map(len, request.statuses.values())))
        elif header.type & _ERROR_TYPE:
            limit = MAX_ERROR_CHUNK
        else:
            raise ServerViolation(f"a chunk of the unknown type {header.type:#x}")
        if not 0 < header.length <= limit:
            raise ServerViolation(f"a chunk of type {header.type:#x} with {header.length} bytes")
        return header.length

    def _small_chunk(self, request: ClientRequest, header: ChunkHeader, payload: bytes) -> None:
        try:
            if header.type == _OFFSET_HOLE:
                offset, size = unpack_hole(payload)
                request.place(offset, size)[:] = bytes(size)
            elif header.type & _ERROR_TYPE:
                request.fail(*unpack_error(header.type, payload))
            else:
                self._status(request, payload)
        except ValueError as e:
            raise ServerViolation(str(e)) from None

    def _status(self, request: ClientRequest, payload: bytes) -> None:
        form = CONTEXT_COUNT if self._agreed.extended else CONTEXT
        if len(payload) < form.size:
            raise ServerViolation("a status without a context")
        context = form.unpack_from(payload)[0]
        if request.command != Command.BLOCK_STATUS or context not in self._agreed.contexts:
            raise ServerViolation("a status that was not asked for")
        if context in request.statuses:
            raise ServerViolation("two statuses of one context")
        request.statuses[context] = payload
