# SPDX-License-Identifier: Apache-2.0
"""Work that belongs to one event loop, asked for on any."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from .base import Holder

_T = TypeVar("_T")


class Home:
    """Run the work of a backend on the loop that made it.

    A backend that talks to a server has connections, which live on one loop; its transfer is served by all. Work is
    handed over here, and its result is handed back. What the asking side holds (operations, buffers) is retained and
    released on its own loop, until the work has ended, whatever became of the task that asked.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()

    def run(self, work: Coroutine[Any, Any, _T], *holders: Holder) -> "asyncio.Future[_T]":
        """Start the work. Cancelling the future does not end it."""
        return self._run(self._loop, work, holders)

    def run_here(self, work: Coroutine[Any, Any, _T], *holders: Holder) -> "asyncio.Future[_T]":
        """Do the same on the running loop."""
        return self._run(asyncio.get_running_loop(), work, holders)

    def _run(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T], holders: tuple[Holder, ...]
    ) -> "asyncio.Future[_T]":
        asking = asyncio.get_running_loop()
        future: asyncio.Future[_T] = asking.create_future()
        for holder in holders:
            holder.retain()

        def ended(task: "asyncio.Task[_T]") -> None:
            self._tasks.discard(task)
            if asking is loop:
                _hand_back(task, future, holders)
            else:
                asking.call_soon_threadsafe(_hand_back, task, future, holders)

        def start() -> None:
            task = loop.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(ended)

        if asking is loop:
            start()
        else:
            loop.call_soon_threadsafe(start)
        return future

    def call_soon(self, callback: Any, *arguments: object) -> None:
        """Call a function on the loop. Thread-safe."""
        self._loop.call_soon_threadsafe(callback, *arguments)


def _hand_back(task: "asyncio.Task[_T]", future: "asyncio.Future[_T]", holders: tuple[Holder, ...]) -> None:
    if task.cancelled():
        future.cancel()
    else:
        error = task.exception()
        if future.cancelled():
            pass
        elif error is None:
            future.set_result(task.result())
        else:
            future.set_exception(error)
            future.exception()  # who awaited may be gone
    for holder in holders:
        holder.release()
