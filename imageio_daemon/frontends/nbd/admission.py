# SPDX-License-Identifier: Apache-2.0
"""The open connections of one NBD server: each gets a place within the limit, and ends when the server stops."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from ...errors import STOPPING, Unavailable
from ...net.connection_limit import ConnectionLimit, Place, Stage

log = logging.getLogger(__name__)

#: Seconds that a stopping server gives clients in the negotiation, so that the reply to their next option has the
#: reason. The daemon's stop takes this much longer.
GRACE = 0.25


class AdmittedConnection(Protocol):
    """A connection in its negotiation, or its session after that."""

    @property
    def negotiates(self) -> bool:
        """Tell whether the connection is still in the negotiation phase."""
        ...

    def shut_down(self) -> None:
        """Finish the running requests, refuse new ones, and close."""
        ...

    def abort(self, reason: str) -> None:
        """Close the connection now. `reason` is for the log."""
        ...


class Admission:
    """Give places to connections."""

    def __init__(self, limit: ConnectionLimit) -> None:
        self._limit = limit
        self._connections: dict[AdmittedConnection, Place] = {}
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

    def admit(self, connection: AdmittedConnection, address: str) -> Place | None:
        """Return a place for a connection from the client's address, or None while the server stops."""
        if self._stopping:
            log.info("connection refused: the server stops")
            return None
        place = self._limit.enter(Stage.SILENT, address, _dropper(connection))
        self._connections[connection] = place
        self._empty.clear()
        return place

    def replace(self, connection: AdmittedConnection, session: AdmittedConnection) -> None:
        """Give a connection's place to its session, when the negotiation has ended."""
        place = self._connections.pop(connection)
        place.drop = _dropper(session)
        self._connections[session] = place
        if self._stopping:
            session.shut_down()

    def forget(self, connection: AdmittedConnection) -> None:
        """Give the place of a connection back, if it has one. Later calls do nothing."""
        place = self._connections.pop(connection, None)
        if place is not None:
            place.leave()
            if not self._connections:
                self._empty.set()

    async def stop(self, timeout: float) -> None:
        """Refuse new requests, wait at most `timeout` seconds for running ones, and close all connections.

        Connections in the negotiation are closed after GRACE seconds.
        """
        self._stopping = True
        for connection in list(self._connections):
            connection.shut_down()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        await self._wait(min(deadline, loop.time() + GRACE))
        for connection in list(self._connections):
            if connection.negotiates:
                connection.abort("shutdown")
        await self._wait(deadline)
        for connection in list(self._connections):
            connection.abort("shutdown")

    async def _wait(self, until: float) -> None:
        try:
            async with asyncio.timeout_at(until):
                if self._connections:
                    await self._empty.wait()
        except TimeoutError:
            log.debug("%d connections still open", len(self._connections))


def _dropper(connection: AdmittedConnection) -> Callable[[], object]:
    """Return a function that aborts a connection in the next step of the loop, because another one needs its place."""
    loop = asyncio.get_running_loop()
    return lambda: loop.call_soon(connection.abort, "limit")
