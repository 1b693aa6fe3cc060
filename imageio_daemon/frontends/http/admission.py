# SPDX-License-Identifier: Apache-2.0
"""The open connections of one HTTP server: each gets a place within the limit, and ends when the server stops."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from ...errors import STOPPING, Unavailable
from ...net.connection_limit import ConnectionLimit, Place, Stage

log = logging.getLogger(__name__)


class AdmittedConnection(Protocol):
    """What the admission needs of a connection."""

    def close_when_idle(self) -> None:
        """Finish the running request, then close."""
        ...

    def cut_off(self) -> None:
        """Cut the connection because the server ends, without waiting for a lane."""
        ...


class Admission:
    """Give places to connections. If it `trusts` clients (control socket), they keep their places without a ticket."""

    def __init__(self, limit: ConnectionLimit, *, trusts: bool) -> None:
        self._limit = limit
        self._trusts = trusts
        self._connections: set[AdmittedConnection] = set()
        self._empty = asyncio.Event()
        self._stopping = False

    @property
    def count(self) -> int:
        """Return how many connections are open."""
        return len(self._connections)

    def admit(self, connection: AdmittedConnection, address: str, drop: Callable[[], object]) -> Place:
        """Return a place for a connection. Raises TooManyConnections, or Unavailable while the server stops.

        `address` is the client's. `drop` is called to close the connection when another one needs its place.
        """
        if self._stopping:
            raise Unavailable(STOPPING)
        place = self._limit.enter(Stage.STRANGER, address, drop)
        if self._trusts:
            place.know(lambda: True)
        self._connections.add(connection)
        self._empty.clear()
        return place

    def refuse(self, address: str, drop: Callable[[], object]) -> Place:
        """Return a place for a refused connection, which needs it until its answer is sent. Does not fail."""
        return self._limit.enter(Stage.REFUSED, address, drop)

    def forget(self, connection: AdmittedConnection) -> None:
        """Forget a connection that is lost."""
        if connection in self._connections:
            self._connections.remove(connection)
            if not self._connections:
                self._empty.set()

    async def finish(self, timeout: float) -> bool:
        """Close idle connections, and wait at most `timeout` seconds for the others. Return whether none is left."""
        self._stopping = True
        for connection in list(self._connections):
            connection.close_when_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                if self._connections:
                    await self._empty.wait()
        return not self._connections

    async def stop(self, timeout: float) -> None:
        """Do as finish(), then cut the connections that are left, also if the task is cancelled while it waits."""
        try:
            if not await self.finish(timeout):
                log.warning("%d requests are cut off", len(self._connections))
        finally:
            for connection in list(self._connections):
                connection.cut_off()
