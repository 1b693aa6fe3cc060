# SPDX-License-Identifier: Apache-2.0
"""A scripted NBD client for tests: it checks every reply against the rules, and sends what it is told to."""

import asyncio
import contextlib
import itertools
import socket
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from struct import pack, unpack
from typing import Self

from imageio_daemon.nbdproto.constants import Chunk, Command, CommandFlag, OptionType, Reply
from imageio_daemon.nbdproto.messages import OFFSET, RequestHeader, unpack_error, unpack_extents, unpack_hole
from imageio_daemon.nbdproto.option_payloads import (
    ContextRequest,
    ExportInfo,
    InfoRequest,
    OptionHeader,
    OptionReply,
)
from tests.support.nbd_payloads import ChunkHeader, SimpleReply, unpack_server

#: What a server that does not answer is given.
TIMEOUT = 20.0
#: Forms of requests and replies, as Client.go() takes them.
FORMS = {
    "simple": {"structured": False},
    "structured": {"structured": True},
    "extended": {"extended": True},
}


class Refused(Exception):
    """The final reply to an option is not ACK."""

    def __init__(self, reply: int, text: str) -> None:
        super().__init__(f"{Reply(reply).name}: {text}")
        self.reply = reply


@dataclass
class Result:
    """The whole reply to one request."""

    error: int = 0
    text: str = ""
    data: bytearray = field(default_factory=bytearray)
    holes: list[tuple[int, int]] = field(default_factory=list)
    extents: list[tuple[int, int]] = field(default_factory=list)
    statuses: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # extents, by the id of their context
    chunks: list[int] = field(default_factory=list)
    covered: int = 0


