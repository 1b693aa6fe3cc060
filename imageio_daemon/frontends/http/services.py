# SPDX-License-Identifier: Apache-2.0
"""What the connections of one HTTP server share."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from ...net.connection_limit import LOCAL
from ...service.served import Served
from .admission import Admission
from .framing import Head
from .lane_service import LaneService


@dataclass(frozen=True)
class Services:
    """What the connections of one server share.

    inactivity_timeout: seconds for a connection that has used no ticket. make_handler: makes a handler of aiohttp.
    refusal: returns why aiohttp cannot answer a request. lanes: starts lanes for them; None: C serves none. served:
    counts what is served; names: of the services there, of clients of the network and of the unix socket. scratch:
    memory that sockets are read into, used only until the read was looked at.
    """

    inactivity_timeout: float
    admission: Admission
    make_handler: Callable[[], asyncio.Protocol]
    refusal: Callable[[Head], Exception | None]
    lanes: LaneService | None
    served: Served
    names: tuple[str, str]
    scratch: memoryview

    def service_of(self, address: str) -> str:
        """Return the name of the service that a client of this address came by."""
        return self.names[address == LOCAL]
