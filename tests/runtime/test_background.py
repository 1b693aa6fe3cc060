# SPDX-License-Identifier: Apache-2.0
"""The failure of a task that nobody awaits is told at once."""

import asyncio
from typing import Any

import pytest

from imageio_daemon.runtime.background import tell_failure


@pytest.fixture
async def told() -> list[object]:
    found: list[object] = []

    def handle(_: object, context: dict[str, Any]) -> None:
        found.append(context["exception"])

    asyncio.get_running_loop().set_exception_handler(handle)
    return found


async def test_failure_is_told_while_the_task_is_held(told: list[object]) -> None:
    bug = ValueError("a bug")

    async def fail() -> None:
        raise bug

    task = asyncio.create_task(fail())
    task.add_done_callback(tell_failure)
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert told == [bug]


async def test_end_and_cancel_are_no_failures(told: list[object]) -> None:
    tasks = [asyncio.create_task(asyncio.sleep(seconds)) for seconds in (0, 60)]
    for task in tasks:
        task.add_done_callback(tell_failure)
    await tasks[0]
    tasks[1].cancel()
    await asyncio.wait(tasks)
    await asyncio.sleep(0)
    assert told == []