@dataclass
class _Sent:
    command: int
    offset: int
    length: int
    result: Result = field(default_factory=Result)


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.structured = False
        self.extended = False
        self.export = ExportInfo(0, 0)
        #: Contexts that go() selects.
        self.contexts: Sequence[str] = ("base:allocation",)
        self._cookies = itertools.count(2**63)
        self._sent: dict[int, _Sent] = {}

    @classmethod
    async def connect(cls, address: str | tuple[str, int], flags: int = 3) -> Self:
        """Connect and exchange flags."""
        if isinstance(address, str):
            client = cls(*await asyncio.open_unix_connection(address))
        else:
            client = cls(*await asyncio.open_connection(*address))
        greeting = await client.read(18)
        assert greeting == b"NBDMAGICIHAVEOPT\0\3"
        client.writer.write(pack(">I", flags))
        return client

    async def read(self, count: int) -> bytes:
        async with asyncio.timeout(TIMEOUT):
            return await self.reader.readexactly(count)

    async def at_end(self) -> bool:
        """Tell whether the server has closed, with nothing left to read."""
        async with asyncio.timeout(TIMEOUT):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    async def drop_all(self) -> None:
        """Read until the server has closed, whatever comes."""
        async with asyncio.timeout(TIMEOUT):
            with contextlib.suppress(ConnectionError):
                await self.reader.read()

    async def close(self) -> None:
        """Close, without a goodbye."""
        self.writer.close()
        try:
            async with asyncio.timeout(TIMEOUT):
                await self.writer.wait_closed()
        except (ConnectionError, ssl.SSLError):
            return

    def reset(self) -> None:
        """End the connection in the hardest way there is."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        self.writer.transport.abort()

    def pause_reading(self) -> None:
        """Take nothing from the socket."""
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    def resume_reading(self) -> None:
        """Read again."""
        self.writer.transport.resume_reading()  # type: ignore[attr-defined]

    # Negotiation

    async def ask(self, option: int, payload: bytes = b"") -> list[tuple[int, bytes]]:
        """Send an option and return its replies. Raises Refused."""
        self.writer.write(OptionHeader(option, len(payload)).pack() + payload)
        replies: list[tuple[int, bytes]] = []
        while True:
            header = OptionReply.unpack(await self.read(20))
            assert header.option == option
            data = await self.read(header.length)
            if header.reply >= Reply.ERR_UNSUP:
                raise Refused(header.reply, data.decode())
            replies.append((header.reply, data))
            if header.reply == Reply.ACK:
                return replies

    async def start_tls(self, context: ssl.SSLContext) -> None:
        """Make the connection a TLS one."""
        await self.ask(OptionType.STARTTLS)
        await self.writer.start_tls(context, server_hostname="localhost")

    async def go(
        self, name: str, *, structured: bool = True, extended: bool = False, allocation: bool = True
    ) -> "Client":
        """Negotiate what is asked for and enter the transmission."""
        if extended:
            await self.ask(OptionType.EXTENDED_HEADERS)
        elif structured:
            await self.ask(OptionType.STRUCTURED_REPLY)
        self.structured, self.extended = structured and not extended, extended
        if allocation and (structured or extended):
            await self.ask(OptionType.SET_META_CONTEXT, ContextRequest(name, tuple(self.contexts)).pack())
        replies = await self.ask(OptionType.GO, InfoRequest(name, ()).pack())
        (export,) = [data for reply, data in replies if reply == Reply.INFO and data[:2] == b"\0\0"]
        self.export = ExportInfo.unpack(export)
        return self

    async def list(self) -> list[str]:
        """Return the names of the exports."""
        return [unpack_server(data)[0] for reply, data in await self.ask(OptionType.LIST) if reply == Reply.SERVER]

    # Transmission

    def send(
        self, command: int, offset: int = 0, length: int = 0, flags: int = 0, *, data: bytes = b"", cookie: int = 0
    ) -> int:
        """Send a request and return its cookie."""
        cookie = cookie or next(self._cookies)
        header = self.begin(command, offset, length or len(data), flags, cookie)
        # At once: the server may close as soon as it has seen the header. Later versions of asyncio keep an empty piece
        # for ever.
        self.writer.writelines([piece for piece in (header, data) if piece])
        return cookie

    def send_writes(self, writes: Iterable[tuple[int, bytes]]) -> None:
        """Send WRITE requests, offset and data of each, at once: the server may close after any of them."""
        self.writer.write(
            b"".join(self.begin(Command.WRITE, at, len(data), 0, next(self._cookies)) + data for at, data in writes)
        )

    def begin(self, command: int, offset: int, length: int, flags: int, cookie: int) -> bytes:
        """Expect a reply, and return the header to send."""
        if self.extended and command == Command.WRITE:
            flags |= CommandFlag.PAYLOAD_LEN
        self._sent[cookie] = _Sent(command, offset, length)
        return RequestHeader(command, flags, cookie, offset, length).pack(extended=self.extended)

    async def receive(self) -> tuple[int, Result]:
        """Return cookie and result of the next request that is answered whole."""
        while True:
            magic = await self.read(4)
            if magic == b"\x67\x44\x66\x98":
                assert not self.extended, "simple reply with extended headers"
                reply = SimpleReply.unpack(magic + await self.read(12))
                return reply.cookie, await self._simple(reply)
            assert self.structured or self.extended, "chunk that was not negotiated"
            header = ChunkHeader.unpack(magic + await self.read(28 if self.extended else 16), extended=self.extended)
            payload = await self.read(header.length)
            self._chunk(header, payload)
            if header.done:
                sent = self._sent.pop(header.cookie)
                if sent.command == Command.READ and not sent.result.error:
                    assert sent.result.covered == sent.length, "a read that is not complete"
                return header.cookie, sent.result

    async def request(
        self, command: int, offset: int = 0, length: int = 0, flags: int = 0, *, data: bytes = b""
    ) -> Result:
        """Send a request and return its result; none other may be under way."""
        cookie = self.send(command, offset, length, flags, data=data)
        answered, result = await self.receive()
        assert answered == cookie
        return result

    async def receive_all(self) -> dict[int, Result]:
        """Return the results of all requests under way."""
        return dict([await self.receive() for _ in range(len(self._sent))])

    async def _simple(self, reply: SimpleReply) -> Result:
        sent = self._sent.pop(reply.cookie)
        assert sent.command != Command.READ or not self.structured, "simple reply to READ"
        if reply.error or sent.command != Command.READ:
            return Result(error=reply.error)
        return Result(data=bytearray(await self.read(sent.length)))

    def _chunk(self, header: ChunkHeader, payload: bytes) -> None:
        sent = self._sent[header.cookie]
        result = sent.result
        if self.extended:
            assert header.offset == sent.offset
        result.chunks.append(header.type)
        if header.type == Chunk.OFFSET_DATA:
            (offset,) = OFFSET.unpack_from(payload)
            self._put(sent, offset, payload[OFFSET.size :])
        elif header.type == Chunk.OFFSET_HOLE:
            offset, size = unpack_hole(payload)
            assert size
            result.holes.append((offset, size))
            self._put(sent, offset, bytes(size))
        elif header.type in (Chunk.BLOCK_STATUS, Chunk.BLOCK_STATUS_EXT):
            assert (header.type == Chunk.BLOCK_STATUS_EXT) == self.extended
            context, result.extents = unpack_extents(payload, extended=self.extended)
            assert context not in result.statuses, "two chunks of one context"
            result.statuses[context] = result.extents
        elif header.type & 0x8000:
            result.error, result.text = unpack_error(header.type, payload)
            assert len(result.text.encode()) <= 256
            assert header.done
        else:
            assert (header.type, header.length, header.done) == (Chunk.NONE, 0, True)

    @staticmethod
    def _put(sent: _Sent, offset: int, data: bytes) -> None:
        result = sent.result
        assert data, "an empty chunk"
        assert offset == sent.offset + result.covered, "chunks are not in order"
        assert offset + len(data) <= sent.offset + sent.length, "a chunk past the end"
        result.data += data
        result.covered += len(data)


def number(data: bytes) -> int:
    """Return a big-endian number."""
    return int(unpack(">Q", data.rjust(8, b"\0"))[0])
