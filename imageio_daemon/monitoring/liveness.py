# SPDX-License-Identifier: Apache-2.0
"""Whether the event loops and the lanes turn. Storage does not count: what waits for it holds no loop and no lock."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence

from ..lanes.shared import Lanes
from ..net.loops import ServingLoop

LANES = "lanes"


class Liveness:
    """Ask event loops and lanes for an answer. Used on the first loop. lanes: None: there are none."""

    def __init__(self, lanes: Lanes | None) -> None:
        self._lanes = lanes
        self._loops: Sequence[ServingLoop] = ()
        self._asked: dict[str, asyncio.Future[None]] = {}

    def watch(self, loops: Sequence[ServingLoop]) -> None:
        """Ask these loops, too, from now on."""
        self._loops = loops

    def ask(self) -> list[str]:
        """Let each run something, and return the names of those that have not done so since they were asked before.

        One that does not answer has one question of ours at a time, however often this is called.
        """
        silent = list(self._asked)
        for number, loop in enumerate(self._loops, 1):
            if (name := f"loop {number}") not in self._asked:
                self._ask(name, asyncio.create_task(loop.run(asyncio.sleep(0))))
        if self._lanes is not None and LANES not in self._asked:
            self._ask(LANES, _in_thread(self._lanes.look))
        return silent

    async def silent(self, timeout: float) -> list[str]:
        """Ask, and return the names of those that have not answered after timeout seconds."""
        self.ask()
        if self._asked:
            await asyncio.wait(list(self._asked.values()), timeout=timeout)
        return list(self._asked)

    def _ask(self, name: str, answer: "asyncio.Future[None]") -> None:
        self._asked[name] = answer
        answer.add_done_callback(lambda _: self._asked.pop(name))


def _in_thread(function: Callable[[], None]) -> "asyncio.Future[None]":
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
