# SPDX-License-Identifier: Apache-2.0
"""Detection of restarts of the server, which may lose what was not flushed."""

import threading


class Restarts:
    """The number of restarts of a server that connections have detected. Thread-safe.

    If `count` is the same before and after some requests, one process has served them all. `instance` is the name of
    the process in the answer to OPTIONS. It is None for servers that do not tell it; then each lost connection counts.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.instance: str | None = None
        self.count = 0

    def reconnected(self, instance: str | None) -> None:
        """Note the name of the process. Call this after a lost connection, or when there may be another process."""
        with self._lock:
            if instance is None or instance != self.instance:
                self.count += 1
                self.instance = instance
