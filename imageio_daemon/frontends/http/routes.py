# SPDX-License-Identifier: Apache-2.0
"""Which resource answers a request, and how its errors are answered. Shared by every lane and loop."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ... import logs
from ...errors import InvalidRequest, MethodNotAllowed, NotFound
from . import errors
from .cors import cors_headers
from .messages import Answer, Request, Response, Stream

log = logging.getLogger(__name__)

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

    async def serve(self, request: Request, answer: Answer) -> None:
        """Answer a request, completely; errors are answers too."""
        started = time.perf_counter()
        response = await self.answer(request)
        if response.stream is None or request.method == "HEAD":
            await answer.plain(response, close=_closes(request, response))
        else:
            response = await self._send(request, response, response.stream, answer)
        log_request(request.client.peer, request.method, request.resource, response.status, started)

    async def answer(self, request: Request) -> Response:
        """Return the answer to a request, of which a stream is still to be sent."""
        if found := self.find(request.path):
            request.resource, _, request.name = found
        try:
            response = await self.handler(request.path, request.method)(request)
        except Exception as e:  # noqa: BLE001 - the table of errors tells a bug from an error and logs it
            return self.failed(request, e)
        return _with_cors(response, request, found)

    async def _send(self, request: Request, response: Response, stream: Stream, answer: Answer) -> Response:
        """Send a stream; return the answer that the client got, or would have got if it had not begun before."""
        answer.expect(response, close=_closes(request, response))
        try:
            await stream(answer)
            await answer.finish()
        except asyncio.CancelledError:
            answer.cut()
            raise
        except Exception as e:  # noqa: BLE001 - the table of errors tells a bug from an error and logs it
            response = self.failed(request, e)
            if answer.started:
                answer.cut()  # never padded, never ended in order
            else:
                await answer.plain(response, close=_closes(request, response))
        return response

    def failed(self, request: Request, error: Exception) -> Response:
        """Return the answer to a request that failed."""
        return _with_cors(errors.answer(error, request.client.peer), request, self.find(request.path))


def requests_are_logged() -> bool:
    """Tell whether log_request() has anything to do."""
    return log.isEnabledFor(logging.DEBUG)


def log_request(client: str, method: str, resource: str, status: int, started: float) -> None:
    """Log a request that was answered. started: what time.perf_counter() said when it came."""
    if requests_are_logged():
        seconds = round(time.perf_counter() - started, 6)
        fields = logs.fields(client=client, method=method, resource=resource, status=status, seconds=seconds)
        log.debug("request", extra=fields)


def _closes(request: Request, response: Response) -> bool:
    """Tell whether the answer is the connection's last: it says so, the server stops, or the body was not read."""
    return response.close or request.client.must_close or not request.body.ended


def _with_cors(response: Response, request: Request, found: Match | None) -> Response:
    if found is not None and found.resource.cors is not None:
        response.headers.update(cors_headers(request.headers, ",".join(found.resource.cors)))
    return response
