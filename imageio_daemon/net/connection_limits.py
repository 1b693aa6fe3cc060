# SPDX-License-Identifier: Apache-2.0
"""The limits on connections of all services, from the configuration and the limit on open files of the process.

Whatever clients without a ticket do, descriptors are left for the control socket and for images.
"""

import logging
from typing import NamedTuple

from ..config.config import Config
from .connection_limit import CONNECTIONS_SHARE, ConnectionLimit

log = logging.getLogger(__name__)

#: Descriptors that are not for connections: logs, listening sockets, the event loop, the state directory. A daemon with
#: NBD and metrics that serves nobody has fewer than 64.
OWN = 64
#: Each listening socket may accept 1/BURST_SHARE of the descriptors at a time, before the connections have their
#: places.
BURST_SHARE = 32
#: The control socket has 1/CONTROL_SHARE of the descriptors without OWN.
CONTROL_SHARE = 16


class _Rooms(NamedTuple):
    """Descriptors for all connections of a service."""

    data: int  # for HTTP, and as many for NBD
    control: int


def _rooms(config: Config, descriptors: int) -> _Rooms:
    left = max(descriptors - OWN, 0)
    control = left // CONTROL_SHARE
    return _Rooms((left - control) // (2 if config.nbd.enable else 1), control)


class ConnectionLimits:
    """Limit the connections of HTTP, NBD and the control service, in a process that may have `descriptors` open files.

    `burst` is how many connections may be accepted before the earlier ones have their places.
    """

    def __init__(self, config: Config, descriptors: int) -> None:
        rooms = _rooms(config, descriptors)
        self.http = ConnectionLimit(config.daemon.max_total_connections, descriptors=rooms.data)
        self.nbd = ConnectionLimit(config.nbd.max_connections, descriptors=rooms.data)
        #: A separate limit, so that clients which take all places of the other services do not keep the manager out.
        self.control = ConnectionLimit(min(config.daemon.max_total_connections, max(rooms.control, 1)))
        if text := shortage(config, descriptors):
            log.warning("%s", text)

        self.burst = max(descriptors // BURST_SHARE, 1)

    def relieve(self) -> bool:
        """Close a connection without a ticket, because there are no descriptors. Return False if there is none."""
        return max(self.http, self.nbd, key=lambda limit: limit.strangers).relieve()


def shortage(config: Config, descriptors: int) -> str:
    """Return why the limit on open files allows fewer connections than are configured, or ""."""
    most = max(config.daemon.max_total_connections, config.nbd.max_connections if config.nbd.enable else 0)
    room = _rooms(config, descriptors).data
    enough = most * CONNECTIONS_SHARE
    if room >= enough:
        return ""
    needed = OWN + enough * (2 if config.nbd.enable else 1) * CONTROL_SHARE // (CONTROL_SHARE - 1) + CONTROL_SHARE
    places = min(most, room // CONNECTIONS_SHARE)
    return f"{descriptors} open files are enough for {places} connections, {needed} for all (LimitNOFILE= of the unit)"
