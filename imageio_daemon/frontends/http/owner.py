# SPDX-License-Identifier: Apache-2.0
"""What a connection needs of the server that it belongs to."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ...connectionlimit import ConnectionLimit, Place
from .express import Express
from .framing import Head
from .lending import Lending
from .routes import Routes

if TYPE_CHECKING:
    from .connection import Connection


class Owner(Protocol):
    """The server that a connection belongs to."""

    @property
    def inactivity_timeout(self) -> float:
        """Seconds for a connection that has not used a ticket."""
        ...

    @property
    def limit(self) -> ConnectionLimit:
        """Return what counts connections."""
        ...

    def admit(self, connection: "Connection", address: str, drop: Callable[[], object]) -> Place:
        """Return the place of a connection. Raises TooManyConnections, Unavailable."""
        ...

    def forget(self, connection: "Connection") -> None:
        """Count it no more."""
        ...

    def make_handler(self) -> asyncio.Protocol:
        """Return a handler of aiohttp."""
        ...

    def refusal(self, head: Head) -> Exception | None:
        """Return why a request cannot be handed on."""
        ...

    @property
    def routes(self) -> Routes:
        """Who answers requests."""
        ...

    @property
    def fast_lane(self) -> bool:
        """Tell whether requests may be served without aiohttp."""
        ...

    @property
    def express(self) -> Express | None:
        """Who takes short requests, if somebody does."""
        ...

    @property
    def lending(self) -> Lending | None:
        """Who lends connections to C, if somebody does."""
        ...

    @property
    def scratch(self) -> memoryview:
        """Memory to read the socket into when no handler waits; used only until the read was looked at."""
        ...
