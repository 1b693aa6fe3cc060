# SPDX-License-Identifier: Apache-2.0
"""The middleware around the handlers of aiohttp: it answers errors and adds the common header fields."""

import asyncio

from aiohttp import web
from aiohttp.http import HttpVersion11

from ...errors import PeerGone
from ...runtime import request_log
from .connection.sequence import RequestSequence
from .request import SentByLane, connection_of
from .responses import COMMON, SERVER, cors_headers
from .routes import PATTERN, Handler, Routes


class Answering:
    """Complete the answers of handlers."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    def install(self, app: web.Application) -> None:
        """Install the middleware and the signal handler in an application."""
        app.middlewares.append(self.answer)
        app.on_response_prepare.append(self.finish_head)

    @web.middleware
    async def answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request completely, so that aiohttp has nothing left to send. An error becomes an answer.

        Runs in aiohttp's task, which is cancelled when the connection is lost.
        """
        try:
            connection = connection_of(request)
        except PeerGone:
            return web.Response()  # nothing is sent: the connection is lost
        work = connection.exchange.begin(request.content.set_exception)
        response = await _response(request, handler, connection)
        connection.exchange.answered(response.status)
        await _send(request, response, connection)
        connection.exchange.worker = None
        if connection.carried_out:  # the lane records the request itself
            return response
        request_log.tell(
            work.seconds,
            work.waited,
            client=connection.exchange.peer,
            method=request.method,
            resource=request.match_info.get(PATTERN, ""),
            status=response.status,
        )
        return response

    async def finish_head(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add the common fields to a head. aiohttp calls this before it sends the head."""
        headers = response.headers
        # aiohttp leaves the length of a 204 out (RFC 9110 8.6), but clients of the control service wait for it.
        if response.status == 204:
            headers["Content-Length"] = "0"
        methods = self._routes.cors(request.match_info.get(PATTERN, ""))
        if methods is not None:
            headers.update(cors_headers(request.headers, ",".join(methods)))
        headers["Server"] = SERVER
        for name in [name for name in ("Content-Length", "Date", "Server") if name in headers]:
            headers[name] = headers.pop(name)  # to the end, as in the answers of lanes
        for name, value in COMMON.items():
            headers.setdefault(name, value)
        if _is_last(request, response):
            response.force_close()
            headers["Connection"] = "close"


async def _send(request: web.Request, response: web.StreamResponse, connection: RequestSequence) -> None:
    """Send the rest of an answer, and go on with the connection."""
    if isinstance(response, SentByLane):
        connection.answered(close=response.is_last)
        return
    try:
        await response.prepare(request)
        await response.write_eof()
        connection.answered(close=not response.keep_alive)
    except (ConnectionError, PeerGone):
        pass  # the connection is lost or was cut, and logs the reason itself


def _is_last(request: web.Request, response: web.StreamResponse) -> bool:
    """Return whether the connection closes after the answer.

    It does if it must close, if the request's body was not read, or if only the close marks the end of the answer,
    because HTTP/1.0 has no chunks.
    """
    connection = connection_of(request)
    endless = response.content_length is None and request.version < HttpVersion11
    unread = not connection.body_taken if connection.carried_out else not request.content.at_eof()
    return endless or connection.must_close or unread


async def _response(request: web.Request, handler: Handler, connection: RequestSequence) -> web.StreamResponse:
    try:
        return await handler(request)
    except asyncio.CancelledError:
        _cut_if_begun(request, connection)
        raise
    except Exception as e:  # noqa: BLE001 - the table of errors answers it, and logs a bug
        response = connection.error_answer(e)
        _cut_if_begun(request, connection)
        return response


def _cut_if_begun(request: web.Request, connection: RequestSequence) -> None:
    """Cut the connection if bytes of the answer were sent, so that the answer does not look complete."""
    if request.writer.output_size:
        connection.abort("cut")
