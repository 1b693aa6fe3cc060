# SPDX-License-Identifier: Apache-2.0
"""What the connections of one HTTP server share: their places, their end when the server stops, and other objects."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from ....net.admission import Admission
from ....net.connection_limit import LOCAL, ConnectionLimit, Place, Stage
from ....runtime.served import Served
from .framing import RequestHead
from .lane_service import LaneService

log = logging.getLogger(__name__)


class AdmittedHttp(Protocol):
    """What the admission needs of a connection."""

    def close_when_idle(self) -> None:
        """Finish the running request, then close."""
        ...

    def cut_off(self) -> None:
        """Cut the connection because the server ends, without waiting for a lane."""
        ...


class HttpAdmission(Admission[AdmittedHttp]):
    """Give places to connections. If it `trusts` clients (control socket), they keep their places without a ticket."""

    def __init__(self, limit: ConnectionLimit, *, trusts: bool) -> None:
        super().__init__(limit)
        self._trusts = trusts

    def admit(self, connection: AdmittedHttp, address: str, drop: Callable[[], object]) -> Place:
        """Return a place for a connection. Raises TooManyConnections, or Unavailable while the server stops.

        `address` is the client's. `drop` is called to close the connection when another one needs its place.
        """
        self.require_running()
        place = self._limit.enter(Stage.STRANGER, address, drop)
        if self._trusts:
            place.know(lambda: True)
        return self._keep(connection, place)

    def refuse(self, address: str, drop: Callable[[], object]) -> Place:
        """Return a place for a refused connection, which needs it until its answer is sent. Does not fail."""
        return self._limit.enter(Stage.REFUSED, address, drop)

    async def finish(self, timeout: float) -> bool:
        """Close idle connections, and wait at most `timeout` seconds for the others. Return whether none is left."""
        self._stopping = True
        for connection in list(self._connections):
            connection.close_when_idle()
        return await self._until_empty(asyncio.get_running_loop().time() + timeout)

    async def stop(self, timeout: float) -> None:
        """Do as finish(), then cut the connections that are left, also if the task is cancelled while it waits."""
        try:
            if not await self.finish(timeout):
                log.warning("%d requests are cut off", self.count)
        finally:
            for connection in list(self._connections):
                connection.cut_off()


@dataclass(frozen=True)
class HttpShared:
    """The objects that the connections of one server share.

    `inactivity_timeout` is for a connection that has used no ticket, in seconds. `make_handler` makes a handler of
    aiohttp. `direct` returns the answer or the error for a request that aiohttp cannot answer. `lanes` starts lanes, if
    the server has any. `served` counts requests and bytes by service, under `names`: first that for clients of the
    network, then that for clients of the unix socket. All sockets are read into `scratch`, whose content is used before
    the next read.
    """

    inactivity_timeout: float
    admission: HttpAdmission
    make_handler: Callable[[], asyncio.Protocol]
    direct: Callable[[RequestHead], web.Response | Exception | None]
    lanes: LaneService | None
    served: Served
    names: tuple[str, str]
    scratch: memoryview

    def service_of(self, address: str) -> str:
        """Return the name of the service for a client with this address."""
        return self.names[address == LOCAL]
