# SPDX-License-Identifier: Apache-2.0
"""The aiohttp lane: aiohttp's requests and answers on one side, ours on the other."""

from collections.abc import Awaitable

from aiohttp import ClientError, StreamReader, web

from ...errors import InvalidRequest, PeerGone
from .connection import Connection
from .gate import CONNECTION
from .headers import parse_number, parse_target
from .messages import SAFE, SERVER, WRITE_PIECE, Request, Response
from .routes import Routes


class Adapter:
    """Serve the answers of resources through aiohttp."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request of aiohttp, completely: aiohttp has nothing left to write.

        Runs in aiohttp's task, which is cancelled when the connection is lost.
        """
        connection: Connection | None = request.get_extra_info(CONNECTION)
        if connection is None:
            return web.Response()  # the client has gone; there is nowhere to send it
        connection.begin(request.content.set_exception)
        answer = _Answer(request, connection)
        await self._routes.serve(self._translate(request, connection), answer)
        return answer.response

    def _translate(self, request: web.BaseRequest, connection: Connection) -> Request:
        # The connection has refused what these cannot parse.
        path, query = parse_target(request.raw_path)
        length = request.headers.get("content-length")
        chunked = "transfer-encoding" in request.headers
        ours = Request(
            method=request.method,
            path=path,
            query=query,
            headers=request.headers,
            length=None if length is None else parse_number(length, "Content-Length"),
            chunked=chunked,
            body=_NO_BODY,
            client=connection,
        )
        if chunked or ours.length:
            ours.body = _Body(request.content, connection, ours.length, waits=ours.waits_for_continue)
        return ours


class _NoBody:
    ended = True

    async def readinto(self, view: memoryview) -> int:
        return 0


_NO_BODY = _NoBody()


class _Body:
    """A request's body: copies what aiohttp has received."""

    def __init__(self, content: StreamReader, connection: Connection, length: int | None, *, waits: bool) -> None:
        self.ended = False
        self._content = content
        self._connection = connection
        self._left = length
        self._waits = waits
        self._piece = memoryview(b"")

    async def readinto(self, view: memoryview) -> int:
        if not self._piece and not self.ended:
            self._piece = memoryview(await self._receive())
            if not self._piece:
                self.ended = True
        count = min(len(view), len(self._piece))
        view[:count] = self._piece[:count]
        self._piece = self._piece[count:]
        if self._left is not None:
            self._left -= count
            self.ended = self.ended or self._left == 0
        return count

    async def _receive(self) -> bytes:
        if self._waits:
            self._waits = False
            self._connection.send_continue()
        self._connection.waiting_for_body(waiting=True)
        try:
            return await self._content.readany()
        except web.RequestPayloadError:
            raise InvalidRequest("The request's body is malformed") from None
        except (ConnectionError, ClientError) as e:
            raise PeerGone("the connection was lost inside a request's body") from e
        finally:
            self._connection.waiting_for_body(waiting=False)


class _Answer:
    """An answer. When nobody knows the length of its body, the first piece waits for the second: one piece has one."""

    def __init__(self, request: web.BaseRequest, connection: Connection) -> None:
        self.response: web.StreamResponse = web.Response()
        self.started = False
        self._request = request
        self._connection = connection
        self._first: bytes | None = None

    async def plain(self, response: Response, *, close: bool) -> None:
        self.response = web.Response(status=response.status, headers=response.headers, body=response.body)
        if response.stream is not None and response.length is not None:
            self.response.headers["Content-Length"] = str(response.length)  # of the body that HEAD leaves out
        self._finish_head(close=close)
        await self._complete()

    def expect(self, response: Response, *, close: bool) -> None:
        self.response = web.StreamResponse(status=response.status, headers=response.headers)
        self.response.content_length = response.content_length
        self._finish_head(close=close)

    async def write(self, view: memoryview) -> None:
        """Send the bytes. They are copied: a transport keeps references to what it has not sent yet."""
        if self.response.content_length is None and self._first is None:
            self._first = bytes(view)
            return
        await self._start()
        await self._send(view)

    async def finish(self) -> None:
        if not self.started and self.response.content_length is None:
            self.response.content_length = len(self._first or b"")
        await self._start()
        await self._complete()

    def cut(self) -> None:
        self._connection.abort("cut")

    def _finish_head(self, *, close: bool) -> None:
        self.response.headers["Server"] = SERVER
        self.response.headers.update(SAFE)
        if close:
            self.response.force_close()

    async def _start(self) -> None:
        if not self.started:
            self.started = True
            await _to_peer(self.response.prepare(self._request))
            if self._first:
                await self._send(memoryview(self._first))
                self._first = b""

    async def _send(self, view: memoryview) -> None:
        for start in range(0, len(view), WRITE_PIECE):
            await _to_peer(self.response.write(bytes(view[start : start + WRITE_PIECE])))

    async def _complete(self) -> None:
        try:
            await self.response.prepare(self._request)
            await self.response.write_eof()
        except (ConnectionError, ClientError):
            return  # the client has gone; the connection says so in the log
        self._connection.answered(close=not self.response.keep_alive)


async def _to_peer(written: Awaitable[object]) -> None:
    try:
        await written
    except (ConnectionError, ClientError) as e:
        raise PeerGone("the connection was lost inside an answer") from e
