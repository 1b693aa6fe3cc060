# SPDX-License-Identifier: Apache-2.0
"""Mutated bytes on whole connections: the service answers or closes, leaks nothing and serves others."""

import asyncio
import contextlib
import logging
import random

import pytest

from imageio_daemon.nbdproto.constants import Command, CommandFlag, OptionType
from imageio_daemon.nbdproto.messages import RequestHeader
from imageio_daemon.nbdproto.option_payloads import ContextRequest, InfoRequest, OptionHeader
from tests.frontends.nbd.conftest import MakeWorld
from tests.frontends.nbd.records import Records
from tests.frontends.nbd.world import World

OPTIONS = [
    (OptionType.STRUCTURED_REPLY, b""),
    (OptionType.SET_META_CONTEXT, ContextRequest("disk", ("base:allocation",)).pack()),
    (OptionType.GO, InfoRequest("disk", ()).pack()),
]
REQUESTS = [
    (Command.WRITE, 0, 100, 0, b"w" * 100),
    (Command.READ, 0, 100000, 0, b""),
    (Command.WRITE_ZEROES, 4096, 4096, CommandFlag.FAST_ZERO, b""),
    (Command.WRITE, 70000, 70000, CommandFlag.FUA, b"x" * 70000),
    (Command.BLOCK_STATUS, 0, 1 << 20, CommandFlag.REQ_ONE, b""),
    (Command.TRIM, 0, 4096, 0, b""),
    (Command.FLUSH, 0, 0, 0, b""),
    (Command.CACHE, 0, 4096, 0, b""),
    (Command.READ, 5, 3 << 20, CommandFlag.DF, b""),
]


def conversation(extended: bool) -> bytes:
    options = [(OptionType.EXTENDED_HEADERS, b""), *OPTIONS[1:]] if extended else OPTIONS
    stream = b"\0\0\0\3"
    for option, payload in options:
        stream += OptionHeader(option, len(payload)).pack() + payload
    for cookie, (command, offset, length, flags, payload) in enumerate(REQUESTS):
        more = CommandFlag.PAYLOAD_LEN if extended and payload else 0
        stream += RequestHeader(command, flags | more, cookie, offset, length).pack(extended=extended) + payload
    return stream


def mutated(stream: bytes, chance: random.Random) -> bytes:
    data = bytearray(stream)
    for _ in range(chance.randrange(1, 5)):
        # Payloads are long and say nothing: mostly change what is before and between them.
        place = chance.randrange(len(data)) if chance.random() < 0.3 else chance.randrange(600)
        what = chance.randrange(4)
        if what == 0:
            data[place] ^= 1 << chance.randrange(8)
        elif what == 1:
            data[place] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif what == 2:
            del data[place : place + chance.randrange(1, 30)]
        else:
            data[place:place] = chance.randbytes(chance.randrange(1, 30))
    return bytes(data[: chance.randrange(len(data))]) if chance.random() < 0.2 else bytes(data)


async def answers(world: World, stream: bytes) -> bytes:
    """Send all of it and the end, and return what comes back."""
    if world.trust is not None:
        records = await Records.connect(world.address, world.trust)
        records.writer.write(records.encrypt(stream[4:]) + records.farewell())
        received = await records.drain()
        records.writer.close()
        return received
    reader, writer = await asyncio.open_unix_connection(world.address)
    received = b""
    with contextlib.suppress(ConnectionError):
        writer.write(stream)
        writer.write_eof()
        async with asyncio.timeout(20):
            while data := await reader.read(1 << 20):
                received += data
    writer.close()
    return received


@pytest.mark.parametrize("extended", [False, True])
async def test_conversation_that_comes_at_once_is_served(make_world: MakeWorld, extended: bool) -> None:
    async with make_world() as world:
        assert len(await answers(world, conversation(extended))) > 3 << 20
        assert world.content[70000:140000] == b"x" * 70000


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("seed", range(5))
async def test_mutated_connections_harm_nobody(
    make_world: MakeWorld, seed: int, extended: bool, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(seed)
    async with make_world(inactivity_timeout=1, handshake_timeout=1) as world:
        other = await world.go()
        for _ in range(30):
            await answers(world, mutated(conversation(extended), chance))
            assert (await other.request(Command.READ, 0, 512)).error == 0
        await world.rest()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
