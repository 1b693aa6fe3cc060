# SPDX-License-Identifier: Apache-2.0
"""`/status` of the control service: counters of served requests and bytes."""

from aiohttp import web

from ....service.served import Served
from ..messages import json_response
from ..routes import Resource


class Status:
    """Serve the counters of each service, for lanes in C and for Python."""

    def __init__(self, served: Served) -> None:
        self._served = served

    def resource(self) -> Resource:
        """Return the resource `/status`."""
        return Resource({"GET": self.get}, ("GET",))

    async def get(self, _: web.Request) -> web.Response:
        """Answer GET with the counters at this moment."""
        return json_response({"served": self._served.as_json()})
