# SPDX-License-Identifier: Apache-2.0
"""`/log` of the control service: the level of the log."""

from aiohttp import web

from ....errors import InvalidRequest
from ....service.events import Events
from ....service.log_level import LEVELS, LogLevel
from ..messages import json_response
from ..request import caller_of, read_json
from ..routes import Resource

#: The longest time for another level, in seconds.
MAX_SECONDS = 30 * 24 * 3600


class LogResource:
    """Serve the level of the log."""

    def __init__(self, level: LogLevel, events: Events) -> None:
        self._level = level
        self._events = events

    def resource(self) -> Resource:
        """Return the resource `/log`."""
        methods = {"GET": self.get, "PUT": self.put}
        return Resource(methods, tuple(methods))

    async def get(self, _: web.Request) -> web.Response:
        """Answer GET with the level."""
        return json_response(self._level.state())

    async def put(self, request: web.Request) -> web.Response:
        """Change the level, for a time or until the next change, and answer as GET does.

        Raises InvalidRequest, TooLarge, PeerGone.
        """
        level, seconds = _parse(await read_json(request))
        self._level.set(level, seconds)
        self._events.tell("log level set", caller_of(request), level=level, seconds=seconds)
        return json_response(self._level.state())


def _parse(data: object) -> tuple[str, int | None]:
    if not isinstance(data, dict):
        raise InvalidRequest("Invalid request: expected a JSON object")
    level, seconds = data.get("level"), data.get("seconds")
    if level not in LEVELS:
        raise InvalidRequest(f"Invalid request: 'level' must be one of {', '.join(LEVELS)}")
    if seconds is not None and (type(seconds) is not int or not 1 <= seconds <= MAX_SECONDS):
        raise InvalidRequest(f"Invalid request: 'seconds' must be an integer between 1 and {MAX_SECONDS}")
    return level, seconds
