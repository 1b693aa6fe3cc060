# SPDX-License-Identifier: Apache-2.0
"""Requests to another server of the images API about one image: connections, time limits, and what refusals mean.

The url holds the other side's ticket id, a secret. So nothing that aiohttp or the other side says goes into a message:
both may quote the url.
"""

import asyncio
import errno
import re
import ssl
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import NamedTuple

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from ...errors import (
    Canceled,
    Error,
    Forbidden,
    ImageInUse,
    NotFound,
    OutOfRange,
    StorageError,
    Unanswered,
    Unavailable,
)
from ...units import KiB
from ...urls.http import HttpAddress
from ..backend import Operation

#: Seconds for TCP and TLS to be set up.
CONNECT_TIMEOUT = 10.0
#: Seconds for one piece of data, of at most 64 MiB, to be sent or received.
DATA_TIMEOUT = 60.0
#: Seconds that the other side may work before it answers, or between two pieces of a long answer.
ANSWER_TIMEOUT = 300.0
#: Idle connections are closed before the other side does it (60 s by default), so that no request meets a closing one.
KEEPALIVE = 15.0
#: Received and not yet taken, per connection; aiohttp stops reading at twice this.
RECEIVE_BUFFER = 512 * KiB
#: Bytes copied and given to the transport at once. A transport keeps what it is given until it is sent, which may be
#: after the request was cancelled, so it cannot have the buffer itself.
SEND_PIECE = 256 * KiB

#: Content-Range of an answer (RFC 9110 14.4). That of a request is read in frontends/http/headers.py, and in C.
_TOTAL = re.compile(r"bytes (?:[0-9]{1,19}-[0-9]{1,19}|\*)/([0-9]{1,19})")

#: The error numbers for the other side's codes of its storage (docs/images-api.md). The reason is in its log.
_FAULTS = {"storage_full": errno.ENOSPC, "storage_permission": errno.EACCES, "storage_gone": errno.ENODEV}


