# SPDX-License-Identifier: Apache-2.0
"""The client's transmission phase: requests, and the parser of replies (proto.md, "Transmission").

The data of a READ is received into the memory of its request. A server cannot make the parser write anywhere else.
"""

from collections.abc import Callable
from functools import partial
from struct import Struct

from ...units import KiB
from ..constants import (
    CHUNK,
    EXTENDED_CHUNK,
    MAX_ERROR_CHUNK,
    MAX_STATUS_BYTES,
    MAX_STATUS_EXTENTS,
    SIMPLE_REPLY,
    Chunk,
    Command,
    CommandFlag,
)
from ..messages import (
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
from .client_request import ClientRequest
from .negotiation import Agreed, ServerViolation

#: Bytes of a connection's buffer for headers and small payloads.
STAGING = 64 * KiB
#: Most bytes to receive after data that is longer than STAGING. Probably a header comes next, and more data after it.
#: Data that is received together with the header has to be copied, so the read is short.
GLANCE = 512

_MAX_STATUS = CONTEXT_COUNT.size + MAX_STATUS_EXTENTS * EXTENDED_EXTENT.size
_MAGIC = Struct(">I")
_ERROR_TYPE = 0x8000
# Plain numbers, because looking up an enumeration's member takes a tenth of the time of a chunk.
_NONE, _OFFSET_DATA, _OFFSET_HOLE = int(Chunk.NONE), int(Chunk.OFFSET_DATA), int(Chunk.OFFSET_HOLE)
_BLOCK_STATUS, _BLOCK_STATUS_EXT = int(Chunk.BLOCK_STATUS), int(Chunk.BLOCK_STATUS_EXT)


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
        self._staging = memoryview(bytearray(STAGING))
        self._start = self._end = 0
        self._window = STAGING
        self._target: memoryview | None = None  # memory for the rest of a payload, unless it is staged
        self._filled: Callable[[], None] = _nothing

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
        if self._target is not None:
            return self._target
        return self._staging[self._end : min(STAGING, self._end + self._window)]

    def received(self, count: int) -> None:
        """Parse `count` bytes that were received into get_buffer(). Raises ServerViolation, BadMagic."""
        if self._target is not None:
            self._advance(self._target, count)
        else:
            self._end += count
        while self._take_staged():
            pass
        self._compact()

    def _take_staged(self) -> bool:
        """Parse the next part of the staged bytes. Return False if more bytes are needed."""
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
        """Receive the next bytes into `target`, and call `filled` when it is full."""
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
        raise ServerViolation(f"a reply that begins with {magic:#x}")

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
            raise ServerViolation("a reply to no request")
        return request

    def _end_request(self, request: ClientRequest) -> None:
        request.check_complete()
        del self.waiting[request.cookie]
        self._ended(request)

    def _simple_reply(self, data: bytes) -> None:
        reply = SimpleReply.unpack(data)
        request = self._find(reply.cookie)
        if request.command == Command.BLOCK_STATUS and not reply.error:
            raise ServerViolation("a status without extents")
        if request.command == Command.READ and self._agreed.structured:
            raise ServerViolation("a simple reply to a READ")
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
            raise ServerViolation("a reply with the offset of another request")
        if header.type == _OFFSET_DATA:
            if header.length <= OFFSET.size:
                raise ServerViolation("data of no bytes")
            self._small(OFFSET.size, partial(self._data, request, header))
        elif header.type == _NONE:
            if header.length or not header.done:
                raise ServerViolation("an empty chunk that is not empty, or not the last one")
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
            raise ServerViolation(f"a chunk of the unknown type {header.type:#x}")
        if not 0 < header.length <= limit:
            raise ServerViolation(f"a chunk of type {header.type:#x} with {header.length} bytes")
        return header.length

    def _small(self, length: int, handle: Callable[[bytes], None]) -> None:
        """Call `handle` with a payload, when all of it has been received. Until then, collect it in separate memory."""
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
            raise ServerViolation(str(e)) from None
        self._end_chunk(request, header)

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

    def _end_chunk(self, request: ClientRequest, header: ChunkHeader) -> None:
        if header.done:
            self._end_request(request)


def _nothing() -> None:
    pass
