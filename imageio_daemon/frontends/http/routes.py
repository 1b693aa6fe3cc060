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
        cors = None
        try:
            request.resource, resource, request.name = self.find(request.path)
            cors = resource.cors
            response = await _handler(resource, request.method)(request)
        except Exception as e:  # noqa: BLE001 - the table of errors tells a bug from an error and logs it
            response = errors.answer(e, request.client.peer)
        return _with_cors(response, request, cors)

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
        """Return the answer to a request whose stream failed."""
        cors = self.find(request.path).resource.cors
        return _with_cors(errors.answer(error, request.client.peer), request, cors)


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


def _handler(resource: Resource, method: str) -> Handler:
    handler = resource.methods.get(method)
    if handler is None:
        raise MethodNotAllowed(method, resource.allow)
    return handler


def _with_cors(response: Response, request: Request, cors: tuple[str, ...] | None) -> Response:
    if cors is not None:
        response.headers.update(cors_headers(request.headers, ",".join(cors)))
    return response
