# SPDX-License-Identifier: Apache-2.0
"""What resources read of a request: its ticket, its query, its body and its connection."""

from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http import HttpVersion11

from ...errors import InvalidRequest, PeerGone, TooLarge
from ...runtime.audit_log import Caller
from ...runtime.request_activity import Wait, waiting
from ...transfers.store import TransferStore
from ...transfers.ticket import Access
from ...transfers.transfer import Transfer
from ...units import KiB
from .aiohttp_transport import CONNECTION, ConnectionControl
from .exchange import Exchange
from .headers import MAX_JSON, parse_json, parse_target
from .routes import NAME

#: Bytes of a body that aiohttp may hold; it stops reading at twice as many. 64 TLS uploads at once: 256 KiB peaked at
#: 405 MiB RSS, this at 374, as fast.
READ_BUFFER = 64 * KiB


def connection_of(request: web.BaseRequest) -> ConnectionControl:
    """Return the connection that a request came on. Raises PeerGone: it is lost."""
    connection: ConnectionControl | None = request.get_extra_info(CONNECTION)
    if connection is None:
        raise PeerGone("the connection was lost before its request was looked at")
    return connection


def exchange_of(request: web.BaseRequest) -> Exchange:
    """Return the exchange of the connection that a request came on. Raises PeerGone: it is lost."""
    return connection_of(request).exchange


def caller_of(request: web.BaseRequest) -> Caller:
    """Return who has sent a request to the control service, for events. Raises PeerGone: the connection is lost."""
    return exchange_of(request).caller


def attach(store: TransferStore, request: web.Request, access: Access) -> Transfer:
    """Return the transfer of a request, which its connection now uses. Raises Forbidden, TooManyConnections."""
    transfer = store.authorize(name_of(request), access)
    exchange_of(request).use(transfer)
    return transfer


def name_of(request: web.Request) -> str:
    """Return the ticket id in the path."""
    return request.match_info[NAME]


def query_of(request: web.Request) -> dict[str, str]:
    """Return the query, of which the last of a key counts."""
    return parse_target(request.raw_path)[1]


def waits_for_continue(request: web.Request) -> bool:
    """Tell whether the client sends its body only when it is told to (RFC 9110 10.1.1).

    One of HTTP/1.0 does not know 100 Continue, and would take it for the answer: its expectation is ignored.
    """
    return request.version >= HttpVersion11 and request.headers.get("expect", "").lower() == "100-continue"


class RequestBody:
    """The body of a request, read once from its beginning. The first read tells a client that waits to send it."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._waits = waits_for_continue(request)

    @property
    def is_held(self) -> bool:
        """Tell whether the client holds it back until it is told to send it, which was not done yet."""
        return self._waits

    @property
    def ended(self) -> bool:
        """Tell whether all of it was read; true when there is none."""
        return self._request.content.at_eof()

    def require_alive(self) -> None:
        """Raise PeerGone if the client is gone: bytes of it that are still here are not written."""
        exchange_of(self._request).require_alive()

    async def readinto(self, view: memoryview) -> int:
        """Put at least one byte into the view and return how many; 0 at the end. Raises PeerGone, InvalidRequest."""
        # Asked for more than it may hold, aiohttp raises its limit to that.
        data = await self._next(lambda: self._request.content.read(min(len(view), READ_BUFFER)))
        view[: len(data)] = data
        return len(data)

    async def read(self) -> bytes:
        """Return the bytes that have come, at least one; none at the end. Raises PeerGone, InvalidRequest."""
        return await self._next(self._request.content.readany)

    async def _next(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        exchange = exchange_of(self._request)
        exchange.want_body()
        if self._waits and not self.ended:
            self._waits = False
            exchange.send_continue()
        exchange.waiting_for_body(waiting=True)
        try:
            with waiting(Wait.CLIENT):
                return await read()
        except web.RequestPayloadError:
            raise InvalidRequest("The request's body is malformed") from None
        except OSError as e:
            raise PeerGone("the connection was lost inside a request's body") from e
        finally:
            exchange.waiting_for_body(waiting=False)


async def read_json(request: web.Request, most: int = MAX_JSON) -> object:
    """Return the body's JSON document. most: bytes of it. Raises TooLarge, InvalidRequest, Truncated, PeerGone."""
    if (request.content_length or 0) > most:
        raise TooLarge(f"The body is larger than {most} bytes")
    body = RequestBody(request)
    view = memoryview(bytearray(most + 1))
    filled = 0
    while not body.ended:
        filled += await body.readinto(view[filled:])
        if filled > most:
            raise TooLarge(f"The body is larger than {most} bytes")
    return parse_json(bytes(view[:filled]))
