# SPDX-License-Identifier: Apache-2.0
"""Coroutines that run without a task."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class Work(Generic[_T]):
    """A coroutine that begins at once, and goes on as soon as what it awaits is done.

    A task begins, goes on and is seen to end a turn of the loop later each time: for an operation of 4 KiB the turns
    cost as much as all else. It awaits futures of the running loop and Countdowns. Nobody can cancel it. What needs
    a task, asyncio.timeout() among them, does not work in it.
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
        """Call a function when it has ended: at once, not a turn of the loop later. Only one at a time."""
        if self._done:
            callback(self)
        else:
            self._callback = callback

    def cancelled(self) -> bool:
        """Tell whether something that it awaited was cancelled."""
        return isinstance(self._error, asyncio.CancelledError)

    def exception(self) -> BaseException | None:
        """Return what it failed with. It has ended."""
        return self._error

    def result(self) -> _T:
        """Return what it returned, or raise what it failed with. It has ended."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def __await__(self) -> Generator[Any, None, _T]:
        """Wait in a task, which may be cancelled: the work goes on then."""
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
        except (Exception, asyncio.CancelledError) as e:  # noqa: BLE001 - it is told to who waits
            self._end(None, e)
        else:
            awaited._asyncio_future_blocking = False  # as a task says that it has seen what was yielded
            awaited.add_done_callback(self._go_on)

    def _end(self, result: _T | None, error: BaseException | None) -> None:
        self._result, self._error, self._done = result, error, True
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(self)


class Countdown:
    """What a Work awaits: that so many things have happened. It goes on in the call that counts the last one."""

    __slots__ = ("_asyncio_future_blocking", "_callback", "_left")

    def __init__(self, count: int) -> None:
        self._left = count
        self._callback: Callable[[Countdown], object] | None = None

    def count(self) -> None:
        """Count one."""
        self._left -= 1
        if self._left == 0 and self._callback is not None:
            self._callback(self)

    def add_done_callback(self, callback: Callable[["Countdown"], object]) -> None:
        """Call a function when all have happened."""
        self._callback = callback

    def __await__(self) -> Generator["Countdown", None, None]:
        """Wait, in a Work."""
        if self._left:
            yield self
