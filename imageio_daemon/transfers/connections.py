# SPDX-License-Identifier: Apache-2.0
"""The connections of a transfer: their limit, and the callbacks that end them with the transfer.

Shared by the event loops; transfers/transfer.py has the rules.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple

from ..errors import TooManyConnections
from .permission import Clock, Permission


class _Connection(NamedTuple):
    """What is known of a connection. began: when it has used the transfer first."""

    on_cancel: Callable[[], None] | None
    service: str
    client: str
    began: float


class Connections:
    """The connections of one transfer, `most` at a time. Thread-safe. lock: the transfer's. clock: in seconds."""

    def __init__(self, permission: Permission, lock: threading.Lock, most: int, clock: Clock) -> None:
        self._permission = permission
        self._lock = lock
        self._most = most
        self._clock = clock
        self._connections: dict[object, _Connection] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def add(
        self,
        connection: object,
        on_cancel: Callable[[], None] | None = None,
        *,
        service: str = "",
        client: str = "",
    ) -> None:
        """Count a connection that uses this transfer. Adding it again has no effect.

        service, client: its service, and the client's address and port, or `unix`, for the status. on_cancel: for
        connections that end with the transfer. It is called in any thread, possibly more than once, when the transfer
        is cancelled or closes its image after the ticket's expiry. Raises TooManyConnections, Forbidden.
        """
        with self._lock:
            self._permission.require_not_canceled()
            if connection in self._connections:
                return
            if len(self._connections) >= self._most:
                raise TooManyConnections(f"Too many connections on one ticket, the limit is {self._most}")
            self._connections[connection] = _Connection(on_cancel, service, client, self._clock())

    def remove(self, connection: object) -> None:
        """Remove a connection, if it was added."""
        with self._lock:
            self._connections.pop(connection, None)

    def callbacks(self) -> list[Callable[[], None]]:
        """Return the callbacks that end connections. Called with the lock; the caller calls them without it."""
        return [known.on_cancel for known in self._connections.values() if known.on_cancel is not None]

    def clients(self) -> list[dict[str, object]]:
        """Return service, address and age of the connections for the status, oldest first. Called with the lock."""
        now = self._clock()
        return [
            {"service": known.service, "client": known.client, "seconds": int(now - known.began)}
            for known in self._connections.values()
        ]
