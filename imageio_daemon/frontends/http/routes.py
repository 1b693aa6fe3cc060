# SPDX-License-Identifier: Apache-2.0
"""Which resource answers a request, and how its errors are answered. Shared by every lane and loop."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import InvalidRequest, MethodNotAllowed, NotFound
from . import errors
from .cors import cors_headers
from .messages import Request, Response

Handler = Callable[[Request], Awaitable[Response]]


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
    """Find resources by path. `{}` in a pattern stands for one segment, the request's name, that is not empty."""

    def __init__(self, resources: Mapping[str, Resource]) -> None:
        self._resources = [(pattern, pattern[1:].split("/"), resource) for pattern, resource in resources.items()]

    def find(self, path: list[str]) -> Match:
        """Return the resource of a path. Raises NotFound, InvalidRequest."""
        for pattern, parts, resource in self._resources:
            if len(parts) == len(path) and all(p in ("{}", s) for p, s in zip(parts, path, strict=True)):
                names = [s for p, s in zip(parts, path, strict=True) if p == "{}"]
                if "" in names:
                    raise InvalidRequest("The ticket id in the path is empty")
                return Match(pattern, resource, "".join(names))
        raise NotFound("No such resource")

    def check_method(self, path: list[str], method: str) -> None:
        """Raise NotFound, InvalidRequest or MethodNotAllowed unless somebody answers."""
        _handler(self.find(path).resource, method)

    async def answer(self, request: Request) -> Response:
        """Answer a request; errors are answers too."""
        cors = None
        try:
            request.resource, resource, request.name = self.find(request.path)
            cors = resource.cors
            response = await _handler(resource, request.method)(request)
        except Exception as e:  # noqa: BLE001 - the table of errors tells a bug from an error and logs it
            response = errors.answer(e, request.client.peer)
        return _with_cors(response, request, cors)

    def failed(self, request: Request, error: Exception) -> Response:
        """Answer a request whose stream failed before its first byte."""
        cors = self.find(request.path).resource.cors
        return _with_cors(errors.answer(error, request.client.peer), request, cors)


def _handler(resource: Resource, method: str) -> Handler:
    handler = resource.methods.get(method)
    if handler is None:
        raise MethodNotAllowed(method, resource.allow)
    return handler


def _with_cors(response: Response, request: Request, cors: tuple[str, ...] | None) -> Response:
    if cors is not None:
        response.headers.update(cors_headers(request.headers, ",".join(cors)))
    return response
