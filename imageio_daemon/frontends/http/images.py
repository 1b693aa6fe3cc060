# SPDX-License-Identifier: Apache-2.0
"""Images: OPTIONS, GET, HEAD, PUT and PATCH, in four steps: parse, authorise, connect, operate.

Parsing comes first, so that a request's own text is judged alike whoever sends it.
"""

import json

from ... import operations
from ...buffers import Buffers
from ...errors import InvalidRequest, UnsupportedEncoding
from ...pipeline import ByteSink
from ...storage.base import BackendInfo
from ...tickets import Access, Ticket
from ...transfers import Transfer
from ...transferstore import TransferStore
from .conditions import INSTANCE, Conditions
from .headers import Flush, parse_choice, parse_content_range, parse_patch, parse_range
from .messages import BYTES, JSON, Request, Response
from .routes import Resource

READ_METHODS = ("OPTIONS", "GET")
WRITE_METHODS = ("PUT", "PATCH")
CORS_METHODS = READ_METHODS + WRITE_METHODS

READ_FEATURES = ("checksum", "extents")
WRITE_FEATURES = ("flush", "zero")

#: The name of no image: what the server can do at all.
ANY = "*"


class Images:
    """Serve the images of a store's tickets.

    max_connections: how many connections a client is told to use for one image; unix_socket: the local service's
    address, if it runs.
    """

    def __init__(
        self, store: TransferStore, buffers: Buffers, *, max_connections: int, unix_socket: str | None
    ) -> None:
        self._store = store
        self._buffers = buffers
        self._max_connections = max_connections
        self._unix_socket = unix_socket

    def resource(self) -> Resource:
        """Return the resource `/images/{}`."""
        methods = {
            "OPTIONS": self.options,
            "GET": self.get,
            "HEAD": self.get,
            "PUT": self.put,
            "PATCH": self.patch,
        }
        return Resource(methods, READ_METHODS + WRITE_METHODS, CORS_METHODS)

    async def options(self, request: Request) -> Response:
        """Tell what can be done with an image, or what the server can do."""
        if request.name == ANY:
            return self._capabilities(writable=True, flush=True, image={})
        transfer = attach(self._store, request, Access.READ)
        info = await operations.info(transfer)
        writable = transfer.ticket.may(Access.WRITE)
        image: dict[str, object] = {
            "max_readers": info.max_readers or self._max_connections,
            "max_writers": info.max_writers or self._max_connections,
            "fast_zero": writable and _zeroes_fast(transfer.ticket, info),
            "zero_state": "zero" if _stays_zero(transfer.ticket, info) else "unknown",
        }
        return self._capabilities(writable=writable, flush=info.can_flush, image=image)

    async def get(self, request: Request) -> Response:
        """Send the image or a range of it; to HEAD, all but the bytes."""
        wanted = parse_range(request.headers.get("range"))
        transfer = attach(self._store, request, Access.READ)
        size = await operations.size(transfer, part=request.method != "HEAD")
        conditions = Conditions(request.headers, transfer, size)
        if not conditions.range_counts:
            wanted = None
        offset, length = 0, size
        if wanted is None:
            headers = _headers(transfer.ticket)
        else:
            offset, length = wanted.resolve(size, transfer.ticket.size)
            headers = partial_headers(transfer.ticket, offset, length, size)
        if wanted is None or conditions.asked:
            headers |= conditions.headers

        async def stream(sink: ByteSink) -> None:
            await operations.read(transfer, self._buffers, offset, length, sink)

        status = 200 if wanted is None else 206
        return Response(status, headers, stream=stream, length=length, close=_wants_close(request))

    async def put(self, request: Request) -> Response:
        """Write the body into the image."""
        flush = parse_choice(request.query, "flush", ("y", "n")) == "y"
        offset = parse_content_range(request.headers.get("content-range"))
        if request.length is None and not request.chunked:
            raise InvalidRequest("Content-Length is required")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise UnsupportedEncoding(
                "Content-Encoding is not served: the bytes of the body are the bytes of the image"
            )
        transfer = attach(self._store, request, Access.WRITE)
        await operations.write(transfer, self._buffers, offset, request.length, request.body, flush=flush)
        return Response(close=_wants_close(request))

    async def patch(self, request: Request) -> Response:
        """Zero a range, or flush."""
        if request.waits_for_continue:
            self._store.authorize(request.name, Access.WRITE)
        todo = parse_patch(await request.read_json())
        transfer = attach(self._store, request, Access.WRITE)
        if isinstance(todo, Flush):
            await operations.flush(transfer)
        else:
            await operations.zero(transfer, todo.offset, todo.size, flush=todo.flush, fast_only=todo.fast)
        return Response()

    def _capabilities(self, *, writable: bool, flush: bool, image: dict[str, object]) -> Response:
        features = [*READ_FEATURES, *(each for each in WRITE_FEATURES if writable and (flush or each != "flush"))]
        answer: dict[str, object] = {"features": features, **image, "instance": INSTANCE}
        if self._unix_socket is not None:
            answer["unix_socket"] = self._unix_socket
        allow = READ_METHODS + (WRITE_METHODS if writable else ())
        return Response(200, {"Content-Type": JSON, "Allow": ",".join(allow)}, json.dumps(answer).encode())


def attach(store: TransferStore, request: Request, access: Access) -> Transfer:
    """Return the transfer of a request, which its connection now uses. Raises Forbidden, TooManyConnections."""
    transfer = store.authorize(request.name, access)
    request.client.use(transfer)
    return transfer


def _zeroes_fast(ticket: Ticket, info: BackendInfo) -> bool:
    """Tell whether a PATCH with "fast" may succeed: nobody knows without trying, so it is true until one has failed."""
    return info.can_fast_zero if ticket.sparse else info.can_fast_allocate


def _stays_zero(ticket: Ticket, info: BackendInfo) -> bool:
    """Tell whether a client may leave zeros out: a hole is what the ticket wants, and all it covers is there."""
    return ticket.sparse and info.reads_zero and info.size >= ticket.size


def partial_headers(ticket: Ticket, offset: int, length: int, size: int) -> dict[str, str]:
    """Return the header fields of an answer that is a range of an image of so many bytes."""
    return range_headers(ticket, str(offset), str(offset + length - 1), size)


def range_headers(ticket: Ticket, first: str, last: str, size: int) -> dict[str, str]:
    """Return the same with whatever stands for the first and the last byte."""
    return {**_headers(ticket), "Content-Range": f"bytes {first}-{last}/{size}"}


def _headers(ticket: Ticket) -> dict[str, str]:
    return {
        "Accept-Ranges": "bytes",
        "Content-Type": BYTES,
        "Content-Disposition": _disposition(ticket.filename),
    }


def _disposition(filename: str | None) -> str:
    return "attachment" if filename is None else f"attachment; filename={filename}"


def _wants_close(request: Request) -> bool:
    return request.query.get("close") == "y"
