# SPDX-License-Identifier: Apache-2.0
"""What is sent again, and why: for the display of a transfer, and for the log."""

import logging
import threading
import time

log = logging.getLogger(__name__)

#: Seconds in which the log has a reason once as a warning, and no more than one reason of several.
TOLD_INTERVAL = 10.0
OTHER_INTERVAL = 1.0


class Retries:
    """The retries of all connections of a transfer. Thread-safe. `count`: requests that were sent again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0
        self._failing = 0
        self._reason = ""
        self._told = ""
        self._told_at = float("-inf")

    @property
    def reason(self) -> str | None:
        """Return why requests fail now; None if none does."""
        with self._lock:
            return self._reason if self._failing else None

    def waits(self, reason: str, delay: float, *, is_first: bool) -> None:
        """Note that a request has failed and is sent again in `delay` seconds; is_first: it went well before."""
        with self._lock:
            self.count += 1
            self._failing += is_first
            self._reason = reason
            since, is_other = time.monotonic() - self._told_at, reason != self._told
            tell = since >= (OTHER_INTERVAL if is_other else TOLD_INTERVAL)
            if tell:
                self._told, self._told_at = reason, time.monotonic()
        log.log(logging.WARNING if tell else logging.INFO, "%s; again in %.1f s", reason, delay)

    def succeeded(self) -> None:
        """Note that a request that had failed went well."""
        with self._lock:
            self._failing -= 1
