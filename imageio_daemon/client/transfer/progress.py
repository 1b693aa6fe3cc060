# SPDX-License-Identifier: Apache-2.0
"""The progress of a transfer."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Seconds between two reports: smooth for users, and without measurable cost.
INTERVAL = 0.1


@dataclass(frozen=True)
class Progress:
    """Bytes of the image that are done; `elapsed` in seconds.

    `data` was transferred, `zero` was zeroed, `skipped` needed neither: it reads as zeros already, is not dirty, or was
    transferred before. `total` is None while it is not known.
    """

    total: int | None = None
    data: int = 0
    zero: int = 0
    skipped: int = 0
    elapsed: float = 0.0

    @property
    def done(self) -> int:
        """Return the bytes that are done."""
        return self.data + self.zero + self.skipped

    @property
    def rate(self) -> float:
        """Return the bytes of data per second so far."""
        return self.data / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def left(self) -> float | None:
        """Return the estimated seconds for the rest; None without an estimate."""
        if self.total is None or not self.done:
            return None
        return (self.total - self.done) * self.elapsed / self.done


#: Called every INTERVAL, in the thread that called the library.
Report = Callable[[Progress], None]


class Counter:
    """The counts of all threads of a transfer. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._data = self._zero = self._skipped = 0
        self.total: int | None = None

    def add(self, *, data: int = 0, zero: int = 0, skipped: int = 0) -> None:
        """Count bytes that are done."""
        with self._lock:
            self._data += data
            self._zero += zero
            self._skipped += skipped

    def progress(self) -> Progress:
        """Return the present progress."""
        with self._lock:
            elapsed = time.monotonic() - self._started
            return Progress(self.total, self._data, self._zero, self._skipped, elapsed)
