# SPDX-License-Identifier: Apache-2.0
"""A request for resources: its ticket, its query, its body and its connection, and how a lane carries it out.

A handler decides such a request. The lane moves the bytes of the image, and answers.
"""

from collections.abc import Mapping

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11

from ...errors import InvalidRequest, PeerGone, TooLarge
from ...lanes.http import DATE, Instruction
from ...operations import operations
from ...runtime.request_activity import Wait, waiting
from ...transfers.store import TransferStore
from ...transfers.ticket import Access
from ...transfers.transfer import Transfer
from ...units import KiB
from .conditions import require_none
from .connection.aiohttp_transport import CONNECTION
from .connection.exchange import Exchange
from .connection.sequence import RequestSequence
from .headers import MAX_JSON, parse_json, parse_target
from .responses import head_template
from .routes import NAME

#: Bytes of a body that aiohttp may hold. It stops reading at twice this number. With 64 TLS uploads at once, the daemon
#: needed at most 374 MiB of memory, and 405 MiB with 256 KiB, at the same speed.
READ_BUFFER = 64 * KiB

#: The methods that change an image.
_CHANGES = ("PUT", "PATCH")


def connection_of(request: web.BaseRequest) -> RequestSequence:
    """Return the connection of a request. Raises PeerGone if it is lost."""
    connection: RequestSequence | None = request.get_extra_info(CONNECTION)
    if connection is None:
        raise PeerGone("the connection was lost before its request was looked at")
    return connection


def exchange_of(request: web.BaseRequest) -> Exchange:
    """Return the exchange of a request's connection. Raises PeerGone if the connection is lost."""
    return connection_of(request).exchange


def attach(store: TransferStore, request: web.Request, access: Access) -> Transfer:
    """Return the transfer of a request, and let its connection use it.

    Raises Forbidden, TooManyConnections, and Changed if the condition of a change is not met.
    """
    transfer = store.authorize(name_of(request), access)
    exchange_of(request).use(transfer)
    if request.method in _CHANGES:
        require_none(request.headers)
    return transfer


def name_of(request: web.Request) -> str:
    """Return the ticket id in the path."""
    return request.match_info[NAME]


def query_of(request: web.Request) -> dict[str, str]:
    """Return the query parameters. If a key occurs twice, its last value counts."""
    return parse_target(request.raw_path)[1]


def waits_for_continue(request: web.Request) -> bool:
    """Return whether the client waits for 100 Continue before it sends its body (RFC 9110 10.1.1).

    This is ignored in HTTP/1.0, where a client does not know 100 Continue and would take it for the answer.
    """
    return request.version >= HttpVersion11 and request.headers.get("expect", "").lower() == "100-continue"


class RequestBody:
    """The body of a request, read once from its beginning. The first read sends 100 Continue to a client that waits."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        #: Whether the client still waits for 100 Continue.
        self.is_held = waits_for_continue(request)

    @property
    def ended(self) -> bool:
        """Return whether all of the body was read, or there is none."""
        return self._request.content.at_eof()

    def require_alive(self) -> None:
        """Raise PeerGone if the client is gone, so that its last bytes are not written."""
        exchange_of(self._request).require_alive()

    async def read(self) -> bytes:
        """Return the bytes that have come, at least one, or none at the end. Raises PeerGone, InvalidRequest."""
        exchange = exchange_of(self._request)
        exchange.want_body()
        if self.is_held and not self.ended:
            self.is_held = False
            exchange.send_continue()
        exchange.waiting_for_body(waiting=True)
        try:
            with waiting(Wait.CLIENT):
                return await self._request.content.readany()
        except web.RequestPayloadError:
            raise InvalidRequest("The request's body is malformed") from None
        except OSError as e:
            raise PeerGone("the connection was lost inside a request's body") from e
        finally:
            exchange.waiting_for_body(waiting=False)


async def read_json(request: web.Request, most: int = MAX_JSON) -> object:
    """Return the JSON document of a body of at most `most` bytes.

    Raises TooLarge, InvalidRequest, Truncated, PeerGone.
    """
    if (request.content_length or 0) > most:
        raise TooLarge(f"The body is larger than {most} bytes")
    body, data = RequestBody(request), bytearray()
    while not body.ended:
        data += await body.read()
        if len(data) > most:
            raise TooLarge(f"The body is larger than {most} bytes")
    return parse_json(bytes(data))


def unmodified(request: web.Request, headers: Mapping[str, str], *, close: bool = False) -> web.Response:
    """Return the answer for a client that has the image already (RFC 9110 15.4.5).

    `headers` has its tag. With `close`, the connection ends after the answer.
    """
    response = web.Response(status=304, headers=headers)
    if close or is_closing(request):
        response.force_close()
    return response


def close_if_wanted(request: web.Request, response: web.StreamResponse) -> None:
    """Close the connection after the answer if the query asks for it."""
    if is_closing(request):
        response.force_close()


def is_closing(request: web.Request) -> bool:
    """Return whether the query asks to close the connection after the answer."""
    return query_of(request).get("close") == "y"


class SentByLane(web.StreamResponse):
    """An answer that a lane has sent. If it `is_last`, the connection ends with it."""

    def __init__(self, status: int, *, is_last: bool) -> None:
        super().__init__(status=status)
        self.is_last = is_last

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Do nothing."""
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing."""


def answer_to(request: web.Request, status: int, headers: Mapping[str, str], length: int, *, is_last: bool) -> bytes:
    """Return the head that aiohttp would send with a body of `length` bytes. DATE is in place of the date."""
    minor = 1 if request.version >= HttpVersion11 else 0
    return head_template(status, headers, str(length), DATE, close=is_last, minor=minor)


async def carry_out(request: web.Request, transfer: Transfer, instruction: Instruction, *, is_last: bool) -> SentByLane:
    """Have a lane carry out a request for the image of a transfer. `is_last` is what its answer says.

    Raises OutOfRange, Forbidden, Canceled, Unavailable, Truncated, InvalidRequest, TooManyDecoders, StorageError. After
    an error or a cancellation, a part of a body may be written. If the connection breaks, or an error comes after the
    answer has begun, the connection is cut.
    """
    connection, packed = connection_of(request), instruction.packed
    access = Access.WRITE if instruction.writes else Access.READ
    offset, length = (instruction.offset, instruction.length or 0) if packed is None else (0, 0)
    async with operations.ready(transfer, access, offset, length):
        ended = await connection.hand_out(transfer, instruction)
    if packed is not None:
        packed.close()
    connection.take_back(instruction, await ended)
    return SentByLane(instruction.status, is_last=is_last)
