# SPDX-License-Identifier: Apache-2.0
"""Coroutines that run without an asyncio task, for short storage operations."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class Work(Generic[_T]):
    """Run a coroutine without a task. It starts in the constructor. Used on one loop.

    After a Countdown the coroutine continues in the call that counts the last event, and after a future in the callback
    of the future. A task needs a further turn of the loop to start, to continue and to report its end. For an operation
    of 4 KiB, these turns take as long as the rest. The coroutine may await Countdowns and futures of the running loop.
    It must not use what needs a task, for instance asyncio.timeout(). A Work cannot be cancelled.
    """

    __slots__ = ("_callback", "_coroutine", "_done", "_error", "_result")

    def __init__(self, coroutine: Coroutine[Any, Any, _T]) -> None:
        self._coroutine = coroutine
        self._callback: Callable[[Work[_T]], object] | None = None
        self._done = False
        self._result: _T | None = None
        self._error: BaseException | None = None
        self._go_on(None)

    def add_done_callback(self, callback: Callable[["Work[_T]"], object]) -> None:
        """Call a function in the call that ends the coroutine, or now if it has ended. Only the last one is kept.

        The loop's exception handler gets what the function raises, as with a future.
        """
        if self._done:
            self._call(callback)
        else:
            self._callback = callback

    def cancelled(self) -> bool:
        """Tell whether the coroutine ended with CancelledError: a future that it awaited was cancelled."""
        return isinstance(self._error, asyncio.CancelledError)

    def exception(self) -> BaseException | None:
        """Return the exception that ended the coroutine; None if it returned. Call it only after the end."""
        return self._error

    def result(self) -> _T:
        """Return the result of the coroutine, or raise its exception. Call it only after the end."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def __await__(self) -> Generator[Any, None, _T]:
        """Wait for the end, in a task. Cancelling the task does not end the work."""
        if not self._done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def ended(_: object) -> None:
                if not future.done():
                    future.set_result(None)

            self.add_done_callback(ended)
            yield from future
        return self.result()

    def _go_on(self, _: object) -> None:
        try:
            awaited = self._coroutine.send(None)
        except StopIteration as e:
            self._end(e.value, None)
        except (Exception, asyncio.CancelledError) as e:  # noqa: BLE001 - result() raises it
            self._end(None, e)
        else:
            awaited._asyncio_future_blocking = False  # as a task does with a future that it receives
            awaited.add_done_callback(self._go_on)

    def _end(self, result: _T | None, error: BaseException | None) -> None:
        self._result, self._error, self._done = result, error, True
        callback, self._callback = self._callback, None
        if callback is not None:
            self._call(callback)

    def _call(self, callback: Callable[["Work[_T]"], object]) -> None:
        try:
            callback(self)
        except Exception as e:  # noqa: BLE001 - whoever ends this work may have other works to end
            context = {"message": f"Exception in callback {callback!r}", "exception": e}
            asyncio.get_running_loop().call_exception_handler(context)


class Countdown:
    """Let a Work await a number of events. The Work continues in the call that counts the last one."""

    __slots__ = ("_asyncio_future_blocking", "_callback", "_left")

    def __init__(self, count: int) -> None:
        self._left = count
        self._callback: Callable[[Countdown], object] | None = None

    def count(self) -> None:
        """Count one event."""
        self._left -= 1
        if self._left == 0 and self._callback is not None:
            self._callback(self)

    def add_done_callback(self, callback: Callable[["Countdown"], object]) -> None:
        """Call a function in the call that counts the last event."""
        self._callback = callback

    def __await__(self) -> Generator["Countdown", None, None]:
        """Wait for the last event, in a Work; not at all if it was counted."""
        if self._left:
            yield self
