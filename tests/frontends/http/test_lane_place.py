# SPDX-License-Identifier: Apache-2.0
"""The wait of a request for a place in the lanes."""

import asyncio
import threading
from typing import Any, cast

import pytest

from imageio_daemon.errors import Unavailable
from imageio_daemon.frontends.http.connection.lane_service import LanePlace
from imageio_daemon.lanes.shared import Places
from imageio_daemon.transfers.transfer import Transfer

SECONDS = 0.01
#: Seconds that are not reached.
DEADLINE = 30.0
#: The owner of all places.
OTHER = object()


def transfer() -> Transfer:
    return cast(Transfer, object())


@pytest.fixture
def places() -> Places:
    """Places that are all taken."""
    full = Places(1, lambda _: None)
    assert full.enter(OTHER)
    return full


async def test_request_that_waits_too_long_is_refused(places: Places) -> None:
    with pytest.raises(Unavailable):
        await LanePlace(places).get(transfer(), SECONDS)
    assert places.waiting == 0


async def test_request_that_is_cancelled_as_its_time_is_over_ends_as_such(places: Places) -> None:
    told: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context))
    task = asyncio.create_task(LanePlace(places).get(transfer(), SECONDS))
    loop.call_later(SECONDS, task.cancel)  # before the task begins to wait
    await asyncio.sleep(0)
    threading.Event().wait(2 * SECONDS)  # blocks the loop: both are due in its next step
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (told, places.waiting) == ([], 0)


async def test_request_that_is_cancelled_just_after_the_grant_gives_the_place_back(places: Places) -> None:
    task = asyncio.create_task(LanePlace(places).get(transfer(), DEADLINE))
    await asyncio.sleep(0)
    places.leave(OTHER)  # the grant is due in the next step of the loop
    asyncio.get_running_loop().call_soon(task.cancel)  # after the grant, and before the task goes on
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (places.taken, places.waiting) == (0, 0)
