# SPDX-License-Identifier: Apache-2.0
"""The limits of all services, by the configuration and by the descriptors that the process may have.

So many connections can be open at a time that descriptors are left for the control socket and for images, whatever
clients without a ticket do.
"""

import logging
from typing import NamedTuple

from ..config.config import Config
from .connection_limit import CONNECTIONS_SHARE, ConnectionLimit

log = logging.getLogger(__name__)

#: Descriptors that are not for connections: logs, listening sockets, the event loop, the state directory. A daemon with
#: NBD and metrics that serves nobody has fewer than 64.
OWN = 64
#: One part of so many may be accepted at a time, by each listening socket, before the places of connections count.
BURST_SHARE = 32
#: Of the rest, the control socket has one part of so many.
CONTROL_SHARE = 16


class _Rooms(NamedTuple):
    """Descriptors of the connections of a service, together."""

    data: int  # of HTTP, and of NBD
    control: int


def _rooms(config: Config, descriptors: int) -> _Rooms:
    left = max(descriptors - OWN, 0)
    control = left // CONTROL_SHARE
    return _Rooms((left - control) // (2 if config.nbd.enable else 1), control)


class ConnectionLimits:
    """Limit the connections of HTTP, NBD and the control service. descriptors: that the process may have.

    burst: connections that may be accepted before the earlier ones have their places.
    """

    def __init__(self, config: Config, descriptors: int) -> None:
        rooms = _rooms(config, descriptors)
        self.http = ConnectionLimit(config.daemon.max_total_connections, descriptors=rooms.data)
        self.nbd = ConnectionLimit(config.nbd.max_connections, descriptors=rooms.data)
        #: One of its own: clients that take all places of the others must not keep out the manager of the host.
        self.control = ConnectionLimit(min(config.daemon.max_total_connections, max(rooms.control, 1)))
        if text := shortage(config, descriptors):
            log.warning("%s", text)

        self.burst = max(descriptors // BURST_SHARE, 1)

    def relieve(self) -> bool:
        """Close a connection without a ticket, because there are no descriptors. False: there is none."""
        return max(self.http, self.nbd, key=lambda limit: limit.strangers).relieve()


def shortage(config: Config, descriptors: int) -> str:
    """Return what a limit on open files keeps from being served; "": nothing."""
    most = max(config.daemon.max_total_connections, config.nbd.max_connections if config.nbd.enable else 0)
    room = _rooms(config, descriptors).data
    enough = most * CONNECTIONS_SHARE
    if room >= enough:
        return ""
    needed = OWN + enough * (2 if config.nbd.enable else 1) * CONTROL_SHARE // (CONTROL_SHARE - 1) + CONTROL_SHARE
    places = min(most, room // CONNECTIONS_SHARE)
    return f"{descriptors} open files are enough for {places} connections, {needed} for all (LimitNOFILE= of the unit)"
