# SPDX-License-Identifier: Apache-2.0
"""An NBD server for tests. It records the requests, and answers well, badly, late or never."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from imageio_daemon.nbdproto.constants import BASE_ALLOCATION, DIRTY_BITMAP, DONE, Chunk, Command, OptionType, Reply
from imageio_daemon.nbdproto.option_payloads import BlockSizes, OptionHeader, OptionReply, pack_greeting, unpack_context
from imageio_daemon.urls.nbd import NbdAddress, parse
from tests.nbdproto.scripted import ACK, FLAGS, UNSUP, Answers, Handler, contexts, export, fixed
from tests.support.nbd_payloads import ChunkHeader, RequestHeader, SimpleReply, pack_extents

#: The text of a refusal.
WORDS = b"no"


@dataclass
class Asked:
    """A request, and the number of the connection that it came through."""

    connection: int
    header: RequestHeader
    payload: bytes = b""

    @property
    def range(self) -> tuple[int, int]:
        return self.header.offset, self.header.length


class Held:
    """Requests of one command that wait for their replies. `reached` is set when there is one."""

    def __init__(self, server: "FakeNbd", command: Command) -> None:
        self.reached = asyncio.Event()
        self.asked: list[Asked] = []
        self._server = server
        self._command = command

    def take(self, asked: Asked) -> None:
        self.asked.append(asked)
        self.reached.set()

    def release(self) -> None:
        """Answer these requests, and later ones at once."""
        self._server.held.pop(self._command, None)
        for asked in self.asked:
            self._server.reply(asked)


@dataclass
class FakeNbd:
    """Serve `size` bytes: `content`, or without it zeros that cannot be changed.

    `answer` makes the reply to a request, in place of the default one. If it returns None, there is no reply.
    """

    socket: Path
    size: int = 1 << 20
    content: bytearray | None = None
    flags: int = FLAGS
    sizes: BlockSizes | None = None
    #: The metadata contexts. Their ids are numbered from 10 on in the order of a selection.
    contexts: tuple[str, ...] = (BASE_ALLOCATION,)
    #: The contexts that each connection has selected.
    selected: dict[int, list[str]] = field(default_factory=dict)
    #: The connections that get no contexts.
    without_contexts: frozenset[int] = frozenset()
    extended: bool = False
    #: The number of connections that are greeted. Others hang.
    greeted: int = 1000
    answer: Callable[[Asked], Awaitable[bytes | None]] | None = None
    asked: list[Asked] = field(default_factory=list)
    #: The errors with which requests are refused, by command.
    refused: dict[int, int] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)
    connections: int = 0
    ended: int = 0  # number of connections that have ended
    after_goodbye: bytes = b""
    refusal: Answers | None = None  # the reply to GO, if it is refused
    #: The size that connections after the first one get.
    later_size: int | None = None
    #: After the negotiation, the server receives nothing until this is set.
    hold: asyncio.Event | None = None
    #: The longest payload that the server reads if the test makes the answers.
    most_read: int = 8 << 20
    #: The readers of the connections, with the bytes that the server has not read.
    readers: list[asyncio.StreamReader] = field(default_factory=list)
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)
    _server: asyncio.Server | None = None

    @property
    def address(self) -> NbdAddress:
        return parse(f"nbd:unix:{self.socket}")

    def commands(self, command: Command) -> list[Asked]:
        return [asked for asked in self.asked if asked.header.command == command]

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self.serve, self.socket)

    async def stop(self) -> None:
        """Close all connections, and stop listening."""
        if self._server is not None:
            self._server.close()
        self.hang_up()
        self.socket.unlink(missing_ok=True)

    def hold_back(self, command: Command) -> Held:
        """Let requests of a command wait until they are released."""
        held = self.held[command] = Held(self, command)
        return held

    def hang_up(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.connections
        self.connections += 1
        self._writers.append(writer)
        self.readers.append(reader)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            if number >= self.greeted:
                await reader.read(1)
            elif await self._negotiate(number, reader, writer):
                if self.hold is not None:
                    await self.hold.wait()
                await self._transmit(number, reader, writer)
        self.ended += 1
        writer.close()

    async def _negotiate(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        size = self.size if number == 0 or self.later_size is None else self.later_size
        handlers: dict[int, Handler] = {
            OptionType.EXTENDED_HEADERS: fixed(ACK if self.extended else UNSUP),
            OptionType.STRUCTURED_REPLY: fixed(ACK),
            OptionType.LIST_META_CONTEXT: contexts(*self.contexts),
            OptionType.SET_META_CONTEXT: contexts(*(() if number in self.without_contexts else self.contexts)),
            OptionType.GO: export(size, self.flags, self.sizes) if self.refusal is None else fixed(self.refusal),
        }
        writer.write(pack_greeting(3))
        await reader.readexactly(4)
        while True:
            header = OptionHeader.unpack(await reader.readexactly(16))
            payload = await reader.readexactly(header.length)
            answers = handlers.get(header.option, fixed(UNSUP))(payload)
            if header.option == OptionType.SET_META_CONTEXT:
                told = [data for reply, data in answers if reply == Reply.META_CONTEXT]
                self.selected[number] = [unpack_context(data)[1] for data in told]
            for reply, data in answers:
                writer.write(OptionReply(header.option, reply, len(data)).pack() + data)
            if header.option == OptionType.ABORT:
                return False
            if header.option == OptionType.GO and answers[-1][0] == Reply.ACK:
                return True

    async def _transmit(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            data = await reader.readexactly(32 if self.extended else 28)
            header = RequestHeader.unpack(data, extended=self.extended)
            if header.command == Command.DISC:
                self.asked.append(Asked(number, header))
                self.after_goodbye += await reader.read()
                return
            if self.answer is not None and header.command == Command.WRITE and header.length > self.most_read:
                payload = b""  # the request is answered before its payload was received
            else:
                payload = await reader.readexactly(header.length) if header.command == Command.WRITE else b""
            asked = Asked(number, header, payload)
            self.asked.append(asked)
            reply = self._usual(asked) if self.answer is None else await self.answer(asked)
            if reply is not None:
                writer.write(reply)
            if header.command == Command.WRITE and len(payload) < header.length:
                await writer.wait_closed()  # the rest is not read

    def _usual(self, asked: Asked) -> bytes | None:
        held = self.held.get(asked.header.command)
        if held is not None:
            held.take(asked)
            return None
        return self._judged(asked)

    def _judged(self, asked: Asked) -> bytes:
        error = self.refused.get(asked.header.command)
        return self.failure(asked, error) if error else self.success(asked)

    def reply(self, asked: Asked) -> None:
        """Send a reply later than its turn."""
        self._writers[asked.connection].write(self._judged(asked))

    def success(self, asked: Asked) -> bytes:
        """Carry out the request, and return the reply."""
        header = asked.header
        start, end = header.offset, header.offset + header.length
        if header.command == Command.READ:
            data = bytes(header.length) if self.content is None else bytes(self.content[start:end])
            return self.chunk(asked, Chunk.OFFSET_DATA, start.to_bytes(8) + data)
        if header.command == Command.BLOCK_STATUS:
            return self._status(asked)
        if self.content is not None and header.command == Command.WRITE:
            self.content[start:end] = asked.payload
        elif self.content is not None and header.command == Command.WRITE_ZEROES:
            self.content[start:end] = bytes(header.length)
        return self.chunk(asked, Chunk.NONE, b"") if self.extended else SimpleReply(header.cookie, 0).pack()

    def _status(self, asked: Asked) -> bytes:
        """Return one extent in each context: zeros unless there is content, and changed if the test says so."""
        kind = Chunk.BLOCK_STATUS_EXT if self.extended else Chunk.BLOCK_STATUS
        names, message = self.selected[asked.connection], b""
        for place, name in enumerate(names):
            flags = 1 if name.startswith(DIRTY_BITMAP) else 3 if self.content is None else 0
            payload = pack_extents(10 + place, [asked.header.length], [flags], extended=self.extended)
            message += self.chunk(asked, kind, payload, done=place + 1 == len(names))
        return message

    def failure(self, asked: Asked, error: int) -> bytes:
        """Return a reply with an error."""
        payload = error.to_bytes(4) + len(WORDS).to_bytes(2) + WORDS
        return self.chunk(asked, Chunk.ERROR, payload)

    def chunk(self, asked: Asked, kind: int, payload: bytes, *, done: bool = True) -> bytes:
        header = ChunkHeader(kind, DONE if done else 0, asked.header.cookie, len(payload), asked.header.offset)
        return header.pack(extended=self.extended) + payload


@contextlib.asynccontextmanager
async def fake_nbd() -> AsyncIterator[FakeNbd]:
    """Yield a server that is not started yet."""
    with tempfile.TemporaryDirectory(prefix="nbd-") as directory:
        server = FakeNbd(Path(directory) / "socket")
        try:
            yield server
        finally:
            await server.stop()
