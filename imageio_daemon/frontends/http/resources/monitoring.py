# SPDX-License-Identifier: Apache-2.0
"""`/metrics`, `/livez` and `/readyz`, for monitoring. None of them needs a ticket or shows a ticket id."""

from collections.abc import Mapping

from aiohttp import web

from ....lifecycle.health import Health
from ....lifecycle.metrics import CONTENT_TYPE, Exposition
from .. import errors
from ..request import query_of
from ..responses import TEXT
from ..routes import Resource


class Monitoring:
    """Serve metrics and health. If this `trusts` its clients, they may ask for fresh metrics at any rate."""

    def __init__(self, exposition: Exposition, health: Health, *, trusts: bool) -> None:
        self._exposition = exposition
        self._health = health
        self._trusts = trusts

    def resources(self) -> Mapping[str, Resource]:
        """Return the resources by path."""
        handlers = {"/metrics": self.metrics, "/livez": self.livez, "/readyz": self.readyz}
        return {path: Resource({"GET": handler}, ("GET",)) for path, handler in handlers.items()}

    async def metrics(self, _: web.Request) -> web.Response:
        """Answer GET with all metrics."""
        text = await self._exposition.text(fresh=self._trusts)
        return web.Response(headers={"Content-Type": CONTENT_TYPE}, body=text)

    async def livez(self, _: web.Request) -> web.Response:
        """Answer GET with 200, because the process answers."""
        return _answer(200, "ok\n")

    async def readyz(self, request: web.Request) -> web.Response:
        """Answer GET with 200 if the daemon serves, else with 503 and the reasons. With ?verbose, show each check."""
        checks = await self._health.checks()
        failed = {name: why for name, why in checks.items() if why}
        shown = checks if "verbose" in query_of(request) else failed
        lines = [f"{name}: {why or 'ok'}\n" for name, why in shown.items()]
        response = _answer(503 if failed else 200, "".join(lines) or "ok\n")
        if failed:
            response.headers[errors.CODE] = errors.NOT_READY
        return response


def _answer(status: int, text: str) -> web.Response:
    return web.Response(status=status, headers={"Content-Type": TEXT}, body=text.encode())
