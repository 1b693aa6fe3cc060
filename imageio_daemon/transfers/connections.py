# SPDX-License-Identifier: Apache-2.0
"""The connections of a transfer: their limit, and the callbacks that end them with the transfer.

Shared by the event loops; transfers/__init__.py has the rules.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple

from ..errors import TooManyConnections
from ..service.work import Doing
from .permission import Clock, Permission


class _Connection(NamedTuple):
    """What is known of a connection. began: when it has used the transfer first."""

    on_cancel: Callable[[], None] | None
    service: str
    client: str
    began: float
    doing: Callable[[], Doing | None]


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
        doing: Callable[[], Doing | None] = lambda: None,
    ) -> None:
        """Count a connection that uses this transfer. Adding it again has no effect.

        service, client: its service, and the client's address and port, or `unix`, for the status. doing: tells
        what runs on it, and is called in any thread. on_cancel: for
        connections that end with the transfer. It is called in any thread, possibly more than once, when the transfer
        is cancelled or closes its image after the ticket's expiry. Raises TooManyConnections, Forbidden.
        """
        with self._lock:
            self._permission.require_not_canceled()
            if connection in self._connections:
                return
            if len(self._connections) >= self._most:
                raise TooManyConnections(f"Too many connections on one ticket, the limit is {self._most}")
            self._connections[connection] = _Connection(on_cancel, service, client, self._clock(), doing)

    def remove(self, connection: object) -> None:
        """Remove a connection, if it was added."""
        with self._lock:
            self._connections.pop(connection, None)

    def callbacks(self) -> list[Callable[[], None]]:
        """Return the callbacks that end connections. Called with the lock; the caller calls them without it."""
        return [known.on_cancel for known in self._connections.values() if known.on_cancel is not None]

    def clients(self) -> list[dict[str, object]]:
        """Return service, address, age and request of the connections, oldest first, for the status. With the lock."""
        now = self._clock()
        return [_client(known, int(now - known.began)) for known in self._connections.values()]


def _client(known: _Connection, seconds: int) -> dict[str, object]:
    client: dict[str, object] = {"service": known.service, "client": known.client, "seconds": seconds}
    if (doing := known.doing()) is not None:
        client["request"] = doing._replace(seconds=round(doing.seconds, 3))._asdict()
    return client
