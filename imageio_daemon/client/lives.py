# SPDX-License-Identifier: Apache-2.0
"""Know whether it is still the same server: one that started anew may have lost what was not flushed."""

import threading


class Lives:
    """Count the lives of a server as far as connections to it can tell. Thread-safe.

    `count` is the same before and after some requests only if one process served them all, or connections that were
    never lost did. `instance`: what the process calls itself in OPTIONS; None for servers that don't tell.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.instance: str | None = None
        self.count = 0

    def reconnected(self, instance: str | None) -> None:
        """Note that a connection that was lost is there again, to the process with this name."""
        with self._lock:
            if instance is None or instance != self.instance:
                self.count += 1
                self.instance = instance
