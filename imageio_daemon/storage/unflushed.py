# SPDX-License-Identifier: Apache-2.0
"""What another server of the images API has answered and not flushed, and which of its processes has it."""

import threading


class Unflushed:
    """Tell whether one process had all changes since the last flush, and that flush, too. Thread-safe.

    An instance is the name that a process of the server tells in OPTIONS, another one after each start; None: the
    server tells none, and is trusted. Whoever changes something names an instance that was told before it; whoever
    flushes, one that was told after it. If both are equal, no other process was there in between.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changes = 0
        self._flushed = 0  # of the changes
        self._instances: set[str | None] = set()  # that were named by changes since the last flush

    @property
    def pending(self) -> int:
        """Return a number that stands for all changes up to now; 0 if each was flushed."""
        with self._lock:
            return self._changes if self._changes > self._flushed else 0

    @property
    def instance(self) -> str | None:
        """Return the name of a process that had one of the changes."""
        with self._lock:
            return next(iter(self._instances), None)

    def changed(self, instance: str | None) -> None:
        """Note a change that was answered."""
        with self._lock:
            if self._changes == self._flushed:
                self._instances.clear()
            self._changes += 1
            self._instances.add(instance)

    def flushed(self, pending: int, instance: str | None) -> bool:
        """Note a flush that was answered: tell whether it has covered what was pending when it began."""
        with self._lock:
            if self._instances != {instance}:
                return False
            self._flushed = max(self._flushed, pending)
            return True
