# SPDX-License-Identifier: Apache-2.0
"""The two parsers of servers' replies, imageio_daemon's in Python and the engine's in C, in the same words."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from struct import pack
from typing import Protocol

from imageio_daemon.nbdproto.client_negotiation import Agreed
from imageio_daemon.nbdproto.client_replies import ClientReplies, ClientRequest
from imageio_daemon.nbdproto.constants import ALLOCATION_DEPTH, BASE_ALLOCATION, DONE, Chunk, Command
from tests.support.nbd_payloads import ChunkHeader, pack_error, pack_extents, pack_hole
from tests.support.nbd_replies import Replies, Request

from .scripted import FLAGS, SIZE

FORMS = ("simple", "structured", "extended")
CHUNKS = FORMS[1:]

#: Before and after the memory of a request: it must never change.
GUARD = b"\xaa" * 64


class AnyRequest(Protocol):
    """A request of either parser. Tests may change what replies to it are made of."""

    cookie: int
    offset: int


class Client(ABC):
    """Feed replies to a client of one of the forms. step: bytes received at once."""

    def __init__(self, form: str, step: int = 1 << 30) -> None:
        self.form = form
        self.step = step
        self.extended = form == "extended"
        #: The header of the last request.
        self.header = b""

    # The parser

    @abstractmethod
    def begin(
        self, command: Command, offset: int = 0, length: int = 4096, flags: int = 0, memory: bytearray | None = None
    ) -> AnyRequest:
        """Add a request. memory: for the data of a READ, with a guard at both ends."""

    @abstractmethod
    def feed(self, data: bytes) -> None:
        """Receive bytes. Raises ServerViolation."""

    @property
    @abstractmethod
    def ended(self) -> Sequence[AnyRequest]:
        """Return the requests whose replies are complete, in order."""

    @abstractmethod
    def result(self, request: AnyRequest) -> tuple[int, str]:
        """Return the error of a reply, or 0, and its text."""

    def read(self, offset: int, length: int) -> "Read":
        return Read(self, offset, length)

    # Replies

    def chunk(self, request: AnyRequest, kind: int, payload: bytes, *, done: bool = True) -> bytes:
        header = ChunkHeader(kind, DONE if done else 0, request.cookie, len(payload), request.offset)
        return header.pack(extended=self.extended) + payload

    def data(self, request: AnyRequest, offset: int, data: bytes, *, done: bool = True) -> bytes:
        return self.chunk(request, Chunk.OFFSET_DATA, pack(">Q", offset) + data, done=done)

    def hole(self, request: AnyRequest, offset: int, size: int, *, done: bool = True) -> bytes:
        return self.chunk(request, Chunk.OFFSET_HOLE, pack_hole(offset, size), done=done)

    def none(self, request: AnyRequest) -> bytes:
        return self.chunk(request, Chunk.NONE, b"")

    def error(self, request: AnyRequest, error: int, text: str = "", *, done: bool = True) -> bytes:
        return self.chunk(request, Chunk.ERROR, pack_error(error, text), done=done)

    def status(self, request: AnyRequest, context: int, *extents: tuple[int, int], done: bool = True) -> bytes:
        kind = Chunk.BLOCK_STATUS_EXT if self.extended else Chunk.BLOCK_STATUS
        payload = pack_extents(context, *zip(*extents, strict=True), extended=self.extended)
        return self.chunk(request, kind, payload, done=done)


class PythonClient(Client):
    """The client's parser. Its contexts are base:allocation and qemu:allocation-depth."""

    def __init__(self, form: str, step: int = 1 << 30) -> None:
        super().__init__(form, step)
        contexts = {1: BASE_ALLOCATION, 2: ALLOCATION_DEPTH}
        agreed = Agreed(SIZE, FLAGS, structured=form != "simple", extended=self.extended, contexts=contexts)
        self._ended: list[ClientRequest] = []
        self.replies = ClientReplies(agreed, self._ended.append)

    def begin(
        self, command: Command, offset: int = 0, length: int = 4096, flags: int = 0, memory: bytearray | None = None
    ) -> ClientRequest:
        view = None if memory is None else memoryview(memory)[len(GUARD) : -len(GUARD)]
        request = ClientRequest(command, offset, length, flags, view)
        self.header = self.replies.begin(request)
        return request

    def feed(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            buffer = self.replies.get_buffer()
            count = min(len(buffer), len(rest), self.step)
            assert count
            buffer[:count] = rest[:count]
            self.replies.received(count)
            rest = rest[count:]

    @property
    def ended(self) -> Sequence[ClientRequest]:
        return self._ended

    def result(self, request: AnyRequest) -> tuple[int, str]:
        assert isinstance(request, ClientRequest)
        return request.error, request.text


class CClient(Client):
    """The engine's parser. Its contexts are base:allocation, qemu:allocation-depth and a dirty bitmap."""

    CONTEXTS = 3

    def __init__(self, form: str, step: int = 1 << 30) -> None:
        super().__init__(form, step)
        self.replies = Replies(structured=form != "simple", extended=self.extended, contexts=self.CONTEXTS)

    def begin(
        self,
        command: Command,
        offset: int = 0,
        length: int = 4096,
        flags: int = 0,
        memory: bytearray | None = None,
        most: int = 1000,
    ) -> Request:
        """Add a request. most: extents that there is room for."""
        request = Request(command, offset, length, flags, memory)
        self.header = self.replies.begin(request, guard=len(GUARD), most=most)
        return request

    def feed(self, data: bytes) -> None:
        self.replies.feed(data, self.step)

    @property
    def ended(self) -> Sequence[Request]:
        return self.replies.ended

    def result(self, request: AnyRequest) -> tuple[int, str]:
        assert isinstance(request, Request)
        return self.replies.error(request)


class Read:
    """A READ into guarded memory."""

    def __init__(self, client: Client, offset: int, length: int) -> None:
        self.memory = bytearray(GUARD + bytes([0x55]) * length + GUARD)
        self.request = client.begin(Command.READ, offset, length, memory=self.memory)

    @property
    def content(self) -> bytes:
        assert self.memory[: len(GUARD)] == GUARD
        assert self.memory[-len(GUARD) :] == GUARD
        return bytes(self.memory[len(GUARD) : -len(GUARD)])
