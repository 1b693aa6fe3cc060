# SPDX-License-Identifier: Apache-2.0
"""The rate of a transfer: now, whoever asks and how often; and the pauses that do not count for the rate of all."""

from collections import deque

#: Samples that are kept. With one every two seconds, the oldest is 8 to 10 s old.
SAMPLES = 5


class Rate:
    """Tell by how much a count grows in a second. `now` is the time of any clock, in seconds. Not thread-safe."""

    def __init__(self, now: float) -> None:
        self._samples = deque([(now, 0)], SAMPLES)

    def sample(self, now: float, count: int) -> None:
        """Keep the count of now, and forget the oldest. Called at regular times."""
        self._samples.append((now, count))

    def per_second(self, now: float, count: int) -> int:
        """Return the growth in a second since the oldest sample. Changes nothing. 0 if no time has passed."""
        then, before = self._samples[0]
        return round((count - before) / (now - then)) if now > then else 0


class Pauses:
    """Add up the time in which nothing ran, as far as looks at regular times have seen it. Not thread-safe.

    A pause counts until the last look at it, so a short one, or the end of a long one, does not.
    """

    def __init__(self) -> None:
        self._since = 0.0
        self._seconds = 0.0
        self._before = 0.0  # pauses before this one

    def look(self, since: float, now: float) -> None:
        """Note that nothing runs now. The last request has ended at `since`, by the same clock."""
        if since != self._since:
            self._before += self._seconds
            self._since = since
        self._seconds = now - since

    def until(self, active: float) -> float:
        """Return the seconds of all pauses before the last request, which has ended then."""
        return self._before + (self._seconds if self._since != active else 0.0)
