# SPDX-License-Identifier: Apache-2.0
"""`/drain` of the control service: let the daemon end when the transfers that are in use have ended."""

from aiohttp import web

from ....transfers.store import TransferStore
from ..messages import json_response
from ..request import caller_of
from ..routes import Resource


class Draining:
    """Serve the drain of a store."""

    def __init__(self, store: TransferStore) -> None:
        self._store = store

    def resource(self) -> Resource:
        """Return the resource `/drain`."""
        methods = {"GET": self.get, "PUT": self.put}
        return Resource(methods, tuple(methods))

    async def get(self, _: web.Request) -> web.Response:
        """Answer GET with whether the daemon drains, and how many transfers go on."""
        return self._state()

    async def put(self, request: web.Request) -> web.Response:
        """Begin to drain, and answer as GET does. Repeating has no effect. The body is ignored."""
        self._store.begin_drain(caller_of(request))
        return self._state()

    def _state(self) -> web.Response:
        drain = self._store.drain
        return json_response({"draining": drain is not None, "transfers": 0 if drain is None else drain.left()})
