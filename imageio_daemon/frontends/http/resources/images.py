# SPDX-License-Identifier: Apache-2.0
"""`/images/{id}`: OPTIONS, GET, HEAD, PUT and PATCH. Each has four steps: parse, authorise, connect, operate.

Parsing comes first, so that a malformed request gets the same answer with and without a valid ticket.
"""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeGuard

from aiohttp import web

from ....errors import InvalidRequest, TooLarge, UnsupportedEncoding
from ....lanes.http import Instruction
from ....operations import operations
from ....operations.packing import MAPS
from ....storage.backend import BackendInfo
from ....storage.buffers import BufferPool
from ....transfers.store import TransferStore
from ....transfers.ticket import Access, Ticket
from ....transfers.transfer import Transfer
from ..conditions import INSTANCE
from ..errors import ENCODING
from ..headers import (
    MAX_FINALIZE,
    MAX_JSON,
    Flush,
    parse_choice,
    parse_content_range,
    parse_encoded_range,
    parse_patch,
    parse_range,
)
from ..request import (
    answer_to,
    attach,
    carry_out,
    connection_of,
    exchange_of,
    is_closing,
    name_of,
    query_of,
    read_json,
    waits_for_continue,
)
from ..responses import cors_headers, json_response
from ..routes import READ_METHODS, Resource
from .local import LocalService
from .reading import Read, packs_qcow2

WRITE_METHODS = ("PUT", "PATCH")
CORS_METHODS = READ_METHODS + WRITE_METHODS

READ_FEATURES = ("checksum", "checksum_blocks", "checksum_range", "extents", "nbd", "qcow2")
WRITE_FEATURES = ("durable", "flush", "zero")

#: The name in `OPTIONS /images/*`, which asks for the features of the server.
ANY = "*"


class Put(NamedTuple):
    """The parameters of a PUT: the offset of its first byte, and the number of bytes of its content, if it is known.

    With `encoded`, the body is compressed with zstd.
    """

    offset: int
    length: int | None
    flush: bool
    encoded: bool


