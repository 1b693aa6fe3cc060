# SPDX-License-Identifier: Apache-2.0
"""The client's transmission phase: requests, and the server's bytes cut into their replies.

Data of a READ goes straight into the memory of its request, and nowhere else, whatever the server says.
"""

from collections.abc import Callable
from functools import partial
from struct import Struct

from ..ranges import RangeSet
from ..units import KiB
from .client import Agreed, Violation
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

#: Memory for headers and small payloads of a connection.
STAGING = 64 * KiB
#: Received after data that did not fit into it: what comes now is likely the header of more data, of which the less
#: is copied the less comes with it.
GLANCE = 512

_MAX_STATUS = CONTEXT_COUNT.size + MAX_STATUS_EXTENTS * EXTENDED_EXTENT.size
_MAGIC = Struct(">I")
_ERROR_TYPE = 0x8000
# Plain numbers: to look for a member of an enumeration takes a tenth of what a chunk does.
_NONE, _OFFSET_DATA, _OFFSET_HOLE = int(Chunk.NONE), int(Chunk.OFFSET_DATA), int(Chunk.OFFSET_HOLE)
_BLOCK_STATUS, _BLOCK_STATUS_EXT = int(Chunk.BLOCK_STATUS), int(Chunk.BLOCK_STATUS_EXT)
_READ = int(Command.READ)
_ERRORS = frozenset(ErrorNumber)


