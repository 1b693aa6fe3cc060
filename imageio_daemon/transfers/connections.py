# SPDX-License-Identifier: Apache-2.0
"""The connections of a transfer: their limit, and the callbacks that end them with the transfer.

Shared by the event loops; transfers/transfer.py has the rules.
"""

import threading
from collections.abc import Callable

from ..errors import TooManyConnections
from .permission import Permission


class Connections:
    """Count the connections of one transfer, `most` at a time. Thread-safe. lock: the transfer's."""

    def __init__(self, permission: Permission, lock: threading.Lock, most: int) -> None:
        self._permission = permission
        self._lock = lock
        self._most = most
        self._connections: dict[object, Callable[[], None] | None] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, connection: object, on_cancel: Callable[[], None] | None = None) -> None:
        """Count a connection that uses this transfer. Adding it again has no effect.

        on_cancel: for connections that end with the transfer. It is called in any thread, possibly more than once, when
        the transfer is cancelled or closes its image after the ticket's expiry. Raises TooManyConnections, Forbidden.
        """
        with self._lock:
            self._permission.require_not_canceled()
            if connection in self._connections:
                return
            if len(self._connections) >= self._most:
                raise TooManyConnections(f"Too many connections on one ticket, the limit is {self._most}")
            self._connections[connection] = on_cancel

    def remove(self, connection: object) -> None:
        """Remove a connection, if it was added."""
        with self._lock:
            self._connections.pop(connection, None)

    def callbacks(self) -> list[Callable[[], None]]:
        """Return the callbacks that end connections. Called with the lock; the caller calls them without it."""
        return [on_cancel for on_cancel in self._connections.values() if on_cancel is not None]
