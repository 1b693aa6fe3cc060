# SPDX-License-Identifier: Apache-2.0
"""What goes on beside the task that began it: blocking functions in threads of their own, and tasks nobody awaits."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from ..errors import Unavailable

_T = TypeVar("_T")

log = logging.getLogger(__name__)

#: Seconds between tries of surely().
INTERVAL = 0.1
#: Seconds between two lines of the log about the lack of threads.
TELL_INTERVAL = 60.0

_told = -TELL_INTERVAL


class NoThread(Unavailable):
    """There is no thread for a function or an operation, which has not begun, or no memory for it.

    The host does not allow more of them: services (TasksMax=) and containers have a limit on processes.
    """

    def __init__(self) -> None:
        super().__init__("There is no thread for the request now")


def settle(future: "Future[_T]", function: Callable[[], _T]) -> None:
    """Call a function, and set its result or its exception in a future that is running."""
    try:
        future.set_result(function())
    except BaseException as e:  # noqa: BLE001 - raised again by future.result()
        future.set_exception(e)


def start_thread(function: Callable[[], _T]) -> "Future[_T]":
    """Call a blocking function in a new thread, which does not hold up the end of the process.

    The future fails with NoThread if no thread can be started.
    """
    future: Future[_T] = Future()
    future.set_running_or_notify_cancel()
    try:
        threading.Thread(target=settle, args=(future, function), name="blocking", daemon=True).start()
    except RuntimeError as e:
        tell_lack(str(e))
        future.set_exception(NoThread())
    return future


async def in_thread(function: Callable[[], _T], discard: Callable[[_T], object] | None = None) -> _T:
    """Call a blocking function in a new thread, and return its result. Raises NoThread.

    Cancelling the task does not end the function. Then `discard` is called with the result, in another thread.
    """
    future = start_thread(function)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if discard is not None:
            start_thread(lambda: discard(future.result()))
        raise


async def surely(start: Callable[[], Awaitable[_T]]) -> _T:
    """Start something, await it and return its result. While there is no thread for it, try again.

    Use this for the end of what would stay in use otherwise. Raises what was started does, except NoThread.
    """
    while True:
        try:
            return await start()
        except NoThread:
            await asyncio.sleep(INTERVAL)


def tell_lack(why: str) -> None:
    """Log that requests are refused because the host allows no more threads or the like, at most once a minute."""
    global _told  # noqa: PLW0603 - the lack is the process's, too
    now = time.monotonic()
    if now - _told >= TELL_INTERVAL:
        _told = now
        log.error("requests are refused, because the host allows no more: %s", why)


def tell_failure(task: "asyncio.Task[Any]") -> None:
    """Tell the loop's exception handler of the exception of a task, if there is one. Add this as a callback.

    asyncio does so by itself when the last reference to the task is dropped, which may be at the end of the process.
    """
    if task.cancelled() or (error := task.exception()) is None:
        return
    context = {"message": "a task failed that goes on by itself", "exception": error, "task": task}
    task.get_loop().call_exception_handler(context)
