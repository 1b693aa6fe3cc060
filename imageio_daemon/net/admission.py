# SPDX-License-Identifier: Apache-2.0
"""The open connections of one server: each has a place within the limit, and ends when the server stops."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from ..errors import STOPPING, Unavailable
from .connection_limit import LOCAL, ConnectionLimit, Place, Stage


class Admitted(Protocol):
    """A connection."""

    def shut_down(self) -> None:
        """Finish the running requests, refuse new ones, and close."""

    def abort(self, reason: str) -> None:
        """Close the connection now, without waiting for storage. `reason` is for the log."""


class Admission:
    """Keep the connections of one server, and their places."""

    def __init__(self, limit: ConnectionLimit) -> None:
        self.limit = limit
        self._connections: dict[Admitted, Place] = {}
        self._empty = asyncio.Event()
        self._stopping = False

    @property
    def count(self) -> int:
        """Return how many connections are open."""
        return len(self._connections)

    def require_running(self) -> None:
        """Raise Unavailable while the server stops."""
        if self._stopping:
            raise Unavailable(STOPPING)

    def enter(self, connection: Admitted, stage: Stage, address: str, drop: Callable[[], object]) -> Place:
        """Return a place for a connection. For the parameters and errors see ConnectionLimit.enter().

        Also raises Unavailable while the server stops.
        """
        self.require_running()
        self._connections[connection] = place = self.limit.enter(stage, address, drop)
        self._empty.clear()
        return place

    def replace(self, connection: Admitted, successor: Admitted, drop: Callable[[], object]) -> None:
        """Give a connection's place to another object, which serves the same client from now on."""
        place = self._connections.pop(connection)
        place.drop = drop
        self._connections[successor] = place
        if self._stopping:
            successor.shut_down()

    def forget(self, connection: Admitted) -> None:
        """Give the place of a connection back, if it has one. Later calls do nothing."""
        place = self._connections.pop(connection, None)
        if place is not None:
            place.leave()
            if not self._connections:
                self._empty.set()

    async def finish(self, timeout: float) -> bool:
        """Shut all connections down, and wait at most `timeout` seconds for their end. Return whether none is left."""
        self._stopping = True
        for connection in list(self._connections):
            connection.shut_down()
        try:
            async with asyncio.timeout(timeout):
                if self._connections:
                    await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def cut_off(self) -> None:
        """Abort the connections that are left."""
        for connection in list(self._connections):
            connection.abort("shutdown")


def client_of(transport: asyncio.BaseTransport) -> tuple[str, str]:
    """Return the client's address and port, or `unix`, and the address for Admission.enter()."""
    peer = transport.get_extra_info("peername")
    return (f"{peer[0]}:{peer[1]}", str(peer[0])) if isinstance(peer, tuple) else ("unix", LOCAL)
