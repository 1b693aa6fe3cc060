# SPDX-License-Identifier: Apache-2.0
"""The objects that the connections of one HTTP server share."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from ....net.admission import Admission
from ....runtime.served import Served
from .framing import RequestHead
from .lane_service import LaneService


@dataclass(frozen=True)
class HttpShared:
    """The objects that the connections of one server share.

    `inactivity_timeout` is for a connection that has used no ticket, in seconds. If the server `trusts` its clients
    (control socket), they keep their places without a ticket. `make_handler` makes a handler of aiohttp. `direct`
    returns the answer or the error for a request that aiohttp cannot answer. `lanes` starts lanes, if the server has
    any. `served` counts requests and bytes by service, under `names`: first that for clients of the network, then that
    for clients of the unix socket. All sockets are read into `scratch`, whose content is used before the next read.
    """

    inactivity_timeout: float
    admission: Admission
    trusts: bool
    make_handler: Callable[[], asyncio.Protocol]
    direct: Callable[[RequestHead], web.Response | Exception | None]
    lanes: LaneService | None
    served: Served
    names: tuple[str, str]
    scratch: memoryview
