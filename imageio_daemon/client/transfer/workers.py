# SPDX-License-Identifier: Apache-2.0
"""Threads that work for a coroutine. They end together, and the error of one stops the others."""

import asyncio
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ..errors import Stopped
from ..server.stopping import Stop
from .progress import INTERVAL

_T = TypeVar("_T")


async def run(functions: Sequence[Callable[[], _T]], stop: Stop, tick: Callable[[], None] | None = None) -> list[_T]:
    """Call each function in a thread of its own and return their results.

    tick: called every INTERVAL seconds, and when all threads have ended. If a function raises, or this coroutine is
    cancelled, stop.stop() is called. It returns or raises when all threads have ended, so that what they use can be
    closed. Raises the first error that is not a Stopped, if there is one.
    """
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(len(functions), thread_name_prefix="transfer") as pool:
        futures = [loop.run_in_executor(pool, _run, function) for function in functions]
        for future in futures:
            future.add_done_callback(_look_at)
        try:
            while pending := [future for future in futures if not future.done()]:
                await asyncio.wait(pending, timeout=INTERVAL, return_when=asyncio.FIRST_EXCEPTION)
                if tick is not None:
                    tick()
                if any(future.done() and future.exception() for future in futures):
                    break
        finally:
            if any(not future.done() for future in futures):
                stop.stop()
                await asyncio.wait(futures)
            if tick is not None:
                tick()
            errors = [future.exception() for future in futures]
        # The Stopped of the other threads is a consequence of the first error.
        for error in sorted(filter(None, errors), key=lambda error: isinstance(error, Stopped)):
            raise error
        return [future.result() for future in futures]


def _look_at(future: asyncio.Future[_T]) -> None:
    """Retrieve the exception of a thread; asyncio logs exceptions that are never retrieved."""
    if not future.cancelled():
        future.exception()


def _run(function: Callable[[], _T]) -> _T:
    """Call a function. If it raises, clear the frames, so that the exception keeps no buffers alive."""
    try:
        return function()
    except BaseException as e:
        error: BaseException | None = e
        while error is not None:
            # A stored exception is in a reference cycle with its frames. Before Python 3.11.9 and 3.12.3 the garbage
            # collector crashes on a memoryview in a cycle (python/cpython#77894).
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__
        raise
