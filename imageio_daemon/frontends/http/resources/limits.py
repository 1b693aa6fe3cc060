# SPDX-License-Identifier: Apache-2.0
"""`/limits` of the control service: the limits on what transfers take."""

from aiohttp import web

from ....service.events import Events
from ....transfers.limits import LimitChanges
from ....transfers.store import TransferStore
from ..messages import json_response
from ..request import caller_of, read_json
from ..routes import Resource


class LimitsResource:
    """Serve the limits of a store."""

    def __init__(self, store: TransferStore, events: Events) -> None:
        self._store = store
        self._events = events

    def resource(self) -> Resource:
        """Return the resource `/limits`."""
        methods = {"GET": self.get, "PATCH": self.patch}
        return Resource(methods, tuple(methods))

    async def get(self, _: web.Request) -> web.Response:
        """Answer GET with the limits in force."""
        return self._state()

    async def patch(self, request: web.Request) -> web.Response:
        """Change the limits that the body names, also for transfers that run, and answer as GET does.

        Raises InvalidRequest, TooLarge, PeerGone.
        """
        changes = LimitChanges.from_json(await read_json(request))
        limits = self._store.limits
        if changes.rate is not None:
            limits.set_rate(changes.rate)
        if changes.tenant_rate is not None:
            limits.set_tenant_rate(changes.tenant_rate)
        if changes.transfers is not None:
            self._store.at_work.most = changes.transfers
        self._events.tell("limits set", caller_of(request), **changes.as_json())
        return self._state()

    def _state(self) -> web.Response:
        limits = self._store.limits
        state = LimitChanges(limits.rate, limits.tenant_rate, self._store.at_work.most)
        return json_response(state.as_json())
