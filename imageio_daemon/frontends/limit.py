# SPDX-License-Identifier: Apache-2.0
"""How many connections there may be."""

import threading

from ..errors import TooManyConnections


class ConnectionLimit:
    """Count the connections of several servers on several loops. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """Return how many there are now."""
        return self._count

    def take(self) -> None:
        """Count one more. Raises TooManyConnections."""
        with self._lock:
            if self._count >= self._most:
                raise TooManyConnections(f"Too many connections, the limit is {self._most}")
            self._count += 1

    def give_back(self) -> None:
        """Count one less."""
        with self._lock:
            self._count -= 1
