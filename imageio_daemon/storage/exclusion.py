# SPDX-License-Identifier: Apache-2.0
"""Changes of one image that overlap are made one after the other; for storage that C does not have (ADR 15)."""

import asyncio
import threading
from bisect import bisect_left, insort

from ..image.ranges import RangeSet
from .backend import Operation


class Exclusion:
    """Locks on byte ranges of one image, granted in order of arrival. Used from any loop.

    Ranges that are held do not overlap. They are kept sorted, so a new range is compared with one of them, and with
    all that wait.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[tuple[int, int]] = []
        self._waiting: dict[Turn, None] = {}  # in order of arrival

    def hold(self, op: Operation, start: int, end: int) -> "Turn":
        """Hold a range of bytes for the time of an async with block, after all that began before and overlap it.

        This call takes the place in the order; the block, on the same loop, waits for its turn and must follow. A task
        that is cancelled while it waits has never held it. An empty range excludes nobody. The block raises Canceled:
        the operation was cancelled, and drop_canceled() called, before it came to its turn.
        """
        turn = Turn(self, op, start, end)
        self._join(turn)
        return turn

    def drop_canceled(self) -> None:
        """Let go of those that wait and whose operation was cancelled: they must not pile up behind one that hangs."""
        with self._lock:
            dropped = [turn for turn in self._waiting if turn.op.canceled]
            for turn in dropped:
                del self._waiting[turn]
                turn.wake()
            if dropped:
                self._admit_waiting(min(turn.start for turn in dropped), max(turn.end for turn in dropped))

    def _join(self, turn: "Turn") -> None:
        """Let a turn come, now or later."""
        start, end = turn.start, turn.end
        with self._lock:
            waits = self._waiting and any(other.overlaps(start, end) for other in self._waiting)
            if self._is_free(start, end) and not waits:
                self._hold(turn)
            else:
                turn.wait()
                self._waiting[turn] = None

    def leave(self, turn: "Turn") -> None:
        """Let others have what it has."""
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
        if not self._waiting or not any(turn.overlaps(start, end) for turn in self._waiting):
            return
        before = RangeSet(limit=len(self._waiting))  # of those that go on waiting
        for turn in list(self._waiting):
            if self._is_free(turn.start, turn.end) and not before.overlaps(turn.start, turn.end):
                del self._waiting[turn]
                self._hold(turn)
                turn.wake()
            else:
                before.add(turn.start, turn.end)
            if turn.start <= start and end <= turn.end:
                return  # nothing is left of the range for those after it

    def _hold(self, turn: "Turn") -> None:
        if turn.start < turn.end:
            insort(self._held, (turn.start, turn.end))
            turn.held = True

    def _is_free(self, start: int, end: int) -> bool:
        place = bisect_left(self._held, (end, end))
        return start >= end or place == 0 or self._held[place - 1][1] <= start


class Turn:
    """One that holds a range or waits for it, on the running loop."""

    __slots__ = ("_come", "_exclusion", "_thread", "end", "held", "op", "start")

    def __init__(self, exclusion: Exclusion, op: Operation, start: int, end: int) -> None:
        self._exclusion = exclusion
        self.op = op
        self.start = start
        self.end = end
        self.held = False
        #: If it waits: done when it holds the range, or was dropped.
        self._come: asyncio.Future[None] | None = None

    async def __aenter__(self) -> None:
        try:
            if self._come is not None and not self.op.canceled:  # else drop_canceled() may have come before the turn
                await self._come
            self.op.require_running()
        except BaseException:
            self._exclusion.leave(self)
            raise

    async def __aexit__(self, *_: object) -> None:
        self._exclusion.leave(self)

    def wait(self) -> None:
        """Get ready to wait. Called on the loop that waits."""
        self._come = asyncio.get_running_loop().create_future()
        self._thread = threading.get_ident()

    def overlaps(self, start: int, end: int) -> bool:
        return self.start < end and start < self.end and start < end

    def wake(self) -> None:
        """Let one that waits go on. Called in any thread: who drops cancelled operations may have no loop."""
        if self._come is None:
            return
        if threading.get_ident() == self._thread:
            _go_on(self._come)
        else:
            self._come.get_loop().call_soon_threadsafe(_go_on, self._come)


def _go_on(come: "asyncio.Future[None]") -> None:
    if not come.done():
        come.set_result(None)
