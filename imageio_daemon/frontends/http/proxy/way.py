# SPDX-License-Identifier: Apache-2.0
"""The connection to the other server that a client's connection has for one ticket.

The url has the other server's ticket id, a secret. aiohttp's texts may quote it, so none goes into a message.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace

import aiohttp
from aiohttp import AddrInfoType
from yarl import URL

from ....errors import Error, Unusable, WayGone, WaySilent
from ....storage.operation import Operation
from ....units import KiB
from ....urls.hosts import certified, told
from ....urls.http import HttpAddress
from .body import PassedBody, Waits

#: Most seconds for connecting by TCP and TLS.
CONNECT_TIMEOUT = 10.0
#: Most seconds without a byte, after the request was sent or between two pieces of a long answer. There is no limit
#: where the other server works before it answers: then the client's own timeout counts.
ANSWER_TIMEOUT = 300.0
#: Most seconds for the end of TLS and for the last bytes, when nobody waits for an answer any more.
CLOSE_TIMEOUT = 1.0
#: Seconds after which aiohttp closes an idle connection: never, because the other server or the client does it.
KEEPALIVE = 10 * 365 * 24 * 3600.0
#: Bytes of one connection that are received and not yet sent. aiohttp stops reading at twice this number. READ_BUFFER
#: is the same in the other direction.
RECEIVE_BUFFER = 64 * KiB

_closing: set["asyncio.Task[None]"] = set()


async def all_closed() -> None:
    """Wait until the connections of all closed ways have ended. The loop may end after that."""
    await asyncio.gather(*_closing)


class ProxiedAnswer:
    """An answer of the other server, whose body is read once. The case of names in `headers` does not matter."""

    def __init__(self, response: aiohttp.ClientResponse, waits: Waits) -> None:
        self._response = response
        self._waits = waits
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self.length = response.content_length

    @property
    def is_last(self) -> bool:
        """Return whether the other server closes the connection after this answer (RFC 9112 9.6)."""
        closes = "close" in self.headers.get("Connection", "").lower()
        return closes or self._response.version != aiohttp.HttpVersion11

    async def pieces(self) -> AsyncIterator[bytes]:
        """Return the body, piece by piece, as it arrives. Raises aiohttp.ClientError."""
        while True:
            self._waits.begin()
            data = await self._response.content.readany()
            self._waits.end()
            if not data:
                return
            yield data


def _abandon(response: aiohttp.ClientResponse) -> None:
    """Close the connection of an answer that has not ended, and drop what comes of it.

    An orderly end of TLS would wait up to 30 s for the other server, which meanwhile cannot send: nobody reads.
    """
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
    response.close()


class Way:
    """Send requests for one image, one after the other, on one connection. Use this on the loop that made it.

    When the connection has ended, requests raise WayGone, and the client's connection ends, too. So a client notices a
    restart of the other server, as it would if connected to it. It then knows that writes without a flush may be lost.
    """

    def __init__(self, address: HttpAddress, context: ssl.SSLContext) -> None:
        self.address = address
        #: Whether the connection had ended before the last request.
        self.lost = False
        #: The content codings that the other server knows, or None before it was asked.
        self.encodings: list[str] | None = None
        #: The field Accept of the next requests.
        self.accept = "*/*"
        self._connected = False
        self._reached = False  # whether the running request has reached the other server
        self._sockets: list[socket.socket] = []
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=context, limit=1, keepalive_timeout=KEEPALIVE, socket_factory=self._make_socket
            ),
            headers={"Host": told(address.host, address.port), "Accept-Encoding": "identity"},
            skip_auto_headers=("User-Agent",),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=RECEIVE_BUFFER,
            trace_configs=[self._tracing()],
        )

    def close(self) -> None:
        """Close the connection, and end a request that runs on it."""
        task = asyncio.get_running_loop().create_task(self._end())
        _closing.add(task)
        task.add_done_callback(_closing.discard)

    async def _end(self) -> None:
        """Close the connection. Drop the bytes that the other server does not read within CLOSE_TIMEOUT."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._session.close()
                await self._closed()
        for each in self._sockets:
            with contextlib.suppress(OSError):  # it is closed already
                each.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._closed()

    async def _closed(self) -> None:
        """Wait until asyncio has closed the sockets, of which it gives no notice."""
        while any(each.fileno() != -1 for each in self._sockets):  # noqa: ASYNC110 - there is nothing to wait for
            await asyncio.sleep(0.01)

    def _make_socket(self, address: AddrInfoType) -> socket.socket:
        """Make a socket for aiohttp. Keep it, because aiohttp forgets a closing connection that has unsent bytes."""
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        self._sockets.append(made)
        return made

    @asynccontextmanager
    async def request(
        self,
        op: Operation,
        method: str,
        target: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        json: object = None,
        body: PassedBody | None = None,
        works: bool = False,
    ) -> AsyncIterator[ProxiedAnswer]:
        """Send a request for the image's url with `target` appended. The block reads the answer.

        With `works`, the other server may work for any time before it answers. If the block ends with an error, or
        before the end of the answer, the connection is closed. Raises WayGone, WaySilent, Unusable, and what reading
        the body raises.
        """
        waits, response = Waits(op), None
        self._reached = False
        try:
            if body is None:
                waits.begin()
            else:
                body.waits = waits
            response = await self._session.request(
                method,
                URL(self.address.url_to_connect + target, encoded=True),
                headers={"Accept": self.accept} | dict(headers or {}),
                json=json,
                data=body,
                expect100=body is not None and body.is_expected,
                allow_redirects=False,
                server_hostname=certified(self.address.host),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=CONNECT_TIMEOUT, sock_read=None if works else ANSWER_TIMEOUT
                ),
            )
            waits.end()
            yield ProxiedAnswer(response, waits)
        except (aiohttp.ClientError, TimeoutError) as e:
            if body is not None and body.failure is not None:
                raise body.failure from None
            raise self._failure(e, f"{method} {self.address}") from None
        finally:
            waits.end()
            if response is not None:
                _abandon(response)

    def _failure(self, error: aiohttp.ClientError | TimeoutError, what: str) -> Error:
        """Return the error for a failure of the connection, without aiohttp's text."""
        why = type(error).__name__
        if isinstance(error, TimeoutError):
            return WaySilent(what, why)
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return Unusable("The certificate of the server that has the image is not trusted", what, "tls", f"({why})")
        number = error.errno if isinstance(error, OSError) else None
        return self.gone(f"{why} {errno.errorcode.get(number or 0, '')}")

    def gone(self, reason: str) -> WayGone:
        """Return the error for a server that is gone or breaks the protocol. `reason` is for the log."""
        return WayGone(str(self.address), reason)

    def _tracing(self) -> aiohttp.TraceConfig:
        """Return hooks that keep aiohttp from silently replacing a lost connection by a new one."""

        async def begins(_: aiohttp.ClientSession, __: SimpleNamespace, ___: object) -> None:
            self.lost = self._connected and not self._reached
            if self._connected:
                raise self.gone("it has closed the connection")

        async def connected(_: aiohttp.ClientSession, __: SimpleNamespace, ___: object) -> None:
            self._connected = self._reached = True

        tracing = aiohttp.TraceConfig()
        tracing.on_connection_create_start.append(begins)
        tracing.on_connection_create_end.append(connected)
        tracing.on_connection_reuseconn.append(connected)
        return tracing
