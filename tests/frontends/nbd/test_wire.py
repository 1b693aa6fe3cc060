# SPDX-License-Identifier: Apache-2.0
"""Whole conversations, byte for byte: sent at once, byte by byte, and each request with the next one's first bytes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from struct import pack
from typing import NamedTuple

import pytest

from imageio_daemon.nbdproto.constants import Command, CommandFlag
from tests.frontends.nbd.conftest import MakeWorld
from tests.frontends.nbd.world import SIZE, KiB, World

READ, WRITE, FLUSH, TRIM = Command.READ, Command.WRITE, Command.FLUSH, Command.TRIM
ZERO, CACHE, STATUS = Command.WRITE_ZEROES, Command.CACHE, Command.BLOCK_STATUS
EINVAL, ENOSPC = 22, 28

IHAVEOPT = b"IHAVEOPT"
REPLY_MAGIC = bytes.fromhex("0003e889045565a9")


class Step(NamedTuple):
    """Bytes to send, and all bytes that must come back before the next step."""

    sent: bytes
    expected: bytes


@pytest.fixture
async def world(make_world: MakeWorld) -> AsyncIterator[World]:
    async with make_world() as running:
        yield running


# Negotiation


def option(number: int, payload: bytes = b"") -> bytes:
    return IHAVEOPT + pack(">II", number, len(payload)) + payload


def reply(number: int, kind: int, payload: bytes = b"") -> bytes:
    return REPLY_MAGIC + pack(">III", number, kind, len(payload)) + payload


def info(name: bytes, *infos: int) -> bytes:
    return pack(">I", len(name)) + name + pack(f">H{len(infos)}H", len(infos), *infos)


def contexts(name: bytes, *queries: bytes) -> bytes:
    told = b"".join(pack(">I", len(query)) + query for query in queries)
    return pack(">I", len(name)) + name + pack(">I", len(queries)) + told


def told(number: int, flags: int, preferred: int) -> bytes:
    """Return what INFO and GO answer."""
    export = reply(number, 3, pack(">HQH", 0, SIZE, flags))
    return export + reply(number, 3, pack(">HIII", 3, 1, preferred, 32 << 20)) + reply(number, 1)


def refused(number: int, kind: int, text: bytes) -> bytes:
    return reply(number, 0x80000000 | kind, text)


def negotiation(form: str, preferred: int, *, secure: bool) -> Iterator[Step]:
    flags = 0x0D6D if form == "simple" else 0x0DED
    if not secure:
        yield Step(b"", b"NBDMAGIC" + IHAVEOPT + b"\0\3")
        yield Step(b"\0\0\0\3", b"")
    yield Step(option(99, b"data"), refused(99, 1, b"unknown option"))
    yield Step(option(3), refused(3, 2, b"exports are not listed"))
    yield Step(option(5), refused(5, 3, b"TLS has already started") if secure else refused(5, 2, b"no TLS here"))
    yield Step(option(8, b"x"), refused(8, 3, b"this option has no payload"))
    yield Step(option(10, contexts(b"disk", b"base:allocation")), refused(10, 3, b"structured replies are not in use"))
    if form == "structured":
        yield Step(option(8), reply(8, 1))
    if form == "extended":
        yield Step(option(11), reply(11, 1))
        yield Step(option(8), refused(8, 10, b"extended headers are in use"))
    yield Step(option(9, contexts(b"disk")), reply(9, 4, pack(">I", 0) + b"base:allocation") + reply(9, 1))
    if form != "simple":
        selected = reply(10, 4, pack(">I", 1) + b"base:allocation") + reply(10, 1)
        yield Step(option(10, contexts(b"disk", b"base:allocation", b"x-y:z")), selected)
    yield Step(option(7, info(b"none")), refused(7, 6, b"You are not allowed to access this resource"))
    yield Step(option(6, info(b"disk", 3, 3, 77)), told(6, flags, preferred))
    yield Step(option(7, info(b"disk")), told(7, flags, preferred))


# Transmission


class Form:
    """Requests and replies in one of the three forms, packed by hand."""

    def __init__(self, name: str) -> None:
        self.extended = name == "extended"
        self.chunks = name != "simple"
        self.cookie = 0

    def request(self, command: int, offset: int = 0, length: int = 0, flags: int = 0, data: bytes = b"") -> bytes:
        self.cookie += 0x0101010101010101
        self.offset = offset
        length = length or len(data)
        if self.extended:
            flags |= CommandFlag.PAYLOAD_LEN if command == WRITE else 0
            return pack(">IHHQQQ", 0x21E41C71, flags, command, self.cookie, offset, length) + data
        return pack(">IHHQQI", 0x25609513, flags, command, self.cookie, offset, length) + data

    def chunk(self, kind: int, payload: bytes = b"", *, done: bool = True) -> bytes:
        if self.extended:
            return pack(">IHHQQQ", 0x6E8A278C, done, kind, self.cookie, self.offset, len(payload)) + payload
        return pack(">IHHQI", 0x668E33EF, done, kind, self.cookie, len(payload)) + payload

    def simple(self, error: int = 0) -> bytes:
        return pack(">IIQ", 0x67446698, error, self.cookie)

    def success(self) -> bytes:
        return self.chunk(0) if self.extended else self.simple()

    def failure(self, error: int, text: bytes) -> bytes:
        return self.chunk(0x8001, pack(">IH", error, len(text)) + text) if self.chunks else self.simple(error)

    def data(self, offset: int, data: bytes) -> bytes:
        return self.chunk(1, pack(">Q", offset) + data) if self.chunks else self.simple() + data

    def hole(self, offset: int, length: int) -> bytes:
        return self.chunk(2, pack(">QI", offset, length)) if self.chunks else self.simple() + bytes(length)

    def status(self, length: int, status: int) -> bytes:
        if self.extended:
            return self.chunk(6, pack(">IIQQ", 1, 1, length, status))
        return self.chunk(5, pack(">III", 1, length, status))


def transmission(form: Form) -> Iterator[Step]:
    outside = b"the range is not inside the export"
    yield Step(form.request(WRITE, 5, data=b"hello"), form.success())
    yield Step(form.request(READ, 4, 7), form.data(4, b"\0hello\0"))
    yield Step(form.request(READ, 65536, 65536), form.hole(65536, 65536))
    yield Step(form.request(READ, 4, 7, CommandFlag.FUA), form.data(4, b"\0hello\0"))
    yield Step(form.request(ZERO, 6, 3, CommandFlag.NO_HOLE | CommandFlag.FUA), form.success())
    yield Step(form.request(READ, 5, 5), form.data(5, b"h\0\0\0o"))
    yield Step(form.request(TRIM, 0, SIZE), form.success())
    yield Step(form.request(CACHE, 0, SIZE), form.success())
    yield Step(form.request(FLUSH), form.success())
    yield Step(form.request(READ, SIZE, 1), form.failure(EINVAL, outside))
    yield Step(form.request(READ, 2**64 - 1, 1), form.failure(EINVAL, outside))
    yield Step(form.request(WRITE, SIZE - 1, data=b"xx"), form.failure(ENOSPC, outside))
    yield Step(form.request(ZERO, SIZE, 1, CommandFlag.FAST_ZERO), form.failure(ENOSPC, outside))
    unknown_flag = b"unknown flag, or not for this command"
    yield Step(form.request(WRITE, 0, data=b"payload", flags=0x80), form.failure(EINVAL, unknown_flag))
    yield Step(form.request(77, 0, 512), form.failure(EINVAL, b"unknown command"))
    if form.chunks:
        yield Step(form.request(READ, 0, 8, CommandFlag.DF), form.data(0, bytes(5) + b"h\0\0"))
        yield Step(form.request(STATUS, 3, 4, CommandFlag.REQ_ONE), form.status(4, 0))
        yield Step(form.request(READ, 9, 0), form.chunk(0))
    else:
        yield Step(form.request(READ, 0, 8, CommandFlag.DF), form.failure(EINVAL, unknown_flag))
        yield Step(form.request(STATUS, 3, 4), form.failure(EINVAL, b"no metadata context was selected"))
        yield Step(form.request(READ, 9, 0), form.success())


async def whole(writer: asyncio.StreamWriter, data: bytes, _: bytes) -> int:
    writer.write(data)
    return 0


async def byte_by_byte(writer: asyncio.StreamWriter, data: bytes, _: bytes) -> int:
    for i in range(len(data)):
        writer.write(data[i : i + 1])
        await writer.drain()
        await asyncio.sleep(0)  # the server's turn, on the same loop
    return 0


async def with_trailing_data(writer: asyncio.StreamWriter, data: bytes, after: bytes) -> int:
    """Send the beginning of what comes next, too; return how much."""
    trailing = len(after) // 2
    writer.write(data + after[:trailing])
    return trailing


@pytest.mark.parametrize("deliver", [whole, byte_by_byte, with_trailing_data])
@pytest.mark.parametrize("name", ["simple", "structured", "extended"])
async def test_every_byte_of_a_conversation_is_as_it_should_be(
    world: World, name: str, deliver: Callable[[asyncio.StreamWriter, bytes, bytes], "asyncio.Future[int]"]
) -> None:
    secure = world.trust is not None
    steps = [*negotiation(name, 256 * KiB, secure=secure), *transmission(Form(name))]
    reader, writer = await (secured(world) if secure else asyncio.open_unix_connection(world.address))
    sent = 0  # of this step, with the one before it
    for i, step in enumerate(steps):
        after = steps[i + 1].sent if i + 1 < len(steps) else b""
        sent = await deliver(writer, step.sent[sent:], after)
        async with asyncio.timeout(20):
            assert await reader.readexactly(len(step.expected)) == step.expected, (i, step.sent)
    if secure:
        writer.write(Form(name).request(Command.DISC))
    else:
        writer.write_eof()
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    writer.close()


async def secured(world: World) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection that has started TLS."""
    client = await world.connect()
    return client.reader, client.writer


@pytest.mark.parametrize("no_zeroes", [False, True])
async def test_export_name_is_answered_to_the_byte(world: World, no_zeroes: bool) -> None:
    reader, writer = await asyncio.open_unix_connection(world.address)
    writer.write(pack(">I", 1 | 2 * no_zeroes) + option(1, b"disk"))
    form = Form("simple")
    expected = b"NBDMAGICIHAVEOPT\0\3" + pack(">QH", SIZE, 0x0D6D) + bytes(0 if no_zeroes else 124)
    async with asyncio.timeout(20):
        assert await reader.readexactly(len(expected)) == expected
        writer.write(form.request(READ, 0, 512))
        assert await reader.readexactly(16 + 512) == form.data(0, bytes(512))
        writer.write(form.request(Command.DISC) + b"ignored")
        assert await reader.read() == b""
    writer.close()
