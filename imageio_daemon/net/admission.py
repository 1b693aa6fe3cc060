# SPDX-License-Identifier: Apache-2.0
"""The connections of one server, with their places in the limit, until the server has stopped."""

import asyncio
from typing import Generic, TypeVar

from ..errors import STOPPING, Unavailable
from .connection_limit import ConnectionLimit, Place

_C = TypeVar("_C")


class Admission(Generic[_C]):
    """Keep the connections of one server, and their places. What ends them is the frontend's."""

    def __init__(self, limit: ConnectionLimit) -> None:
        self._limit = limit
        self._connections: dict[_C, Place] = {}
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

    def forget(self, connection: _C) -> None:
        """Give the place of a connection back, if it has one. Later calls do nothing."""
        place = self._connections.pop(connection, None)
        if place is not None:
            place.leave()
            if not self._connections:
                self._empty.set()

    def _keep(self, connection: _C, place: Place) -> Place:
        self._connections[connection] = place
        self._empty.clear()
        return place

    async def _until_empty(self, until: float) -> bool:
        """Wait until no connection is left, at most until this time of the loop. Tell whether none is."""
        try:
            async with asyncio.timeout_at(until):
                if self._connections:
                    await self._empty.wait()
        except TimeoutError:
            return False
        return True
