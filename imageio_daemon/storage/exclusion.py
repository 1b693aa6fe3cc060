# SPDX-License-Identifier: Apache-2.0
"""Changes of one image that overlap are made one after the other; for storage that C does not have (ADR 15)."""

import asyncio
import threading
from bisect import bisect_left, insort
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Exclusion:
    """Who may change which bytes, in order of arrival. Used from any loop.

    What is held does not overlap, so it is sorted, and who comes is compared with one of it and with those that wait.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[tuple[int, int]] = []
        self._waiting: list[_Turn] = []

    @asynccontextmanager
    async def hold(self, start: int, end: int) -> AsyncIterator[None]:
        """Hold a range of bytes for the time of the block, after all that asked before and overlap it.

        A task that is cancelled while it waits has never held it. An empty range excludes nobody.
        """
        turn = self._join(start, end)
        try:
            await turn.admitted
            yield
        finally:
            self._leave(turn)

    def _join(self, start: int, end: int) -> "_Turn":
        turn = _Turn(start, end)
        with self._lock:
            if self._is_free(start, end) and not any(turn.overlaps(other) for other in self._waiting):
                self._admit(turn)
            else:
                self._waiting.append(turn)
        return turn

    def _leave(self, turn: "_Turn") -> None:
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif turn.start < turn.end:
                del self._held[bisect_left(self._held, (turn.start, turn.end))]
            still: list[_Turn] = []
            for other in self._waiting:
                if self._is_free(other.start, other.end) and not any(other.overlaps(before) for before in still):
                    self._admit(other)
                else:
                    still.append(other)
            self._waiting = still

    def _admit(self, turn: "_Turn") -> None:
        if turn.start < turn.end:
            insort(self._held, (turn.start, turn.end))
        turn.admit()

    def _is_free(self, start: int, end: int) -> bool:
        place = bisect_left(self._held, (end, end))
        return start >= end or place == 0 or self._held[place - 1][1] <= start


class _Turn:
    """One that holds a range or waits for it, on the running loop."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self._loop = asyncio.get_running_loop()
        self.admitted: asyncio.Future[None] = self._loop.create_future()

    def overlaps(self, other: "_Turn") -> bool:
        return self.start < other.end and other.start < self.end and self.start < self.end

    def admit(self) -> None:
        """Let it go on. Called in any thread."""
        if self._loop is asyncio.get_running_loop():
            self._go_on()
        else:
            self._loop.call_soon_threadsafe(self._go_on)

    def _go_on(self) -> None:
        if not self.admitted.done():
            self.admitted.set_result(None)