class HttpClient:
    """Send requests for one image. Used from any loop: each has at most max_connections of its own."""

    def __init__(self, address: HttpAddress, context: ssl.SSLContext, max_connections: int) -> None:
        self.address = address
        self._url = address.url
        self._context = context
        self._max_connections = max_connections
        self._lock = threading.Lock()
        self._closed = False
        self._sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}
        self._running: set[_Running] = set()

    @asynccontextmanager
    async def request(
        self,
        op: Operation,
        method: str,
        target: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        json: object = None,
        body: "Body | None" = None,
        timeout: float | None = ANSWER_TIMEOUT,
        finishes: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request for the image's url, target after it; the block reads the answer: 200, 204 or 206.

        timeout: seconds for all of it. finishes: the answer is waited for, also when the operation is cancelled.
        Raises Canceled, Forbidden, NotFound, OutOfRange, Unavailable, StorageError, Unanswered.
        """
        what = f"{method} {self.address}{target}"
        progress = _Progress()
        op.require_running()
        op.retain()
        try:
            async with self._interruptible(op, timeout, finishes=finishes):
                session = self._session()
                async with session.request(
                    method,
                    self._url + target,
                    headers=headers,
                    json=json,
                    data=body,
                    allow_redirects=False,
                    trace_request_ctx=progress,
                ) as response:
                    _require_success(response, what)
                    yield response
        except aiohttp.ConnectionTimeoutError:  # nothing was sent
            raise StorageError(errno.ETIMEDOUT, what, "http", "(connect)") from None
        except TimeoutError:
            if not finishes:
                op.require_running()
            if not progress.connected:  # it has waited for others
                raise StorageError(errno.ETIMEDOUT, what, "http", "(no connection became free)") from None
            raise Unanswered(errno.ETIMEDOUT, what, "http") from None
        except aiohttp.ClientError as e:
            raise _failure(e, what) from None
        finally:
            if body is not None:
                body.end()
            op.release()

    def interrupt(self) -> None:
        """End requests whose operation is cancelled, unless they finish. Thread-safe."""
        with self._lock:
            canceled = [running for running in self._running if running.op.canceled and not running.finishes]
        for running in canceled:
            running.loop.call_soon_threadsafe(self._expire, running)

    async def limit(self, max_connections: int) -> None:
        """Use no more connections than this from now on."""
        if max_connections < self._max_connections:
            self._max_connections = max_connections
            await self._close_sessions()

    async def close(self) -> None:
        """Close all connections. Requests after it raise Canceled."""
        with self._lock:
            self._closed = True
        await self._close_sessions()

    async def _close_sessions(self) -> None:
        """Close each session on its loop."""
        with self._lock:
            sessions, self._sessions = self._sessions, {}
        for loop, session in sessions.items():
            if loop is asyncio.get_running_loop():
                await session.close()
            else:
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(session.close(), loop))

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed:  # another loop has not heard yet that the transfer is cancelled
                raise Canceled
            session = self._sessions.get(loop)
            if session is None:
                session = self._sessions[loop] = self._new_session()
        return session

    def _new_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._context, limit=self._max_connections, keepalive_timeout=KEEPALIVE),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=ANSWER_TIMEOUT),
            headers={"Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=RECEIVE_BUFFER,
            trace_configs=[_tracing()],
        )

    @asynccontextmanager
    async def _interruptible(self, op: Operation, timeout: float | None, *, finishes: bool) -> AsyncIterator[None]:
        async with asyncio.timeout(timeout) as deadline:
            running = _Running(op, asyncio.get_running_loop(), deadline, finishes)
            with self._lock:
                self._running.add(running)
            try:
                yield
            finally:
                with self._lock:
                    self._running.discard(running)

    def _expire(self, running: "_Running") -> None:
        if running in self._running and not running.deadline.expired():
            running.deadline.reschedule(running.loop.time())


class _Progress:
    """How far a request has come."""

    #: It has a connection, so that some of it may have been sent.
    connected = False


def _tracing() -> aiohttp.TraceConfig:
    """Return what keeps the _Progress of each request."""

    async def connected(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
        context.trace_request_ctx.connected = True

    tracing = aiohttp.TraceConfig()
    tracing.on_connection_create_end.append(connected)
    tracing.on_connection_reuseconn.append(connected)
    return tracing


class _Running(NamedTuple):
    """A request that waits for the server."""

    op: Operation
    loop: asyncio.AbstractEventLoop
    deadline: asyncio.Timeout
    finishes: bool


class Body(aiohttp.Payload):
    """Send a view of a buffer as the body of a request. After end() the view is not read any more."""

    def __init__(self, view: memoryview) -> None:
        super().__init__(view, content_type="application/octet-stream")
        self._size = len(view)
        self._view: memoryview | None = view

    def end(self) -> None:
        """Let go of the view."""
        self._view = None

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Refuse: these are the bytes of an image."""
        raise TypeError("the body is not text")

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write all, a copied piece at a time."""
        for start in range(0, self._size or 0, SEND_PIECE):
            if self._view is None:
                return  # the request has ended, and with it the connection
            await writer.write(bytes(self._view[start : start + SEND_PIECE]))


def total_size(response: aiohttp.ClientResponse, what: str) -> int:
    """Return the size of the image that a Content-Range tells. Raises StorageError."""
    match = _TOTAL.fullmatch(response.headers.get("Content-Range", ""))
    if match is None:
        raise unexpected(what, "no valid Content-Range")
    return int(match[1])


def unexpected(what: str, why: str) -> StorageError:
    """Return the error for an answer that does not keep the protocol."""
    return StorageError(errno.EPROTO, what, "http", f"({why})")


def _require_success(response: aiohttp.ClientResponse, what: str) -> None:
    status = response.status
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise unexpected(what, "an encoded body")
    if status not in (200, 204, 206):
        raise _refusal(response, what)


async def receive(content: aiohttp.StreamReader, view: memoryview, what: str) -> None:
    """Fill the view with the body of an answer, which has as many bytes. what: the request. Raises StorageError."""
    filled = 0
    async for data, _ in content.iter_chunks():
        if filled + len(data) > len(view):
            raise unexpected(what, "more than was asked for")
        view[filled : filled + len(data)] = data
        filled += len(data)
    if filled < len(view):
        raise unexpected(what, "less than was asked for")


def _refusal(response: aiohttp.ClientResponse, what: str) -> Error:
    """Return what a status means to who asked us: the table in frontends/http/errors.py, read backwards."""
    status = response.status
    if status == 403:
        return Forbidden("You are not allowed to access this resource")
    if status == 404:
        return NotFound("The other server does not have this")
    if status == 409 and response.headers.get("X-Error-Code") == "image_in_use":
        return ImageInUse("another program has locked it on the other host")
    if status == 416:
        return OutOfRange("Requested range is outside of the image", total_size(response, what))
    if status == 503:
        return Unavailable("The other server has no room for the request now")
    code = _FAULTS.get(response.headers.get("X-Error-Code", ""), errno.EIO if status == 500 else errno.EPROTO)
    return StorageError(code, what, "http", f"(status {status})")


def _failure(error: aiohttp.ClientError, what: str) -> StorageError:
    """Return the failure of a connection, in our words."""
    if isinstance(error, aiohttp.ClientSSLError):
        return StorageError(errno.EPROTO, what, "tls", f"({type(error).__name__})")
    code = error.errno if isinstance(error, OSError) and error.errno else errno.ECONNRESET
    kind = StorageError if isinstance(error, aiohttp.ClientConnectorError) else Unanswered
    return kind(abs(code), what, "http", f"({type(error).__name__})")
