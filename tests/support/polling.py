# SPDX-License-Identifier: Apache-2.0
"""Wait for a condition, with a deadline. Only this module of the tests sleeps."""

import asyncio
import time
from collections.abc import Callable

#: Longest wait for something that should happen at once, in seconds. It is long because test machines are busy.
SOON = 30.0
#: Seconds between two checks. The first interval is short, because most conditions become true soon. Each further one
#: is twice as long, so that the checks leave the processor to other processes.
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
