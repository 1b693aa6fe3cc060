# SPDX-License-Identifier: Apache-2.0
"""The progress of a transfer."""

import collections
import enum
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..server.retries import Retries

#: Seconds between two reports, which look smooth and cost nothing measurable.
INTERVAL = 0.1
#: Seconds over which the rate is an average, long enough for links that falter.
WINDOW = 10.0


class Phase(enum.StrEnum):
    """What a transfer does now.

    It reads a source to find its size or a member, compares what an earlier upload has sent, transfers, or verifies at
    the end. An update transfers while it compares.
    """

    READING = "reading"
    COMPARING = "comparing"
    TRANSFERRING = "transferring"
    VERIFYING = "verifying"


@dataclass(frozen=True)
class Progress:
    """The progress of a transfer, in bytes of the image. `total` is None while it is not known.

    `data` has gone over the network, also in requests that still run; the bytes of a failed request are subtracted.
    `zero` was zeroed. `skipped` needed neither, because it reads as zeros already, or is not dirty. `resumed` was on
    stable storage from an earlier upload. `durable` is what the next upload would not send again, if this one can be
    continued. `rate` is bytes of data per second, over the last WINDOW seconds. `elapsed` is in seconds. `checked`
    bytes of `to_check` were read, compared or verified in this phase; the latter may be unknown. `to_move` is at most
    how much data is left to transfer, or None until the map of the image is read. `retries` is the number of requests
    to the server of the ticket that were sent again, and `reason` why some fail now: of a copy, those to both servers.
    `idle` is the seconds since the last progress. `ending` tells that the transfer ends early, by the user or an error,
    and subtracts what its requests had sent. `complete` tells that the file or image of a download is complete,
    whatever fails after that.
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
    to_move: int | None = None
    retries: int = 0
    reason: str | None = None
    idle: float = 0.0
    ending: bool = False
    complete: bool = False

    @property
    def done(self) -> int:
        """Return how many bytes are done."""
        return self.data + self.zero + self.skipped + self.resumed

    @property
    def average(self) -> float:
        """Return the bytes of data per second so far."""
        return self.data / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def left(self) -> float | None:
        """Return the estimated seconds for the data that is left, if there is an estimate."""
        return self.to_move / self.rate if self.to_move and self.rate else None


#: A function that is called every INTERVAL, in the thread that has called the library.
Report = Callable[[Progress], None]


class Counter:
    """The counts of all threads of a transfer. Thread-safe.

    `retries` are those of the servers that it asks. Add to them before the transfer begins.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._data = self._zero = self._skipped = self._resumed = 0
        self._phase = Phase.TRANSFERRING
        self._checked = 0
        self._to_check: int | None = None
        self._times = collections.deque([(self._started, 0)])
        self._planned = self._spared = 0
        self._is_planned = False
        self._moved_at = self._started
        self.total: int | None = None
        self.retries: list[Retries] = []

    def moved(self, count: int) -> None:
        """Count bytes of data that were sent or received. A negative number are bytes that have to be sent again."""
        with self._lock:
            self._data += count
            if count > 0:
                self._moved_at = time.monotonic()

    def add(self, *, zero: int = 0, skipped: int = 0, resumed: int = 0) -> None:
        """Count bytes that are done."""
        with self._lock:
            self._zero += zero
            self._skipped += skipped
            self._resumed += resumed
            self._moved_at = time.monotonic()

    def plan(self, data: int | None) -> None:
        """Add bytes of data to those to transfer. None tells that there are no more."""
        with self._lock:
            self._planned += data or 0
            self._is_planned = data is None

    def spare(self, data: int) -> None:
        """Count planned data that need not be transferred, because it is zeros."""
        with self._lock:
            self._spared += data

    def begin(self, phase: Phase, to_check: int | None = None) -> None:
        """Begin a phase, in which `to_check` bytes are checked."""
        with self._lock:
            self._phase, self._checked, self._to_check = phase, 0, to_check

    def check(self, count: int) -> None:
        """Count bytes that were checked."""
        with self._lock:
            self._checked += count
            self._moved_at = time.monotonic()

    def progress(self) -> Progress:
        """Return the present progress."""
        reasons = [retries.reason for retries in self.retries]
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
                to_move=max(self._planned - self._spared - self._data, 0) if self._is_planned else None,
                retries=sum(retries.count for retries in self.retries),
                reason=next(filter(None, reasons), None),
                idle=now - self._moved_at,
            )

    def reading(self, read: int, of: int | None) -> None:
        """Set how many bytes were read before the transfer, and of how many."""
        with self._lock:
            self._phase, self._checked, self._to_check = Phase.READING, read, of
            self._moved_at = time.monotonic()

    def _rate(self, now: float) -> float:
        times = self._times
        if now - times[-1][0] >= INTERVAL / 2:
            times.append((now, self._data))
        while len(times) > 2 and now - times[1][0] >= WINDOW:
            times.popleft()
        start, before = times[0]
        return max(self._data - before, 0) / (now - start) if now > start else 0.0


class Opening:
    """Report how much of a source is read before its transfer, in the thread that reads, at most every INTERVAL."""

    def __init__(self, counter: Counter, report: Report | None) -> None:
        self._counter = counter
        self._report = report
        self._next = time.monotonic() + INTERVAL

    def __call__(self, read: int, of: int | None) -> None:
        """Set how many bytes were read, and of how many."""
        self._counter.reading(read, of)
        if self._report is not None and time.monotonic() >= self._next:
            self._report(self._counter.progress())
            self._next = time.monotonic() + INTERVAL
