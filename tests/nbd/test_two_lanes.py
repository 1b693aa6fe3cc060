# SPDX-License-Identifier: Apache-2.0
"""The same requests to Python and to C, on equal files: the answers are the same, and so are the files afterwards."""

import contextlib
import random
from collections.abc import AsyncIterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from imageio_daemon.nbdproto.constants import Command, CommandFlag
from imageio_daemon.tickets import Access
from tests.ioutil.disk import first_difference
from tests.nbd.client import Client, Result
from tests.nbd.conftest import FORMS
from tests.nbd.world import SIZE, KiB, MiB, World, leaving_nothing
from tests.support.images import pattern

COMMANDS = [*(command for command in Command if command != Command.DISC), 8, 65535]
#: Most requests are good ones.
FLAGS = {
    Command.READ: [0, 0, CommandFlag.DF, CommandFlag.FUA],
    Command.WRITE: [0, 0, CommandFlag.FUA],
    Command.WRITE_ZEROES: [0, CommandFlag.NO_HOLE, CommandFlag.FAST_ZERO, CommandFlag.FUA | CommandFlag.NO_HOLE],
    Command.BLOCK_STATUS: [0, CommandFlag.REQ_ONE],
}
TICKETS: dict[str, dict[str, Any]] = {
    "whole": {},
    "sparse": {"sparse": True},
    "read-only": {"ops": (Access.READ,)},
    "larger than the image": {"size": SIZE + 3 * MiB + 777, "sparse": True},
    "smaller than the image": {"size": SIZE - MiB - 5},
}


class Ask(NamedTuple):
    """A request."""

    command: int
    offset: int
    length: int
    flags: int
    data: bytes


class Pair:
    """The same ticket, served by Python and by C."""

    def __init__(self, worlds: list[World], **ticket: Any) -> None:
        self.worlds = worlds
        self.transfers = [world.add("t", **ticket) for world in worlds]
        self.size = self.transfers[0].ticket.size

    async def go(self, **options: bool) -> list[Client]:
        return [await world.go("t", **options) for world in self.worlds]

    def assert_equal_images(self) -> None:
        session, lane = (world.content for world in self.worlds)
        assert first_difference(lane, session) == ""

    @property
    def transferred(self) -> list[object]:
        return [transfer.status().get("transferred") for transfer in self.transfers]


@pytest.fixture
async def worlds(tmp_path: Path) -> AsyncIterator[list[World]]:
    async with leaving_nothing(), contextlib.AsyncExitStack() as stack:
        made = []
        for name, lanes in (("session", 0), ("lane", 64 * MiB)):
            (tmp_path / name).mkdir()
            world = World(directory=tmp_path / name, lanes=lanes)
            world.put(pattern(SIZE // 2))  # and then a hole
            made.append(await stack.enter_async_context(world.running()))
        yield made


def some_offset(chance: random.Random, size: int) -> int:
    near = chance.choice([0, SIZE // 2, SIZE, size, chance.randrange(size)])
    offset = near + chance.choice([0, 0, -1, 1, -512, 512, -4096, 4096, chance.randrange(-70000, 70000)])
    return chance.choice([2**64 - 1, 2**63]) if chance.random() < 0.02 else max(0, offset)


def some_request(chance: random.Random, size: int) -> Ask:
    command = chance.choice(COMMANDS)
    flags = chance.choice(FLAGS.get(command, [0])) if chance.random() < 0.9 else 1 << chance.randrange(16)  # type: ignore[call-overload]
    if flags == CommandFlag.PAYLOAD_LEN and command != Command.WRITE:
        flags = 0  # whether a payload follows depends on the form
    length = chance.choice([0, 1, 511, 512, 4096, 64 * KiB, MiB, 3 * MiB, chance.randrange(200000), 2**32 - 1])
    if command != Command.WRITE:
        return Ask(command, some_offset(chance, size), length, flags, b"")
    length = min(length, 3 * MiB)
    data = bytes(length) if chance.random() < 0.2 else chance.randbytes(length)
    return Ask(command, some_offset(chance, size), length, flags, data)


def seen(result: Result) -> tuple[object, ...]:
    """Return what an answer says, however it was cut."""
    extents = [(status, sum(length for length, _ in run)) for status, run in groupby(result.extents, lambda e: e[1])]
    return result.error, result.text, bytes(result.data), extents


def send(client: Client, ask: Ask) -> int:
    return client.send(ask.command, ask.offset, ask.length, ask.flags, data=ask.data)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ticket", TICKETS)
async def test_each_request_gets_the_same_answer(worlds: list[World], ticket: str, form: str, seed: int) -> None:
    chance = random.Random(f"{ticket} {form} {seed}")
    pair = Pair(worlds, **TICKETS[ticket])
    clients = await pair.go(**FORMS[form])
    assert clients[0].export == clients[1].export
    for _ in range(100):
        ask = some_request(chance, pair.size)
        answers = []
        for client in clients:
            cookie = send(client, ask)
            answered, result = await client.receive()
            assert answered == cookie
            answers.append(seen(result))
        assert answers[0] == answers[1], (ask.command, ask.offset, ask.length, ask.flags)
    pair.assert_equal_images()
    assert pair.transferred[0] == pair.transferred[1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("form", FORMS)
async def test_many_requests_at_a_time_get_the_same_answers(worlds: list[World], form: str, seed: int) -> None:
    """Each has bytes of its own, so that their order says nothing; their edges share blocks."""
    chance = random.Random(f"{form} {seed}")
    pair = Pair(worlds, sparse=True)
    clients = await pair.go(**FORMS[form])
    slot = 64 * KiB - 100
    for _ in range(5):
        asks = []
        for start in range(0, SIZE - slot, slot):
            ask = some_request(chance, SIZE)
            length = min(ask.length, slot - 7)
            if ask.command == Command.BLOCK_STATUS:
                continue  # it sees more than its own bytes
            asks.append(ask._replace(offset=start + chance.randrange(7), length=length, data=ask.data[:length]))
        answers = []
        for client in clients:
            cookies = [send(client, ask) for ask in asks]
            results = await client.receive_all()
            answers.append([seen(results[cookie]) for cookie in cookies])
        assert answers[0] == answers[1]
    pair.assert_equal_images()
    assert pair.transferred[0] == pair.transferred[1]
