# SPDX-License-Identifier: Apache-2.0
"""Blocking functions in threads of their own."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


def start_thread(function: Callable[[], _T]) -> "Future[_T]":
    """Call a blocking function in a new thread, which does not hold up the end of the process."""
    future: Future[_T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as e:  # noqa: BLE001 - raised again by future.result()
            future.set_exception(e)

    threading.Thread(target=run, name="blocking", daemon=True).start()
    return future


async def in_thread(function: Callable[[], _T], discard: Callable[[_T], object] | None = None) -> _T:
    """Call a blocking function in a new thread, and return its result.

    Cancelling the task does not end the function. Then `discard` is called with the result, in another thread.
    """
    future = start_thread(function)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if discard is not None:
            start_thread(lambda: discard(future.result()))
        raise
