# SPDX-License-Identifier: Apache-2.0
"""The connections of a transfer, with their limit, and the callbacks that are called when the transfer is cancelled."""

from collections.abc import Callable
from typing import NamedTuple

from ..errors import TooManyConnections
from ..runtime.request_activity import Doing
from .permission import Permission
from .traffic import Clock


class _Connection(NamedTuple):
    """A connection. Since `began` it uses the transfer."""

    on_cancel: Callable[[], object] | None
    service: str
    client: str
    began: float
    doing: Callable[[], Doing | None]


class Connections:
    """The connections of one transfer, at most `most` at a time. The clock counts seconds."""

    def __init__(self, permission: Permission, most: int, clock: Clock) -> None:
        self._permission = permission
        self._most = most
        self._clock = clock
        self._connections: dict[object, _Connection] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def add(
        self,
        connection: object,
        on_cancel: Callable[[], object] | None = None,
        *,
        service: str = "",
        client: str = "",
        doing: Callable[[], Doing | None] = lambda: None,
    ) -> None:
        """Count a connection that uses this transfer. Adding it again has no effect.

        The status shows the service, the client (address and port, or `unix`), and the result of `doing`. Pass
        on_cancel if the connection has to do something at the end of the transfer: an NBD connection ends, an HTTP
        connection stays and closes the object that it keeps for the transfer (Exchange.kept()). on_cancel is called,
        possibly more than once, when the transfer is cancelled, or closes its image after the ticket's expiry. It must
        not end the connection at once. Raises TooManyConnections, and Canceled if the transfer was cancelled.
        """
        self._permission.require_not_canceled()
        if connection in self._connections:
            return
        if len(self._connections) >= self._most:
            raise TooManyConnections(f"Too many connections on one ticket, the limit is {self._most}")
        self._connections[connection] = _Connection(on_cancel, service, client, self._clock(), doing)

    def remove(self, connection: object) -> None:
        """Remove a connection, if it was added."""
        self._connections.pop(connection, None)

    def callbacks(self) -> list[Callable[[], object]]:
        """Return the on_cancel of all connections that have one."""
        return [known.on_cancel for known in self._connections.values() if known.on_cancel is not None]

    def clients(self) -> list[dict[str, object]]:
        """Return service, address, age and request of the connections, oldest first, for the status."""
        now = self._clock()
        return [_client(known, int(now - known.began)) for known in self._connections.values()]


def _client(known: _Connection, seconds: int) -> dict[str, object]:
    client: dict[str, object] = {"service": known.service, "client": known.client, "seconds": seconds}
    if (doing := known.doing()) is not None:
        client["request"] = doing._replace(seconds=round(doing.seconds, 3))._asdict()
    return client
