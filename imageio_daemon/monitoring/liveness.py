# SPDX-License-Identifier: Apache-2.0
"""Whether the lanes turn. Storage does not count: what waits for it holds no lock.

Whoever asks runs on the event loop, so that turns.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable


class Liveness:
    """Ask the lanes for an answer. Used on the event loop. look: Lanes.look()."""

    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look
        self._asked: asyncio.Future[None] | None = None

    def ask(self) -> bool:
        """Let the lanes answer. Return whether they have answered since they were asked before.

        While they do not answer, they have one question of ours, however often this is called.
        """
        if self._asked is not None and not self._asked.done():
            return False
        self._asked = _in_thread(self._look)
        return True

    async def answered(self, timeout: float) -> bool:
        """Ask, and return whether the lanes have answered after timeout seconds."""
        self.ask()
        if self._asked is None:
            return True
        await asyncio.wait([self._asked], timeout=timeout)
        return self._asked.done()


def _in_thread(function: Callable[[], object]) -> "asyncio.Future[None]":
    """Return a future that is done when a thread of its own has called a function. It does not keep the process."""
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
