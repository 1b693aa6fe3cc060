# SPDX-License-Identifier: Apache-2.0
"""The routes of the HTTP services: which resource answers a request.

aiohttp's router is not used, because it gives other answers. It answers an empty ticket id with 404 instead of 400, and
an escape that is not UTF-8 with 403 instead of 400. It sorts `Allow`. It never sees a method that aiohttp's parser does
not know, so it cannot send `Allow` for one.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from aiohttp import web

from ...errors import InvalidRequest, MethodNotAllowed, NotFound
from .headers import parse_target

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

#: Keys of a request's match_info: the name in the path, such as a ticket id, and the path's pattern, for the log.
NAME = "name"
PATTERN = "pattern"


#: Methods that aiohttp's parser knows. It answers any other method with 400, so the server answers those itself.
METHODS = frozenset(("OPTIONS", "GET", "HEAD", "PUT", "PATCH", "DELETE", "POST"))
#: The methods of resources that can only be read.
READ_METHODS = ("OPTIONS", "GET")


@dataclass(frozen=True)
class Resource:
    """One kind of resource: the handler of each method, and the methods in the Allow field of its answers.

    `cors` has the methods that pages of other origins may use, or is None.
    """

    methods: Mapping[str, Handler]
    allow: tuple[str, ...]
    cors: tuple[str, ...] | None = None


class Match(NamedTuple):
    """A resource whose pattern matches a path. `name` is the segment at `{}`, or ""."""

    pattern: str
    resource: Resource
    name: str


class Routes:
    """Find resources by path. `{}` in a pattern matches any one segment, the name."""

    def __init__(self, resources: Mapping[str, Resource]) -> None:
        self._resources = [(pattern, pattern[1:].split("/"), resource) for pattern, resource in resources.items()]
        self._roots = frozenset(parts[0] for _, parts, _ in self._resources)
        methods = (method for resource in resources.values() for method in resource.allow)
        #: The answer to `OPTIONS *`: the methods that any resource has, and OPTIONS itself.
        self.allow = tuple(dict.fromkeys(("OPTIONS", *methods)))
        self._methods = frozenset(method for resource in resources.values() for method in resource.methods)

    def find(self, path: list[str]) -> Match | None:
        """Return the first resource whose pattern matches the decoded segments, if there is one."""
        for pattern, parts, resource in self._resources:
            if len(parts) == len(path) and all(p in ("{}", s) for p, s in zip(parts, path, strict=True)):
                return Match(pattern, resource, "".join(s for p, s in zip(parts, path, strict=True) if p == "{}"))
        return None

    def handler(self, path: list[str], method: str) -> Handler:
        """Return the handler of a method for a path. Raises NotFound, InvalidRequest, MethodNotAllowed.

        A method that is not in METHODS always raises MethodNotAllowed. One that no resource has does so if the first
        segment is that of a resource, even if the path matches no pattern or has an empty ticket id.
        """
        found = self.find(path)
        known = method in self._methods
        if found is None:
            if method not in METHODS or (not known and path[0] in self._roots):
                raise MethodNotAllowed(method, ())
            raise NotFound("No such resource")
        if known and not found.name and "{}" in found.pattern:
            raise InvalidRequest("The ticket id in the path is empty")
        handler = found.resource.methods.get(method)
        if handler is None:
            raise MethodNotAllowed(method, found.resource.allow)
        return handler

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request, as the only handler in aiohttp's router. Raises what handler() and resources raise."""
        path, _ = parse_target(request.raw_path)
        if found := self.find(path):
            request.match_info[NAME] = found.name
            request.match_info[PATTERN] = found.pattern
        return await self.handler(path, request.method)(request)

    def cors(self, pattern: str) -> tuple[str, ...] | None:
        """Return the methods that pages of other origins may use on the resource of a pattern, if any."""
        return next((resource.cors for found, _, resource in self._resources if found == pattern), None)


async def preflight(_: web.Request) -> web.Response:
    """Answer OPTIONS with READ_METHODS in `Allow`, and nothing else."""
    return web.Response(headers={"Allow": ",".join(READ_METHODS)})


def readable(get: Handler) -> Resource:
    """Return a resource that only tells something, also to pages of other origins."""
    return Resource({"OPTIONS": preflight, "GET": get}, READ_METHODS, READ_METHODS)
