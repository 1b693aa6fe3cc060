# SPDX-License-Identifier: Apache-2.0
"""`/status` of the control service: counters of served requests and bytes, and how clients on the network come here."""

from collections.abc import Mapping

from aiohttp import web

from ....service.served import Served
from ..messages import json_response
from ..routes import Resource


class Status:
    """Serve the counters of each service, for lanes in C and for Python, and how the remote service is reached.

    remote: its `port`, whether it has `tls` and the page `ui`.
    """

    def __init__(self, served: Served, remote: Mapping[str, object]) -> None:
        self._served = served
        self._remote = remote

    def resource(self) -> Resource:
        """Return the resource `/status`."""
        return Resource({"GET": self.get}, ("GET",))

    async def get(self, _: web.Request) -> web.Response:
        """Answer GET with the counters at this moment."""
        return json_response({"served": self._served.as_json(), "remote": self._remote})
