# SPDX-License-Identifier: Apache-2.0
"""Images: OPTIONS, GET, HEAD, PUT and PATCH, in four steps: parse, authorise, connect, operate.

Parsing comes first, so that a request's own text is judged alike whoever sends it.
"""

from aiohttp import web

from ....errors import InvalidRequest, UnsupportedEncoding
from ....operations import operations
from ....storage.backend import BackendInfo
from ....storage.buffers import Buffers
from ....transfers.store import TransferStore
from ....transfers.ticket import Access, Ticket
from ..conditions import INSTANCE, Conditions
from ..headers import Flush, parse_choice, parse_content_range, parse_patch, parse_range
from ..messages import json_response, range_headers, whole_headers
from ..request import Body, attach, exchange_of, name_of, query_of, read_json, waits_for_continue
from ..routes import Resource
from ..stream import Stream

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

    async def options(self, request: web.Request) -> web.Response:
        """Tell what can be done with an image, or what the server can do."""
        if name_of(request) == ANY:
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

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Send the image or a range of it; to HEAD, all but the bytes."""
        wanted = parse_range(request.headers.get("range"))
        transfer = attach(self._store, request, Access.READ)
        size = await operations.size(transfer, part=request.method != "HEAD")
        conditions = Conditions(request.headers, transfer, size)
        if not conditions.range_counts:
            wanted = None
        offset, length = 0, size
        if wanted is None:
            headers = whole_headers(transfer.ticket)
        else:
            offset, length = wanted.resolve(size, transfer.ticket.size)
            headers = range_headers(transfer.ticket, offset, offset + length - 1, size)
        if wanted is None or conditions.asked:
            headers |= conditions.headers
        response = web.StreamResponse(status=200 if wanted is None else 206, headers=headers)
        response.content_length = length
        _close_if_wanted(request, response)
        if request.method == "HEAD":
            return response
        stream = Stream(request, response)
        await operations.read(transfer, self._buffers, offset, length, stream)
        return await stream.finish()

    async def put(self, request: web.Request) -> web.Response:
        """Write the body into the image."""
        flush = parse_choice(query_of(request), "flush", ("y", "n")) == "y"
        offset = parse_content_range(request.headers.get("content-range"))
        length = request.content_length
        if length is None and "transfer-encoding" not in request.headers:
            raise InvalidRequest("Content-Length is required")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise UnsupportedEncoding(
                "Content-Encoding is not served: the bytes of the body are the bytes of the image"
            )
        transfer = attach(self._store, request, Access.WRITE)
        await operations.write(transfer, self._buffers, offset, length, Body(request), flush=flush)
        response = web.Response()
        _close_if_wanted(request, response)
        return response

    async def patch(self, request: web.Request) -> web.Response:
        """Zero a range, or flush."""
        if waits_for_continue(request):
            self._store.authorize(name_of(request), Access.WRITE)
        todo = parse_patch(await read_json(request))
        transfer = attach(self._store, request, Access.WRITE)
        if isinstance(todo, Flush):
            await operations.flush(transfer)
        else:
            await operations.zero(
                transfer, todo.offset, todo.size, flush=todo.flush, fast_only=todo.fast, peer=exchange_of(request)
            )
        return web.Response()

    def _capabilities(self, *, writable: bool, flush: bool, image: dict[str, object]) -> web.Response:
        features = [*READ_FEATURES, *(each for each in WRITE_FEATURES if writable and (flush or each != "flush"))]
        answer: dict[str, object] = {"features": features, **image, "instance": INSTANCE}
        if self._unix_socket is not None:
            answer["unix_socket"] = self._unix_socket
        allow = READ_METHODS + (WRITE_METHODS if writable else ())
        return json_response(answer, {"Allow": ",".join(allow)})


def _zeroes_fast(ticket: Ticket, info: BackendInfo) -> bool:
    """Tell whether a PATCH with "fast" may succeed: true until one has failed, as only trying shows it."""
    return info.can_fast_zero if ticket.sparse else info.can_fast_allocate


def _stays_zero(ticket: Ticket, info: BackendInfo) -> bool:
    """Tell whether a client may leave zeros out: a hole is what the ticket wants, and all it covers is there."""
    return ticket.sparse and info.reads_zero and info.size >= ticket.size


def _close_if_wanted(request: web.Request, response: web.StreamResponse) -> None:
    if query_of(request).get("close") == "y":
        response.force_close()
