# SPDX-License-Identifier: Apache-2.0
"""The same requests to C and to the oracle, on equal files: the answers are the same, and the files afterwards."""

import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from imageio_daemon.transfers.ticket import Access
from tests.frontends.nbd.asks import seen, some_apart, some_request
from tests.frontends.nbd.client import FORMS, Client
from tests.frontends.nbd.oracle import OracleWorld
from tests.frontends.nbd.world import SIZE, MiB, World, leaving_nothing
from tests.ioutil.disk import first_difference
from tests.support.images import pattern

#: Where the storage of these images changes.
PLACES = (0, SIZE // 2, SIZE)
TICKETS: dict[str, dict[str, Any]] = {
    "whole": {},
    "sparse": {"sparse": True},
    "read-only": {"ops": (Access.READ,)},
    "larger than the image": {"size": SIZE + 3 * MiB + 777, "sparse": True},
    "smaller than the image": {"size": SIZE - MiB - 5},
}


class Pair:
    """The same ticket, served by the oracle and by C."""

    def __init__(self, worlds: list[World], **ticket: Any) -> None:
        self.worlds = worlds
        self.transfers = [world.add("t", **ticket) for world in worlds]
        self.size = self.transfers[0].ticket.size

    async def go(self, **options: bool) -> list[Client]:
        return [await world.go("t", **options) for world in self.worlds]

    def assert_equal_images(self) -> None:
        oracle, lane = (world.content for world in self.worlds)
        assert first_difference(lane, oracle) == ""

    @property
    def transferred(self) -> list[object]:
        return [transfer.status().get("transferred") for transfer in self.transfers]


@pytest.fixture
async def worlds(tmp_path: Path) -> AsyncIterator[list[World]]:
    async with leaving_nothing(), contextlib.AsyncExitStack() as stack:
        made = []
        for name, kind in (("oracle", OracleWorld), ("lane", World)):
            (tmp_path / name).mkdir()
            world = kind(directory=tmp_path / name)
            world.put(pattern(SIZE // 2))  # and then a hole
            made.append(await stack.enter_async_context(world.running()))
        yield made


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ticket", TICKETS)
async def test_each_request_gets_the_same_answer(worlds: list[World], ticket: str, form: str, seed: int) -> None:
    chance = random.Random(f"{ticket} {form} {seed}")
    pair = Pair(worlds, **TICKETS[ticket])
    clients = await pair.go(**FORMS[form])
    assert clients[0].export == clients[1].export
    for _ in range(100):
        ask = some_request(chance, pair.size, PLACES)
        answers = []
        for client in clients:
            cookie = ask.send(client)
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
    for _ in range(5):
        asks = some_apart(chance, SIZE, PLACES)
        answers = []
        for client in clients:
            cookies = [ask.send(client) for ask in asks]
            results = await client.receive_all()
            answers.append([seen(results[cookie]) for cookie in cookies])
        assert answers[0] == answers[1]
    pair.assert_equal_images()
    assert pair.transferred[0] == pair.transferred[1]
