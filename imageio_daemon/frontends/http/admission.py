# SPDX-License-Identifier: Apache-2.0
"""The connections of one server: whether there is a place for another one, and how they end with it."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from ...errors import Unavailable
from ...net.connection_limit import ConnectionLimit, Place, Stage

log = logging.getLogger(__name__)


class AdmittedConnection(Protocol):
    """A connection."""

    def close_when_idle(self) -> None:
        """Serve the request that runs, and no other."""
        ...

    def cut_off(self) -> None:
        """Cut it, as the server ends, even if a lane does not let go of it."""
        ...


class Admission:
    """Give places to connections, on one loop. trusts: every client is trusted, as on the control socket."""

    def __init__(self, limit: ConnectionLimit, *, trusts: bool) -> None:
        self._limit = limit
        self._trusts = trusts
        self._connections: set[AdmittedConnection] = set()
        self._empty = asyncio.Event()
        self._stopping = False

    @property
    def count(self) -> int:
        """Return how many connections are served now. May be asked in any thread."""
        return len(self._connections)

    def admit(self, connection: AdmittedConnection, address: str, drop: Callable[[], object]) -> Place:
        """Return the place of a connection. Raises TooManyConnections, Unavailable."""
        if self._stopping:
            raise Unavailable("The server is shutting down")
        place = self._limit.enter(Stage.STRANGER, address, drop)
        if self._trusts:
            place.know(lambda: True)
        self._connections.add(connection)
        self._empty.clear()
        return place

    def refuse(self, address: str, drop: Callable[[], object]) -> Place:
        """Return the place of a connection that is refused, until the answer was sent."""
        return self._limit.enter(Stage.REFUSED, address, drop)

    def forget(self, connection: AdmittedConnection) -> None:
        """Forget a connection that is lost."""
        if connection in self._connections:
            self._connections.remove(connection)
            if not self._connections:
                self._empty.set()

    async def stop(self, timeout: float) -> None:
        """Take no more requests, close idle connections, and wait at most timeout seconds for requests that run."""
        self._stopping = True
        for connection in list(self._connections):
            connection.close_when_idle()
        try:
            if self._connections:
                async with asyncio.timeout(timeout):
                    await self._empty.wait()
        except TimeoutError:
            log.warning("%d requests are cut off", len(self._connections))
        finally:
            for connection in list(self._connections):
                connection.cut_off()
