# SPDX-License-Identifier: Apache-2.0
"""Wait for something to become true, with a deadline: the only place in the tests where time passes on purpose."""

import asyncio
import time
from collections.abc import Callable

#: Longest wait for something that should happen at once, in seconds. Generous: machines that run tests are busy.
SOON = 30.0
#: Between two looks, in seconds: short at first, because most waits are for what is about to happen, and then twice as
#: long each time, so that those who wait do not keep the processor from what they wait for.
FIRST_INTERVAL = 0.001
LONGEST_INTERVAL = 0.01


def eventually(condition: Callable[[], object], what: str, *, timeout: float = SOON) -> None:
    """Return when condition() is true. Raises AssertionError naming `what` after timeout seconds."""
    deadline = time.monotonic() + timeout
    interval = FIRST_INTERVAL
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen within {timeout} s: {what}")
        time.sleep(interval)
        interval = min(2 * interval, LONGEST_INTERVAL)


async def eventually_async(condition: Callable[[], object], *, timeout: float = SOON) -> None:
    """Do the same while the loop runs."""
    deadline = time.monotonic() + timeout
    interval = FIRST_INTERVAL
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen within {timeout} s")
        await asyncio.sleep(interval)
        interval = min(2 * interval, LONGEST_INTERVAL)
