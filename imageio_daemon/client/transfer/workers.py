# SPDX-License-Identifier: Apache-2.0
"""Threads that work for the calling thread. They end together, and an error of one stops the others."""

import contextlib
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Generic, TypeVar

from ..errors import Stopped
from ..stopping import Stop
from .progress import INTERVAL

_T = TypeVar("_T")


class _Call(Generic[_T]):
    """A call in its own thread, which puts itself into `ended` at its end."""

    def __init__(self, function: Callable[[], _T], ended: "SimpleQueue[_Call[_T] | None]") -> None:
        self._function = function
        self._ended = ended
        self.results: list[_T] = []  # one result, or none if the call raised
        self.error: BaseException | None = None
        self.ended_at = 0.0
        self.thread = threading.Thread(target=self._run, name="transfer")

    def _run(self) -> None:
        try:
            self.results.append(self._function())
        except BaseException as e:  # noqa: BLE001 - run() raises it
            _clear_frames(e)
            self.error = e
        self.ended_at = time.monotonic()
        self._ended.put(self)


def run(functions: Sequence[Callable[[], _T]], stop: Stop, tick: Callable[[], None] | None = None) -> list[_T]:
    """Call each function in its own thread, and return their results.

    `tick` is called every INTERVAL seconds, and when all threads have ended. If a function raises, or Ctrl-C interrupts
    the wait, this calls stop.stop(). It returns or raises when all threads have ended, so that the caller can close
    what they use. Raises the earliest error that is not a Stopped, if there is one.
    """
    ended: SimpleQueue[_Call[_T] | None] = SimpleQueue()  # gets None when the user interrupts
    calls = [_Call(function, ended) for function in functions]
    left = len(calls)
    with _told_of_interrupts(lambda: ended.put(None)):
        try:
            for call in calls:
                call.thread.start()
            left = _wait(ended, len(calls), tick)
        finally:
            if left:  # not is_alive(), which may still be true for a thread whose call has ended
                stop.stop()
            for call in calls:
                if call.thread.ident is not None:  # if it was started
                    call.thread.join()
            if tick is not None:
                tick()
    # The errors of the other threads, most of them Stopped, are consequences of the first one.
    for call in sorted(calls, key=lambda call: (isinstance(call.error, Stopped), call.ended_at)):
        if call.error:
            raise call.error
    return [result for call in calls for result in call.results]


def _wait(ended: "SimpleQueue[_Call[_T] | None]", count: int, tick: Callable[[], None] | None) -> int:
    """Wait until `count` calls have ended or one has failed. Return how many are left. Raises KeyboardInterrupt."""
    while count:
        with contextlib.suppress(Empty):
            call = ended.get(timeout=INTERVAL)
            if call is None:
                raise KeyboardInterrupt
            count -= 1
            if call.error:
                break
        if tick is not None:
            tick()
    return count


@contextlib.contextmanager
def _told_of_interrupts(tell: Callable[[], None]) -> Iterator[None]:
    """Let the first Ctrl-C call `tell`, in place of KeyboardInterrupt anywhere in the block. A second one raises that.

    If the block ends well nevertheless, KeyboardInterrupt is raised after it. As with asyncio.run(), nothing is changed
    in other threads than the main one, or if the program has its own handler.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        tell()

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupted:
        raise KeyboardInterrupt


def _clear_frames(error: BaseException | None) -> None:
    """Clear the frames of an error and its causes, so that it keeps no buffers alive."""
    while error is not None:
        # A stored exception is in a reference cycle with its frames. Before Python 3.11.9 and 3.12.3 the garbage
        # collector crashes on a memoryview in a cycle (python/cpython#77894).
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
