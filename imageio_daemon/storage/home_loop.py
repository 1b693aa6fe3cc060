# SPDX-License-Identifier: Apache-2.0
"""The home loop of a backend: other loops start work on it."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from .backend import Holder
from .work import Work

_T = TypeVar("_T")


class HomeLoop:
    """Run the work of a backend on the loop that made it, its home loop.

    The connections of a backend to its server live on one loop, but all loops serve requests of its transfer. Another
    loop starts work here and gets the result back. Its holders (operations, buffers) are retained and released on the
    loop that starts the work. They are released after the work has ended, even if the task that started it was
    cancelled.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        #: Functions that start the work of other loops and of lanes, in order of arrival.
        self._arrived: deque[Callable[[], None]] = deque()
        self._order = threading.Lock()
        self._take: Callable[[], Iterable[Callable[[], None]]] = tuple
        self._begins = False  # one of these functions is running

    def add_lanes(self, take: Callable[[], Iterable[Callable[[], None]]]) -> None:
        """Let work of lanes have its place in the order.

        take: returns functions that start the work that waits, in order of arrival. It is called in any thread.
        """
        self._take = take

    def begin_arrived(self) -> None:
        """Start all work that has arrived. Called on the home loop."""
        self._arrive()
        self._begin_arrived()

    def run(self, coroutine: Coroutine[Any, Any, _T], *holders: Holder) -> "asyncio.Future[_T] | Work[_T]":
        """Start work on the home loop, after all work that any loop or lane has started before. Call it on any loop.

        Cancelling the future does not end the work. holders: released, on the calling loop, when the work has ended.
        """
        asking = asyncio.get_running_loop()
        for holder in holders:
            holder.retain()
        if asking is self._loop:
            if not self._begins:  # else this is work that has arrived, and the rest came later
                self.begin_arrived()
            return Work(_holding(coroutine, holders))
        future: asyncio.Future[_T] = asking.create_future()

        def start() -> None:
            Work(coroutine).add_done_callback(
                lambda work: asking.call_soon_threadsafe(_hand_back, work, future, holders)
            )

        self._arrive(start)
        self._loop.call_soon_threadsafe(self._begin_arrived)
        return future

    def run_here(self, coroutine: Coroutine[Any, Any, _T], *holders: Holder) -> "asyncio.Future[_T]":
        """Start work in a task of the running loop, with holders as in run(). Cancelling the future does not end it."""
        asking = asyncio.get_running_loop()
        future: asyncio.Future[_T] = asking.create_future()
        for holder in holders:
            holder.retain()

        def ended(task: "asyncio.Task[_T]") -> None:
            self._tasks.discard(task)
            _hand_back(task, future, holders)

        task = asking.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(ended)
        return future

    def _arrive(self, *starts: Callable[[], None]) -> None:
        """Add functions that start work, behind those of lanes, whose work came before."""
        with self._order:
            self._arrived.extend(self._take())
            self._arrived.extend(starts)

    def _begin_arrived(self) -> None:
        while self._arrived:
            before, self._begins = self._begins, True
            try:
                self._arrived.popleft()()
            finally:
                self._begins = before

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call a function on the home loop. Thread-safe."""
        self._loop.call_soon_threadsafe(callback, *arguments)


async def _holding(coroutine: Coroutine[Any, Any, _T], holders: tuple[Holder, ...]) -> _T:
    try:
        return await coroutine
    finally:
        for holder in holders:
            holder.release()


def _hand_back(work: "asyncio.Task[_T] | Work[_T]", future: "asyncio.Future[_T]", holders: tuple[Holder, ...]) -> None:
    if work.cancelled():
        future.cancel()
    else:
        error = work.exception()
        if future.cancelled():
            pass
        elif error is None:
            future.set_result(work.result())
        else:
            future.set_exception(error)
            future.exception()  # mark it as retrieved: the task that awaited may have been cancelled
    for holder in holders:
        holder.release()