class Images:
    """Serve the images of a store's tickets.

    `finalize` answers a PATCH with the op finalize, and gets its JSON document. `max_connections` is the number of
    connections that OPTIONS recommends for one image. `local` makes the part of OPTIONS about the local service.
    """

    def __init__(
        self,
        store: TransferStore,
        buffers: BufferPool,
        finalize: Callable[[web.Request, dict[str, Any]], Awaitable[web.Response]],
        *,
        max_connections: int,
        local: LocalService,
    ) -> None:
        self._store = store
        self._buffers = buffers
        self._maps = BufferPool(MAPS)
        self._finalize = finalize
        self._max_connections = max_connections
        self._local = local

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
        """Answer OPTIONS with the features of an image or, for `*`, of the server.

        `*` needs no ticket. Raises Forbidden, TooManyConnections, Canceled, StorageError.
        """
        if name_of(request) == ANY:
            durable = self._store.keeps_records
            return self._capabilities(request, writable=True, flush=True, durable=durable, finalize=True, image={})
        transfer = attach(self._store, request, Access.READ)
        info = await operations.info(transfer)
        writable = transfer.permission.writable
        image: dict[str, object] = {
            "max_readers": self._max_connections,
            "max_writers": self._max_connections,
            "fast_zero": writable and _zeroes_fast(transfer.ticket, info),
            "zero_state": "zero" if await _stays_zero(transfer, info) else "unknown",
        }
        if (most := _most_size(transfer.ticket, info, writable=writable)) is not None:
            image["max_size"] = most
        if writable and (available := await operations.available(transfer)) is not None:
            image["available"] = available
        if transfer.permission.seal.closed:
            image["finalized"] = True
        durable = transfer.record is not None
        finalize = transfer.ticket.may(Access.WRITE) and info.can_flush
        return self._capabilities(
            request, writable=writable, flush=info.can_flush, durable=durable, finalize=finalize, image=image
        )

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Answer GET with the image or a range of it, and HEAD with the same head (RFC 9110 9.3.1, 9.3.2, 14.2).

        With `format=qcow2` in the query, the answer is a qcow2 file of the image. A client that has the same content
        already, and sends its tag, gets 304.

        Raises InvalidRequest, OutOfRange, Changed, Forbidden, TooManyConnections, Canceled, StorageError, Unavailable.
        An error after the first bytes of the body cuts the connection, so the client gets less than Content-Length.
        """
        wanted, packs = parse_range(request.headers.get("range")), packs_qcow2(request)
        transfer = attach(self._store, request, Access.READ)
        read = Read(request, transfer, wanted, _for_pages(request))
        return await (read.packed(self._maps) if packs else read.raw())

    async def put(self, request: web.Request) -> web.StreamResponse:
        """Write the body into the image at the first byte of Content-Range, by default at 0 (RFC 9110 14.5).

        With `Content-Encoding: zstd` the body is one frame (RFC 8878), whose content is written. At the answer, the
        bytes are on stable storage, unless the query has `flush=n`. After an error or a cancellation, a part of the
        body may be written. Raises InvalidRequest, UnsupportedEncoding, Truncated, OutOfRange, Changed, Forbidden,
        TooManyConnections, Canceled, StorageError, Unavailable.
        """
        put = parse_put(request)
        transfer = attach(self._store, request, Access.WRITE)
        is_last = is_closing(request) or connection_of(request).must_close
        todo = Instruction(
            True,
            put.offset,
            put.length,
            200,
            answer_to(request, 200, _for_pages(request), 0, is_last=is_last),
            body=request.content_length,
            encoded=put.encoded,
            flush=put.flush,
            expects=waits_for_continue(request) and request.content_length != 0,
        )
        return await carry_out(request, transfer, todo, is_last=is_last)

    async def patch(self, request: web.Request) -> web.Response:
        """Zero a range, flush, or finalize, as the JSON document in the body says.

        A request with `Expect: 100-continue`, or with a long body, is authorised before its body is read. Raises
        InvalidRequest, TooLarge, NotFast, OutOfRange, InUse, Changed, Forbidden, TooManyConnections, Canceled,
        PeerGone, StorageError.
        """
        document = await self.read_patch(request)
        if is_finalize(document):
            return await self._finalize(request, document)
        todo = parse_patch(document)
        transfer = attach(self._store, request, Access.WRITE)
        if isinstance(todo, Flush):
            await operations.flush(transfer)
        else:
            await operations.zero(
                transfer,
                todo.offset,
                todo.size,
                flush=todo.flush,
                fast_only=todo.fast,
                before=exchange_of(request).require_alive,
            )
        return web.Response()

    async def read_patch(self, request: web.Request) -> object:
        """Return the JSON document of a PATCH. Reads a long one only for a ticket that may write."""
        length = request.content_length or 0
        if not waits_for_continue(request) and length <= MAX_JSON:
            return await read_json(request)
        transfer = self._store.authorize(name_of(request), Access.READ)
        transfer.ticket.require(Access.WRITE)
        if length <= MAX_JSON:
            return await read_json(request)
        wanted, seconds = min(length, MAX_FINALIZE), transfer.ticket.inactivity_timeout
        async with self._buffers.lease(transfer, wanted, seconds, most=1):  # so that this memory counts
            document = await read_json(request, MAX_FINALIZE)
        if not is_finalize(document):
            raise TooLarge(f"The body is larger than {MAX_JSON} bytes")
        return document

    def _capabilities(
        self,
        request: web.Request,
        *,
        writable: bool,
        flush: bool,
        durable: bool,
        finalize: bool,
        image: dict[str, object],
    ) -> web.Response:
        missing = {name for name, there in (("flush", flush), ("durable", durable)) if not there}
        features = [*READ_FEATURES, *(each for each in WRITE_FEATURES if writable and each not in missing)]
        if finalize:
            features.append("finalize")
        answer: dict[str, object] = {"features": features, **image, "instance": INSTANCE}
        if writable:
            answer["encodings"] = [ENCODING]
        answer |= self._local.told(request)
        allow = READ_METHODS + (WRITE_METHODS if writable else ())
        return json_response(answer, {"Allow": ",".join(allow)})


def _for_pages(request: web.Request) -> dict[str, str]:
    """Return the fields of an answer that pages of other origins need."""
    return cors_headers(request.headers, ",".join(CORS_METHODS))


def parse_put(request: web.Request) -> Put:
    """Return the parameters in the head of a PUT. Raises InvalidRequest, UnsupportedEncoding."""
    flush = parse_choice(query_of(request), "flush", ("y", "n")) == "y"
    content_range = request.headers.get("content-range")
    offset, length = parse_content_range(content_range), request.content_length
    if length is None and "transfer-encoding" not in request.headers:
        raise InvalidRequest("Content-Length is required")
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding == ENCODING:
        offset, length = parse_encoded_range(content_range)
    elif encoding != "identity":
        raise UnsupportedEncoding(f"Unsupported Content-Encoding, supported: {ENCODING}")
    return Put(offset, length, flush, encoding == ENCODING)


def is_finalize(document: object) -> TypeGuard[dict[str, Any]]:
    """Return whether the JSON document of a PATCH asks for a finalize."""
    return isinstance(document, dict) and document.get("op") == "finalize"


def _zeroes_fast(ticket: Ticket, info: BackendInfo) -> bool:
    """Return whether a PATCH with "fast" may succeed. This is true until the storage has refused such a request."""
    return info.can_fast_zero if ticket.sparse else info.can_fast_allocate


async def _stays_zero(transfer: Transfer, info: BackendInfo) -> bool:
    """Return whether a client may leave out zeros: the ticket is sparse, and its whole size already reads as zeros.

    An image that other programs may use at the same time can change, so for it this is false.
    """
    ticket = transfer.ticket
    fits = ticket.sparse and not ticket.shared and info.size >= ticket.size
    return fits and await operations.reads_zero(transfer)


def _most_size(ticket: Ticket, info: BackendInfo, *, writable: bool) -> int | None:
    """Return how many bytes the image may have with this ticket, or None if only the storage limits it."""
    if not (writable and info.can_grow):
        return min(ticket.size, info.size)
    return ticket.size if ticket.declared_size is None else None
