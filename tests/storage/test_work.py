# SPDX-License-Identifier: Apache-2.0
"""Coroutines that run without a task."""

import asyncio
from typing import Any

import pytest

from imageio_daemon.storage.work import Countdown, Work


async def waiting(end: Countdown) -> None:
    await end


@pytest.fixture
async def reported() -> list[dict[str, Any]]:
    """What the loop was told of exceptions that nobody handles."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    return reported


@pytest.mark.parametrize("late", [False, True])
async def test_failure_of_a_callback_is_reported_and_does_not_reach_who_counts(
    reported: list[dict[str, Any]], *, late: bool
) -> None:
    """Who counts has the others still to end."""
    end, error = Countdown(1), RuntimeError("a bug")

    def fail(_: Work[None]) -> None:
        raise error

    work = Work(waiting(end))
    if late:
        end.count()
        work.add_done_callback(fail)
    else:
        work.add_done_callback(fail)
        end.count()
    assert [context["exception"] for context in reported] == [error]
    assert work.exception() is None
