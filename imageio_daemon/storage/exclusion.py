# SPDX-License-Identifier: Apache-2.0
"""Changes of one image that overlap are made one after the other; for storage that C does not have (ADR 15)."""

import asyncio
import threading
from bisect import bisect_left, insort
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..ranges import RangeSet
from .base import Operation


class Exclusion:
    """Who may change which bytes, in order of arrival. Used from any loop.

    What is held does not overlap, so it is sorted, and who comes is compared with one of it and with those that wait.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[tuple[int, int]] = []
        self._waiting: dict[_Turn, None] = {}  # in order of arrival

    @asynccontextmanager
    async def hold(self, op: Operation, start: int, end: int) -> AsyncIterator[None]:
        """Hold a range of bytes for the time of the block, after all that asked before and overlap it.

        A task that is cancelled while it waits has never held it. An empty range excludes nobody. Raises Canceled: the
        operation was cancelled, and drop_canceled() called, before it came to its turn.
        """
        turn = self._join(op, start, end)
        try:
            if not op.canceled:  # else drop_canceled() may have come before the turn
                await turn.come
            op.require_running()
            yield
        finally:
            self._leave(turn)

    def drop_canceled(self) -> None:
        """Let go of those that wait and whose operation was cancelled: they must not pile up behind one that hangs."""
        with self._lock:
            dropped = [turn for turn in self._waiting if turn.op.canceled]
            for turn in dropped:
                del self._waiting[turn]
                turn.wake()
            if dropped:
                self._admit_waiting(min(turn.start for turn in dropped), max(turn.end for turn in dropped))

    def _join(self, op: Operation, start: int, end: int) -> "_Turn":
        turn = _Turn(op, start, end)
        with self._lock:
            if self._is_free(start, end) and not any(other.overlaps(start, end) for other in self._waiting):
                self._admit(turn)
            else:
                self._waiting[turn] = None
        return turn

    def _leave(self, turn: "_Turn") -> None:
        with self._lock:
            if turn.held:
                del self._held[bisect_left(self._held, (turn.start, turn.end))]
            elif turn in self._waiting:
                del self._waiting[turn]
            else:
                return  # it was dropped, or is empty
            self._admit_waiting(turn.start, turn.end)

    def _admit_waiting(self, start: int, end: int) -> None:
        """Admit who waited for no more than a range that is free now. Called with the lock."""
        if not any(turn.overlaps(start, end) for turn in self._waiting):
            return
        before = RangeSet(limit=len(self._waiting))  # of those that go on waiting
        for turn in list(self._waiting):
            if self._is_free(turn.start, turn.end) and not before.overlaps(turn.start, turn.end):
                del self._waiting[turn]
                self._admit(turn)
            else:
                before.add(turn.start, turn.end)
            if turn.start <= start and end <= turn.end:
                return  # nothing is left of the range for those after it

    def _admit(self, turn: "_Turn") -> None:
        if turn.start < turn.end:
            insort(self._held, (turn.start, turn.end))
            turn.held = True
        turn.wake()

    def _is_free(self, start: int, end: int) -> bool:
        place = bisect_left(self._held, (end, end))
        return start >= end or place == 0 or self._held[place - 1][1] <= start


class _Turn:
    """One that holds a range or waits for it, on the running loop."""

    def __init__(self, op: Operation, start: int, end: int) -> None:
        self.op = op
        self.start = start
        self.end = end
        self.held = False
        self._loop = asyncio.get_running_loop()
        #: Done when it holds the range, or was dropped.
        self.come: asyncio.Future[None] = self._loop.create_future()

    def overlaps(self, start: int, end: int) -> bool:
        return self.start < end and start < self.end and start < end

    def wake(self) -> None:
        """Let it go on. Called on any loop."""
        if self._loop is asyncio.get_running_loop():
            self._go_on()
        else:
            self._loop.call_soon_threadsafe(self._go_on)

    def _go_on(self) -> None:
        if not self.come.done():
            self.come.set_result(None)
