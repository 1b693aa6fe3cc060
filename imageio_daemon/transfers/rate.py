# SPDX-License-Identifier: Apache-2.0
"""The present rate of a transfer, whoever asks for it and how often, and the pauses that its average leaves out."""

from collections import deque

#: Number of kept samples. With one every two seconds, the oldest is 8 to 10 s old.
SAMPLES = 5


class Rate:
    """The growth of a count per second. `now` is the time of any clock, in seconds. Not thread-safe."""

    def __init__(self, now: float) -> None:
        self._samples = deque([(now, 0)], SAMPLES)

    def sample(self, now: float, count: int) -> None:
        """Keep the present count, and forget the oldest. Call this at regular times."""
        self._samples.append((now, count))

    def per_second(self, now: float, count: int) -> int:
        """Return the growth per second since the oldest sample, 0 if no time has passed. Changes nothing."""
        then, before = self._samples[0]
        return round((count - before) / (now - then)) if now > then else 0


class Pauses:
    """Add up the time in which nothing ran, as seen by look() at regular times. Not thread-safe.

    A pause counts up to the last look() in it. A short pause, or the end of a long one, is missed.
    """

    def __init__(self) -> None:
        self._since = 0.0
        self._seconds = 0.0
        self._before = 0.0  # pauses before this one

    def look(self, since: float, now: float) -> None:
        """Note that nothing runs now. The last request has ended at `since`. Both are times of one clock."""
        if since != self._since:
            self._before += self._seconds
            self._since = since
        self._seconds = now - since

    def until(self, active: float) -> float:
        """Return the seconds of all pauses before the last request, which has ended at `active`."""
        return self._before + (self._seconds if self._since != active else 0.0)
