# SPDX-License-Identifier: Apache-2.0
"""Who may change which bytes of an image that C does not have."""

import asyncio
import random
import threading
import time

import pytest

from imageio_daemon.errors import Canceled
from imageio_daemon.storage.backend import Operation
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
        async with self.exclusion.hold(Operation(), start, end):
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
        async with exclusion.hold(Operation(), min(mine), max(mine) + 1):
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
    async with exclusion.hold(Operation(), 0, 100):
        pass


async def test_who_waits_is_dropped_by_a_thread_without_a_loop() -> None:
    exclusion, op = Exclusion(), Operation()

    async def change() -> None:
        async with exclusion.hold(op, 5, 15):
            pass

    async with exclusion.hold(Operation(), 0, 10):
        waiting = asyncio.create_task(change())
        await settled()
        op.cancel()
        await asyncio.to_thread(exclusion.drop_canceled)
        with pytest.raises(Canceled):
            await asyncio.wait_for(waiting, 5)


async def test_another_loop_waits_too(changes: Changes) -> None:
    first = changes.start("a", 0, 10)
    await settled()

    async def other() -> None:
        async with changes.exclusion.hold(Operation(), 0, 10):
            changes.begun.append("b")

    thread = threading.Thread(target=asyncio.run, args=(other(),))
    thread.start()
    await asyncio.to_thread(thread.join, 0.1)
    assert thread.is_alive()
    changes.end("a")
    await first
    await asyncio.to_thread(thread.join, 10)
    assert changes.begun == ["a", "b"]


async def test_changes_that_overlap_are_made_one_at_a_time_in_order_of_arrival() -> None:
    exclusion, numbers = Exclusion(), random.Random(1)
    began: list[int] = []
    running: set[int] = set()
    ranges = [(start, start + numbers.randrange(1, 30)) for start in (numbers.randrange(100) for _ in range(300))]
    dropped = set(numbers.sample(range(300), 100))
    ops = [Operation() for _ in ranges]

    def overlap(one: int, other: int) -> bool:
        return ranges[one][0] < ranges[other][1] and ranges[other][0] < ranges[one][1]

    async def change(number: int) -> None:
        async with exclusion.hold(ops[number], *ranges[number]):
            assert not any(overlap(number, other) for other in running)
            began.append(number)
            running.add(number)
            try:
                for _ in range(numbers.randrange(3)):
                    await asyncio.sleep(0)
            finally:
                running.remove(number)

    tasks = [asyncio.create_task(change(number)) for number in range(len(ranges))]
    await asyncio.sleep(0)
    for number in sorted(dropped):
        ops[number].cancel()
        if number % 2:
            tasks[number].cancel()
        else:
            exclusion.drop_canceled()
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert {number for number, task in enumerate(tasks) if task.cancelled() or task.exception()} <= dropped
    place = {number: i for i, number in enumerate(began)}
    assert place.keys() >= set(range(300)) - dropped
    assert all(place[a] < place[b] for a in place for b in place if a < b and overlap(a, b))


async def test_a_cancelled_operation_does_not_wait_behind_one_that_hangs(changes: Changes) -> None:
    exclusion, op = changes.exclusion, Operation()
    first = changes.start("a", 0, 10)
    await settled()

    async def wait() -> None:
        async with exclusion.hold(op, 5, 20):
            raise AssertionError

    waiting = asyncio.create_task(wait())
    behind = changes.start("c", 15, 20)
    await settled()
    op.cancel()
    exclusion.drop_canceled()
    with pytest.raises(Canceled):
        await asyncio.wait_for(waiting, 5)
    await settled()
    assert changes.begun == ["a", "c"]  # it waited for the cancelled one alone
    for name in "ac":
        changes.end(name)
    await asyncio.gather(first, behind)


async def test_an_operation_that_was_cancelled_before_it_came_does_not_wait(changes: Changes) -> None:
    exclusion, op = changes.exclusion, Operation()
    first = changes.start("a", 0, 10)
    await settled()
    op.cancel()
    with pytest.raises(Canceled):
        async with asyncio.timeout(5), exclusion.hold(op, 5, 20):
            raise AssertionError
    changes.end("a")
    await first


async def test_thousands_that_wait_do_not_slow_others_down(changes: Changes) -> None:
    """Half of them wait for one that hangs, the others for one that waits for it."""
    far = 20000
    first = [(i, i + 1) for i in range(0, far, 10)]
    second = [(i, i + 1) for i in range(far, 2 * far, 10)]
    ranges = [(0, far), *first, (far - 1, 2 * far), *second]
    tasks = [changes.start(str(i), *each) for i, each in enumerate(ranges)]
    await settled()
    started = time.process_time()
    for _ in range(10):
        async with changes.exclusion.hold(Operation(), 3 * far, 3 * far + 1):
            pass
    assert time.process_time() - started < 0.5  # 14 s if all that wait are compared with each other
    for i in range(len(ranges)):
        changes.end(str(i))
    await asyncio.gather(*tasks)
