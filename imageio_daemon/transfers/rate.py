# SPDX-License-Identifier: Apache-2.0
"""The rate of a count now: its growth over the last seconds, whoever asks and how often."""

from collections import deque

#: Samples that are kept. With one every two seconds, the oldest is 8 to 10 s old.
SAMPLES = 5


class Rate:
    """Tell by how much a count grows in a second. now: seconds of any clock. Not thread-safe."""

    def __init__(self, now: float) -> None:
        self._samples = deque([(now, 0)], SAMPLES)

    def sample(self, now: float, count: int) -> None:
        """Keep the count of now, and forget the oldest. Called at regular times."""
        self._samples.append((now, count))

    def per_second(self, now: float, count: int) -> int:
        """Return the growth in a second since the oldest sample. Changes nothing. 0 if no time has passed."""
        then, before = self._samples[0]
        return round((count - before) / (now - then)) if now > then else 0
