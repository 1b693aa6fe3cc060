# SPDX-License-Identifier: Apache-2.0
"""Whether the threads of the lanes go on. Storage does not count: a lane that waits for storage holds no lock.

The event loop needs no such check, as the callers run on it.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable


class Liveness:
    """Ask the lanes for an answer. Use this on the event loop. `look` is Lanes.look()."""

    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look
        self._asked: asyncio.Future[None] | None = None

    def ask(self) -> bool:
        """Ask the lanes, and return whether they have answered the call before.

        If they have not, this does not ask again, so that at most one question waits.
        """
        if self._asked is not None and not self._asked.done():
            return False
        self._asked = _in_thread(self._look)
        return True

    async def answered(self, timeout: float) -> bool:
        """Ask the lanes, and return whether they answer within `timeout` seconds."""
        self.ask()
        if self._asked is None:
            return True
        await asyncio.wait([self._asked], timeout=timeout)
        return self._asked.done()


def _in_thread(function: Callable[[], object]) -> "asyncio.Future[None]":
    """Call a function in a new daemon thread, and return a future that is done when the function has returned."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def run() -> None:
        function()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_resolve, done)

    threading.Thread(target=run, name="liveness", daemon=True).start()
    return done


def _resolve(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)
