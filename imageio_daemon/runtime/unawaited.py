# SPDX-License-Identifier: Apache-2.0
"""Tasks that nobody awaits. Their failure is a bug."""

import asyncio
from typing import Any


def tell_failure(task: "asyncio.Task[Any]") -> None:
    """Tell the loop's exception handler of the exception of a task, if there is one. Add this as a callback.

    asyncio does so by itself when the last reference to the task is dropped, which may be at the end of the process.
    """
    if task.cancelled() or (error := task.exception()) is None:
        return
    context = {"message": "a task failed that goes on by itself", "exception": error, "task": task}
    task.get_loop().call_exception_handler(context)
