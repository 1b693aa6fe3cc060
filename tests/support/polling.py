# SPDX-License-Identifier: Apache-2.0
"""Wait for something to become true, with a deadline: the only place in the tests where time passes on purpose."""

import asyncio
import time
from collections.abc import Callable

#: Longest wait for something that should happen at once, in seconds. Generous: machines that run tests are busy.
SOON = 10.0
INTERVAL = 0.01


def eventually(condition: Callable[[], object], what: str, *, timeout: float = SOON) -> None:
    """Return when condition() is true. Raises AssertionError naming `what` after timeout seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen within {timeout} s: {what}")
        time.sleep(INTERVAL)


async def eventually_async(condition: Callable[[], object], *, timeout: float = SOON) -> None:
    """Do the same while the loop runs."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen within {timeout} s")
        await asyncio.sleep(INTERVAL)
