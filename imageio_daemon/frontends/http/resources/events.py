# SPDX-License-Identifier: Apache-2.0
"""`/events` of the control service: what was changed through it, and by whom."""

from aiohttp import web

from ....errors import InvalidRequest
from ....service.events import Events
from ..messages import JSON
from ..request import query_of
from ..routes import Resource

#: The most digits of a number.
MAX_DIGITS = 18


class EventLog:
    """Serve the audit log."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def resource(self) -> Resource:
        """Return the resource `/events`."""
        return Resource({"GET": self.get}, ("GET",))

    async def get(self, request: web.Request) -> web.Response:
        """Answer GET with the events that are kept, oldest first. ?after: those with a larger number.

        Raises InvalidRequest.
        """
        after = query_of(request).get("after", "0")
        if not (after.isascii() and after.isdecimal() and len(after) <= MAX_DIGITS):
            raise InvalidRequest("Invalid request: 'after' is no number")
        lines = self._events.after(int(after))
        return web.Response(headers={"Content-Type": JSON}, body=f"[{', '.join(lines)}]".encode())
