# SPDX-License-Identifier: Apache-2.0
"""Which resource answers a request.

aiohttp's router would give other answers: 404 in place of 400 to an empty ticket id, 403 in place of 400 to an escape
that is no UTF-8. It sorts `Allow`, and never sees a method that its parser does not know, of which we tell `Allow`.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from aiohttp import web

from ...errors import InvalidRequest, MethodNotAllowed, NotFound
from .headers import parse_target

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

#: In a request's match_info: the ticket id, or other name, in the path; and the path without it, for the log.
NAME = "name"
PATTERN = "pattern"


@dataclass(frozen=True)
class Resource:
    """One kind of resource. `cors`: the methods that a page of another origin may use; None: pages may not at all."""

    methods: Mapping[str, Handler]
    allow: tuple[str, ...]
    cors: tuple[str, ...] | None = None


class Match(NamedTuple):
    """A resource that was found: by which pattern, and the name in the path."""

    pattern: str
    resource: Resource
    name: str


class Routes:
    """Find resources by path. `{}` in a pattern stands for one segment, the request's name."""

    def __init__(self, resources: Mapping[str, Resource]) -> None:
        self._resources = [(pattern, pattern[1:].split("/"), resource) for pattern, resource in resources.items()]
        self._roots = frozenset(parts[0] for _, parts, _ in self._resources)
        self._methods = frozenset(method for resource in resources.values() for method in resource.methods)

    def find(self, path: list[str]) -> Match | None:
        """Return the resource of a path; the name is empty where the path has none."""
        for pattern, parts, resource in self._resources:
            if len(parts) == len(path) and all(p in ("{}", s) for p, s in zip(parts, path, strict=True)):
                return Match(pattern, resource, "".join(s for p, s in zip(parts, path, strict=True) if p == "{}"))
        return None

    def handler(self, path: list[str], method: str) -> Handler:
        """Return who answers. Raises NotFound, InvalidRequest, MethodNotAllowed.

        A method that no resource knows is not allowed anywhere below what there is, whatever else is wrong.
        """
        found = self.find(path)
        known = method in self._methods
        if found is None:
            if not known and path[0] in self._roots:
                raise MethodNotAllowed(method, ())
            raise NotFound("No such resource")
        if known and not found.name and "{}" in found.pattern:
            raise InvalidRequest("The ticket id in the path is empty")
        handler = found.resource.methods.get(method)
        if handler is None:
            raise MethodNotAllowed(method, found.resource.allow)
        return handler

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request: the one handler that aiohttp knows."""
        path, _ = parse_target(request.raw_path)
        if found := self.find(path):
            request.match_info[NAME] = found.name
            request.match_info[PATTERN] = found.pattern
        return await self.handler(path, request.method)(request)

    def cors(self, pattern: str) -> tuple[str, ...] | None:
        """Return the methods of a resource that a page of another origin may use; None: pages may not use it."""
        return next((resource.cors for found, _, resource in self._resources if found == pattern), None)


def preflight(methods: tuple[str, ...]) -> Handler:
    """Return a handler of OPTIONS that tells only which methods there are."""

    async def options(_: web.Request) -> web.Response:
        return web.Response(headers={"Allow": ",".join(methods)})

    return options
