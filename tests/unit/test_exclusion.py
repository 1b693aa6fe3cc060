# SPDX-License-Identifier: Apache-2.0
"""Who may change which bytes of an image that C does not have."""

import asyncio
import random
import threading

import pytest

from imageio_daemon.storage.exclusion import Exclusion


class Changes:
    """Changes that are under way, and what they have found."""

    def __init__(self) -> None:
        self.exclusion = Exclusion()
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    def start(self, name: str, start: int, end: int) -> "asyncio.Task[None]":
        self._ends[name] = asyncio.Event()
        return asyncio.create_task(self._change(name, start, end))

    def end(self, name: str) -> None:
        self._ends[name].set()

    async def _change(self, name: str, start: int, end: int) -> None:
        async with self.exclusion.hold(start, end):
            self.begun.append(name)
            await self._ends[name].wait()


@pytest.fixture
def changes() -> Changes:
    return Changes()


async def settled() -> None:
    """Let all tasks run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_overlaps_comes_in_order_of_arrival(changes: Changes) -> None:
    tasks = [changes.start("a", 0, 10), changes.start("b", 5, 15), changes.start("c", 9, 10)]
    for name in "abc":
        await settled()
        assert changes.begun[-1] == name
        changes.end(name)
    await asyncio.gather(*tasks)
    assert changes.begun == ["a", "b", "c"]


async def test_what_only_touches_does_not_wait(changes: Changes) -> None:
    tasks = [
        changes.start("a", 10, 20),
        changes.start("b", 0, 10),
        changes.start("c", 20, 30),
        changes.start("d", 12, 12),
    ]
    await settled()
    assert changes.begun == ["a", "b", "c", "d"]
    for name in "abcd":
        changes.end(name)
    await asyncio.gather(*tasks)


async def test_nobody_overtakes_who_waits(changes: Changes) -> None:
    tasks = [changes.start("a", 0, 10), changes.start("b", 5, 30), changes.start("c", 20, 25)]
    await settled()
    assert changes.begun == ["a"]
    for name in "abc":
        changes.end(name)
    await asyncio.gather(*tasks)
    assert changes.begun == ["a", "b", "c"]


async def test_who_is_cancelled_while_he_waits_lets_others_go_on(changes: Changes) -> None:
    first, waiting, last = changes.start("a", 0, 10), changes.start("b", 5, 30), changes.start("c", 20, 25)
    await settled()
    waiting.cancel()
    await settled()
    assert changes.begun == ["a", "c"]
    for name in "ac":
        changes.end(name)
    await asyncio.gather(first, last)


async def test_all_can_be_held_again_after_any_history() -> None:
    exclusion, chance = Exclusion(), random.Random(1)
    held: set[int] = set()

    async def change() -> None:
        start = chance.randrange(50)
        mine = set(range(start, start + chance.randrange(1, 20)))
        async with exclusion.hold(min(mine), max(mine) + 1):
            assert not held & mine
            held.update(mine)
            for _ in range(chance.randrange(5)):
                await asyncio.sleep(0)
            held.difference_update(mine)

    tasks = [asyncio.create_task(change()) for _ in range(500)]
    for task in chance.sample(tasks, 50):
        await asyncio.sleep(0)
        if not held:
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not [task for task in tasks if not task.cancelled() and task.exception()]
    async with exclusion.hold(0, 100):
        pass


async def test_another_loop_waits_too(changes: Changes) -> None:
    first = changes.start("a", 0, 10)
    await settled()

    async def other() -> None:
        async with changes.exclusion.hold(0, 10):
            changes.begun.append("b")

    thread = threading.Thread(target=asyncio.run, args=(other(),))
    thread.start()
    await asyncio.to_thread(thread.join, 0.1)
    assert thread.is_alive()
    changes.end("a")
    await first
    await asyncio.to_thread(thread.join, 10)
    assert changes.begun == ["a", "b"]
