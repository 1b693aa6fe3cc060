# SPDX-License-Identifier: Apache-2.0
"""The small resources of the control service: `/status`, `/drain`, `/events`, `/log` and `/limits`."""

from collections.abc import Mapping

from aiohttp import web

from ....errors import InvalidRequest
from ....runtime.audit_log import AuditLog
from ....runtime.logs import LEVELS, LogLevel
from ....runtime.sums import Served
from ....transfers.rate_limits import LimitChanges
from ....transfers.store import TransferStore
from ..request import exchange_of, query_of, read_json
from ..responses import JSON, json_response
from ..routes import Handler, Resource

#: Most digits of an event's number.
MAX_DIGITS = 18
#: Most seconds for a temporary level of the log.
MAX_SECONDS = 30 * 24 * 3600


class ControlResources:
    """Serve the counters, events and settings of the daemon, and change the settings that can change while it runs.

    `remote` says how clients reach the remote service: its `port`, and whether it has `tls` and the page, `ui`.
    """

    def __init__(
        self, store: TransferStore, served: Served, events: AuditLog, level: LogLevel, remote: Mapping[str, object]
    ) -> None:
        self._store = store
        self._served = served
        self._events = events
        self._level = level
        self._remote = remote

    def resources(self) -> Mapping[str, Resource]:
        """Return the resources by path."""
        return {
            "/status": _resource(GET=self.get_status),
            "/drain": _resource(GET=self.get_drain, PUT=self.put_drain),
            "/events": _resource(GET=self.get_events),
            "/log": _resource(GET=self.get_log, PUT=self.put_log),
            "/limits": _resource(GET=self.get_limits, PATCH=self.patch_limits),
        }

    async def get_status(self, _: web.Request) -> web.Response:
        """Answer with the present counters of each service, of lanes and of Python, and how to reach the daemon."""
        return json_response({"served": self._served.as_json(), "remote": self._remote})

    async def get_drain(self, _: web.Request) -> web.Response:
        """Answer with whether the daemon drains, and how many transfers are left."""
        drain = self._store.drain
        return json_response({"draining": drain is not None, "transfers": 0 if drain is None else drain.left()})

    async def put_drain(self, request: web.Request) -> web.Response:
        """Begin to drain, and answer as GET does. A repetition has no effect. The body is ignored."""
        self._store.begin_drain(exchange_of(request).caller)
        return await self.get_drain(request)

    async def get_events(self, request: web.Request) -> web.Response:
        """Answer with the kept events, oldest first; with ?after= only those with a larger number.

        Raises InvalidRequest.
        """
        after = query_of(request).get("after", "0")
        if not (after.isascii() and after.isdecimal() and len(after) <= MAX_DIGITS):
            raise InvalidRequest("Invalid request: 'after' is no number")
        lines = self._events.after(int(after))
        return web.Response(headers={"Content-Type": JSON}, body=f"[{', '.join(lines)}]".encode())

    async def get_log(self, _: web.Request) -> web.Response:
        """Answer with the level of the log."""
        return json_response(self._level.state())

    async def put_log(self, request: web.Request) -> web.Response:
        """Change the level, for some time or until the next change, and answer as GET does.

        Raises InvalidRequest, TooLarge, PeerGone.
        """
        level, seconds = _parse_level(await read_json(request))
        self._level.set(level, seconds)
        self._events.tell("log level set", exchange_of(request).caller, level=level, seconds=seconds)
        return await self.get_log(request)

    async def get_limits(self, _: web.Request) -> web.Response:
        """Answer with the limits in force."""
        limits = self._store.limits
        state = LimitChanges(limits.rate, limits.tenant_rate, self._store.at_work.most, limits.tenants or None)
        return json_response(state.as_json())

    async def patch_limits(self, request: web.Request) -> web.Response:
        """Change the limits that the body names, also for transfers that run, and answer as GET does.

        After an error, all are as before. Raises InvalidRequest, TooLarge, PeerGone.
        """
        changes = LimitChanges.from_json(await read_json(request))
        limits = self._store.limits
        if changes.tenants is not None:
            limits.change_tenants(changes.tenants)  # first, for it may refuse too many
        if changes.rate is not None:
            limits.set_rate(changes.rate)
        if changes.tenant_rate is not None:
            limits.set_tenant_rate(changes.tenant_rate)
        if changes.transfers is not None:
            self._store.at_work.most = changes.transfers
        self._events.tell("limits set", exchange_of(request).caller, **changes.as_json())
        return await self.get_limits(request)


def _resource(**methods: Handler) -> Resource:
    return Resource(methods, tuple(methods))


def _parse_level(data: object) -> tuple[str, int | None]:
    if not isinstance(data, dict):
        raise InvalidRequest("Invalid request: expected a JSON object")
    level, seconds = data.get("level"), data.get("seconds")
    if level not in LEVELS:
        raise InvalidRequest(f"Invalid request: 'level' must be one of {', '.join(LEVELS)}")
    if seconds is not None and (type(seconds) is not int or not 1 <= seconds <= MAX_SECONDS):
        raise InvalidRequest(f"Invalid request: 'seconds' must be an integer between 1 and {MAX_SECONDS}")
    return level, seconds