class ClientRequest:
    """Ask one thing. `view`: the memory for the data of a READ.

    At the end `error` is the number on the wire, 0 for success, and `text` what the server said to it; `statuses` has
    the payloads of the answers to BLOCK_STATUS, by the id of their context.
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
        """Note why it failed; the first reason stays. An error that the protocol does not know is EINVAL."""
        known = error in _ERRORS and (error != ErrorNumber.ENOTSUP or self.flags & CommandFlag.FAST_ZERO)
        if not self.error:
            self.error, self.text = (error if known else ErrorNumber.EINVAL), text

    def place(self, offset: int, length: int) -> memoryview:
        """Return the memory for a piece of the data. Raises Violation: none is expected there."""
        start = offset - self.offset
        if self.command != _READ or self.view is None:
            raise Violation(f"data in reply to {self.command.name}")
        if not length or start < 0 or start + length > self.length:
            raise Violation("data outside of what was asked for")
        if self._pieces is None:
            self._pieces = RangeSet(MAX_PIECES)
        before = self._pieces.size()
        self._pieces.add(offset, offset + length)
        # A set that had to join pieces to stay small has grown by more, too.
        if self._pieces.size() != before + length:
            raise Violation("data that was there before, or in too many pieces")
        return self.view[start : start + length]

    def check_complete(self) -> None:
        """Raise Violation if a reply that says success has left something out."""
        if self.error or self.command != Command.READ:
            return
        if self._pieces is None or self._pieces.size() != self.length:
            raise Violation("a reply without all data")


class ClientReplies:
    """Keep the requests that wait for replies; take received bytes, of which the caller is told where to put them."""

    def __init__(self, agreed: Agreed, ended: Callable[[ClientRequest], None]) -> None:
        #: Requests without a complete reply, by cookie.
        self.waiting: dict[int, ClientRequest] = {}
        self._agreed = agreed
        self._ended = ended
        self._cookie = 0
        self._staging = memoryview(bytearray(STAGING))
        self._start = self._end = 0
        self._window = STAGING
        self._target: memoryview | None = None  # memory for the rest of a payload
        self._filled: Callable[[], None] = _nothing

    def begin(self, request: ClientRequest) -> bytes:
        """Note a request and return its header."""
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
        """Return the memory for the next bytes."""
        if self._target is not None:
            return self._target
        return self._staging[self._end : min(STAGING, self._end + self._window)]

    def received(self, count: int) -> None:
        """Note that count bytes were put into the memory. Raises Violation."""
        if self._target is not None:
            self._advance(self._target, count)
        else:
            self._end += count
        while self._take_staged():
            pass
        self._compact()

    def _take_staged(self) -> bool:
        """Take what the staged bytes hold next; False: more are needed."""
        if self._target is None:
            return self._next_message()
        count = min(len(self._target), self._end - self._start)
        self._target[:count] = self._staging[self._start : self._start + count]
        self._start += count
        if count:
            self._advance(self._target, count)
        return bool(count)

    def _advance(self, target: memoryview, count: int) -> None:
        self._target = target[count:]
        if not self._target:
            self._target = None
            self._filled()

    def _receive(self, target: memoryview, filled: Callable[[], None]) -> None:
        """Put the next bytes into target and call filled then."""
        self._target, self._filled = target, filled
        self._window = GLANCE if len(target) >= STAGING else STAGING

    def _compact(self) -> None:
        left = self._end - self._start
        if left and self._start:
            self._staging[:left] = self._staging[self._start : self._end]
        self._start, self._end = 0, left

    # Messages

    def _next_message(self) -> bool:
        staged = self._end - self._start
        if staged < 4:
            return False
        (magic,) = _MAGIC.unpack_from(self._staging, self._start)
        extended = self._agreed.extended
        if magic == SIMPLE_REPLY and not extended:
            return self._header(SIMPLE.size, self._simple_reply)
        if magic == (EXTENDED_CHUNK if extended else CHUNK) and self._agreed.structured:
            return self._header(EXTENDED.size if extended else STRUCTURED.size, self._chunk)
        raise Violation(f"a reply that begins with {magic:#x}")

    def _header(self, size: int, handle: Callable[[bytes], None]) -> bool:
        if self._end - self._start < size:
            return False
        data = bytes(self._staging[self._start : self._start + size])
        self._start += size
        handle(data)
        return True

    def _find(self, cookie: int) -> ClientRequest:
        request = self.waiting.get(cookie)
        if request is None:
            raise Violation("a reply to no request")
        return request

    def _end_request(self, request: ClientRequest) -> None:
        request.check_complete()
        del self.waiting[request.cookie]
        self._ended(request)

    def _simple_reply(self, data: bytes) -> None:
        reply = SimpleReply.unpack(data)
        request = self._find(reply.cookie)
        if request.command == Command.BLOCK_STATUS and not reply.error:
            raise Violation("a status without extents")
        if request.command == Command.READ and self._agreed.structured:
            raise Violation("a simple reply to a READ")
        if reply.error:
            request.fail(reply.error)
        elif request.command == Command.READ:
            place = request.place(request.offset, request.length)
            self._receive(place, partial(self._end_request, request))
            return
        self._end_request(request)

    def _chunk(self, data: bytes) -> None:
        header = ChunkHeader.unpack(data, extended=self._agreed.extended)
        request = self._find(header.cookie)
        if self._agreed.extended and header.offset != request.offset:
            raise Violation("a reply with the offset of another request")
        if header.type == _OFFSET_DATA:
            if header.length <= OFFSET.size:
                raise Violation("data of no bytes")
            self._small(OFFSET.size, partial(self._data, request, header))
        elif header.type == _NONE:
            if header.length or not header.done:
                raise Violation("an empty chunk that is not empty, or not the last one")
            self._end_chunk(request, header)
        else:
            self._small(self._checked_length(request, header), partial(self._small_chunk, request, header))

    def _checked_length(self, request: ClientRequest, header: ChunkHeader) -> int:
        status = _BLOCK_STATUS_EXT if self._agreed.extended else _BLOCK_STATUS
        if header.type == _OFFSET_HOLE:
            limit = HOLE.size
        elif header.type == status:
            limit = min(_MAX_STATUS, MAX_STATUS_BYTES - sum(map(len, request.statuses.values())))
        elif header.type & _ERROR_TYPE:
            limit = MAX_ERROR_CHUNK
        else:
            raise Violation(f"a chunk of the unknown type {header.type:#x}")
        if not 0 < header.length <= limit:
            raise Violation(f"a chunk of type {header.type:#x} with {header.length} bytes")
        return header.length

    def _small(self, length: int, handle: Callable[[bytes], None]) -> None:
        """Take a payload from the staged bytes, or collect it in memory of its own."""
        if self._end - self._start >= length:
            self._start += length
            handle(bytes(self._staging[self._start - length : self._start]))
            return
        memory = bytearray(length)
        self._receive(memoryview(memory), lambda: handle(bytes(memory)))

    def _data(self, request: ClientRequest, header: ChunkHeader, payload: bytes) -> None:
        (offset,) = OFFSET.unpack(payload)
        place = request.place(offset, header.length - OFFSET.size)
        self._receive(place, partial(self._end_chunk, request, header))

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
            raise Violation(str(e)) from None
        self._end_chunk(request, header)

    def _status(self, request: ClientRequest, payload: bytes) -> None:
        form = CONTEXT_COUNT if self._agreed.extended else CONTEXT
        if len(payload) < form.size:
            raise Violation("a status without a context")
        context = form.unpack_from(payload)[0]
        if request.command != Command.BLOCK_STATUS or context not in self._agreed.contexts:
            raise Violation("a status that was not asked for")
        if context in request.statuses:
            raise Violation("two statuses of one context")
        request.statuses[context] = payload

    def _end_chunk(self, request: ClientRequest, header: ChunkHeader) -> None:
        if header.done:
            self._end_request(request)


def _nothing() -> None:
    pass
