# SPDX-License-Identifier: Apache-2.0
"""The progress of a transfer."""

import collections
import enum
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Seconds between two reports: smooth for users, and without measurable cost.
INTERVAL = 0.1
#: Seconds over which the rate is an average: long enough for requests that take two.
WINDOW = 10.0


class Phase(enum.StrEnum):
    """What a transfer does: compare what an earlier upload has sent, transfer, or verify at the end."""

    COMPARING = "comparing"
    TRANSFERRING = "transferring"
    VERIFYING = "verifying"


@dataclass(frozen=True)
class Progress:
    """Bytes of the image that are done; `elapsed` in seconds.

    `data` was transferred, `zero` was zeroed, `skipped` needed neither: it reads as zeros already, or is not dirty.
    `resumed` was on stable storage from an earlier upload. `durable`: bytes that the next upload would not send, of an
    upload that can be continued. `rate`: bytes of data per second, of the last WINDOW seconds. `total` is None while it
    is not known. `checked`: bytes that were compared or verified in this phase, of `to_check`; None: not known.
    """

    total: int | None = None
    data: int = 0
    zero: int = 0
    skipped: int = 0
    resumed: int = 0
    durable: int | None = None
    rate: float = 0.0
    elapsed: float = 0.0
    phase: Phase = Phase.TRANSFERRING
    checked: int = 0
    to_check: int | None = None

    @property
    def done(self) -> int:
        """Return the bytes that are done."""
        return self.data + self.zero + self.skipped + self.resumed

    @property
    def average(self) -> float:
        """Return the bytes of data per second so far."""
        return self.data / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def left(self) -> float | None:
        """Return the estimated seconds for the rest; None without an estimate."""
        now = self.done - self.resumed
        if self.total is None or not now:
            return None
        return (self.total - self.done) * self.elapsed / now


#: Called every INTERVAL, in the thread that called the library.
Report = Callable[[Progress], None]


class Counter:
    """The counts of all threads of a transfer. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._data = self._zero = self._skipped = self._resumed = 0
        self._phase = Phase.TRANSFERRING
        self._checked = 0
        self._to_check: int | None = None
        self._times = collections.deque([(self._started, 0)])
        self.total: int | None = None

    def add(self, *, data: int = 0, zero: int = 0, skipped: int = 0, resumed: int = 0) -> None:
        """Count bytes that are done."""
        with self._lock:
            self._data += data
            self._zero += zero
            self._skipped += skipped
            self._resumed += resumed

    def begin(self, phase: Phase, to_check: int | None = None) -> None:
        """Begin a phase, in which so many bytes are checked."""
        with self._lock:
            self._phase, self._checked, self._to_check = phase, 0, to_check

    def check(self, count: int) -> None:
        """Count bytes that were checked."""
        with self._lock:
            self._checked += count

    def progress(self) -> Progress:
        """Return the present progress."""
        with self._lock:
            now = time.monotonic()
            return Progress(
                self.total,
                self._data,
                self._zero,
                self._skipped,
                self._resumed,
                rate=self._rate(now),
                elapsed=now - self._started,
                phase=self._phase,
                checked=self._checked,
                to_check=self._to_check,
            )

    def _rate(self, now: float) -> float:
        times = self._times
        if now - times[-1][0] >= INTERVAL / 2:
            times.append((now, self._data))
        while len(times) > 2 and now - times[1][0] >= WINDOW:
            times.popleft()
        start, before = times[0]
        return (self._data - before) / (now - start) if now > start else 0.0
