# SPDX-License-Identifier: Apache-2.0
"""Threads that work for a coroutine: they end together, and an error of one is the error of all."""

import asyncio
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from .errors import Stopped
from .progress import INTERVAL
from .stopping import Stop

_T = TypeVar("_T")


async def run(functions: Sequence[Callable[[], _T]], stop: Stop, tick: Callable[[], None] | None = None) -> list[_T]:
    """Call each function in a thread of its own and return what they return.

    tick is called every INTERVAL seconds, and when all have ended. When one raises, or this is cancelled, the others
    are stopped; it returns only when all threads have ended, so that nothing that they use is in use any more.
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
        # What the others were stopped with is a consequence.
        for error in sorted(filter(None, errors), key=lambda error: isinstance(error, Stopped)):
            raise error
        return [future.result() for future in futures]


def _look_at(future: asyncio.Future[_T]) -> None:
    """Look at the error of a thread that nobody waits for any more, or asyncio complains."""
    if not future.cancelled():
        future.exception()


def _run(function: Callable[[], _T]) -> _T:
    """Call a function; an error that it raises keeps none of its buffers alive."""
    try:
        return function()
    except BaseException as e:
        error: BaseException | None = e
        while error is not None:
            # Whoever keeps an exception makes a reference cycle with its frames. Before Python 3.11.9 and 3.12.3 the
            # garbage collector crashes on a memoryview in a cycle (python/cpython#77894).
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__
        raise
