# SPDX-License-Identifier: Apache-2.0
"""The count of requests that were sent again, and why, for the display of a transfer and the log.

failures.py decides which failures are temporary, and patience.py for how long requests are sent again.
"""

import logging
import threading
import time

log = logging.getLogger(__name__)

#: Seconds in which a reason is logged as a warning only once, and seconds in which only one of several reasons is.
TOLD_INTERVAL = 10.0
OTHER_INTERVAL = 1.0


class Retries:
    """The retries of all connections of a session, or of one file of a web server. Thread-safe.

    `count` is the number of requests that were sent again. `reached` tells that the server was reached once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0
        self.reached = False
        self._failing = 0
        self._reason = ""
        self._told: dict[str, float] = {}  # reasons of the last TOLD_INTERVAL, and their times, oldest first

    @property
    def reason(self) -> str | None:
        """Return why requests fail now, or None if none does."""
        with self._lock:
            return self._reason if self._failing else None

    def waits(self, reason: str, delay: float, *, is_first: bool) -> None:
        """Note that a request has failed, and is sent again in `delay` seconds. `is_first` is its first failure."""
        with self._lock:
            self.count += 1
            self._failing += is_first
            self._reason = reason
            tell = self._tells(reason, time.monotonic())
        log.log(logging.WARNING if tell else logging.INFO, "%s; again in %.1f s", reason, delay)

    def _tells(self, reason: str, now: float) -> bool:
        self._told = {told: at for told, at in self._told.items() if now - at < TOLD_INTERVAL}
        if reason in self._told or any(now - at < OTHER_INTERVAL for at in self._told.values()):
            return False
        self._told[reason] = now
        return True

    def succeeded(self) -> None:
        """Note that a request that had failed has succeeded."""
        with self._lock:
            self._failing -= 1
