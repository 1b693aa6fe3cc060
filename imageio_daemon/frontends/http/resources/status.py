# SPDX-License-Identifier: Apache-2.0
"""The control service: what the daemon did."""

from aiohttp import web

from ....service.served import Served
from ..messages import json_response
from ..routes import Resource


class Status:
    """Tell what was served, by service and by who served it."""

    def __init__(self, served: Served) -> None:
        self._served = served

    def resource(self) -> Resource:
        """Return the resource `/status`."""
        return Resource({"GET": self.get}, ("GET",))

    async def get(self, _: web.Request) -> web.Response:
        """Show it as it is now."""
        return json_response({"served": self._served.counts()})
