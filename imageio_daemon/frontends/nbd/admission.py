# SPDX-License-Identifier: Apache-2.0
"""The open connections of one NBD server: each gets a place within the limit, and ends when the server stops."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from ...net.admission import Admission
from ...net.connection_limit import Place, Stage

log = logging.getLogger(__name__)

#: Seconds that a stopping server gives clients in the negotiation, so that the reply to their next option has the
#: reason. The daemon's stop takes this much longer.
GRACE = 0.25


class AdmittedNbd(Protocol):
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


class NbdAdmission(Admission[AdmittedNbd]):
    """Give places to connections."""

    def admit(self, connection: AdmittedNbd, address: str) -> Place | None:
        """Return a place for a connection from the client's address, or None while the server stops."""
        if self._stopping:
            log.info("connection refused: the server stops")
            return None
        return self._keep(connection, self._limit.enter(Stage.SILENT, address, _dropper(connection)))

    def replace(self, connection: AdmittedNbd, session: AdmittedNbd) -> None:
        """Give a connection's place to its session, when the negotiation has ended."""
        place = self._connections.pop(connection)
        place.drop = _dropper(session)
        self._connections[session] = place
        if self._stopping:
            session.shut_down()

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
        if not await self._until_empty(until):
            log.debug("%d connections still open", self.count)


def _dropper(connection: AdmittedNbd) -> Callable[[], object]:
    """Return a function that aborts a connection in the next step of the loop, because another one needs its place."""
    loop = asyncio.get_running_loop()
    return lambda: loop.call_soon(connection.abort, "limit")
