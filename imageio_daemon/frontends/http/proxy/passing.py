# SPDX-License-Identifier: Apache-2.0
"""Requests passed on to another server, each as an operation of its transfer, and the bytes that it answers."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple, Unpack

from aiohttp import web

from ....errors import Unusable, WayGone
from ....operations import operations
from ....storage.bucket import SMALL
from ....storage.operation import Kind, Operation
from ....transfers.ticket import Access
from ....transfers.transfer import OperationOptions, Transfer
from ..request import connection_of, exchange_of
from ..responses import JSON, AnswerStream, range_headers, whole_headers
from .passed_answers import names, options_of, passed, range_of, read_whole, require_known, tag_of
from .way import ProxiedAnswer, Way


class Passing:
    """Pass requests on to other servers, with this TLS context.

    Each method raises Forbidden, Canceled, WayGone, WaySilent, Unusable.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    @asynccontextmanager
    async def running(
        self,
        request: web.Request,
        transfer: Transfer,
        access: Access | None,
        offset: int = 0,
        length: int = 0,
        **options: Unpack[OperationOptions],
    ) -> AsyncIterator[tuple[Operation, Way]]:
        """Run the block as an operation of the transfer. It uses the Way that the client's connection has for it.

        If the connection to the other server has ended between two requests, the client's connection ends without an
        answer, as it would without this daemon between them. For the other parameters, see Transfer.track().
        """
        async with operations.tracked(transfer, access, offset, length, **options) as op:
            way = exchange_of(request).kept(transfer, lambda: self._way(transfer))
            way.accept = JSON if JSON in request.headers.get("accept", "").lower() else "*/*"
            try:
                yield op, way
            except WayGone:
                if way.lost:
                    connection_of(request).abort("server")
                raise

    def _way(self, transfer: Transfer) -> Way:
        address = transfer.ticket.http
        if address is None:
            raise RuntimeError("no other server has the image")
        return Way(address, self._context)

    async def ask(
        self,
        request: web.Request,
        transfer: Transfer,
        kind: Kind,
        method: str,
        target: str = "",
        *,
        json: object = None,
    ) -> web.Response:
        """Pass on a request without bytes of the image. The other server answers after it has carried it out."""
        async with self.running(request, transfer, None, kind=kind) as (op, way):
            await transfer.bucket.take(SMALL)
            async with way.request(op, method, target, json=json, works=True) as answer:
                return await passed(answer, way, transfer.ticket.size)

    async def size(self, request: web.Request, transfer: Transfer) -> int | web.Response:
        """Return the size of the image in bytes, or a refusal. Asks for the first byte, whose answer has the size."""
        async with (
            self.running(request, transfer, None, part=True) as (op, way),
            way.request(op, "GET", headers={"Range": "bytes=0-0"}) as answer,
        ):
            if answer.status < 300 or (answer.status == 416 and "Content-Range" in answer.headers):
                total = range_of(answer, way).total  # an empty image has no first byte
                await read_whole(answer, way)
                return total
            return await passed(answer, way, transfer.ticket.size)

    async def require_all(self, request: web.Request, transfer: Transfer) -> web.Response | None:
        """Raise Unusable if the image is larger than the ticket, because the answer would be about all of the image.

        Return a refusal of the other server, if there is one.
        """
        total = await self.size(request, transfer)
        if not isinstance(total, int):
            return total
        if total > transfer.ticket.size:
            why = "The ticket is smaller than the image, of which its server tells as a whole"
            raise Unusable(why, "pass on", transfer.ticket.shown_url)
        return None

    async def encodings(self, op: Operation, way: Way) -> list[str]:
        """Return the content codings that the other server knows. Asks it once on each connection."""
        if way.encodings is None:
            async with way.request(op, "OPTIONS") as answer:
                document = options_of(await read_whole(answer, way), way) if answer.status == 200 else {}
                way.encodings = names(document, "encodings", way)
        return way.encodings


class WantedRange(NamedTuple):
    """The bytes to ask the other server for, and the answer for the client.

    `offset` and `length` are in bytes, inside the ticket. `asked` is the Range to send, or None for the whole image.
    With `part` the client gets 206. With `or_whole` the other server may answer with the whole image instead.
    """

    offset: int
    length: int
    asked: str | None
    part: bool
    or_whole: bool

    @property
    def headers(self) -> dict[str, str]:
        """Return the fields of the request."""
        return {} if self.asked is None else {"Range": self.asked}


class ProxiedDownload:
    """Pass on one answer with bytes of an image. `op` gets the sent bytes as its progress."""

    def __init__(self, request: web.Request, transfer: Transfer, op: Operation, way: Way) -> None:
        self._request = request
        self._transfer = transfer
        self._op = op
        self._way = way
        self._length = 0

    async def pass_on(self, answer: ProxiedAnswer, wanted: WantedRange, *, close: bool) -> web.StreamResponse:
        """Send the answer, or for HEAD only return its head. With `close` it is the connection's last.

        Raises WayGone if the other server's answer is not what was asked for. If the client already has the head, this
        cuts the connection.
        """
        require_known(answer, self._way)
        response = self._part(answer, wanted) if answer.status == 206 else self._whole(answer, wanted)
        response.headers.update(tag_of(answer))
        response.content_length = self._length
        if close or answer.is_last:
            response.force_close()
        if self._request.method == "HEAD":
            return response
        return await self._stream(answer, response)

    def _part(self, answer: ProxiedAnswer, wanted: WantedRange) -> web.StreamResponse:
        """Return the head for a range, which may end at the end of the image (RFC 9110 14.1.2)."""
        first, last, total = range_of(answer, self._way)
        if wanted.asked is None or first != wanted.offset or last is None:
            raise self._way.gone("another range than was asked for")
        self._length = last - first + 1
        if not 0 < self._length <= wanted.length or answer.length not in (None, self._length):
            raise self._way.gone("another range than was asked for")
        ticket = self._transfer.ticket
        if not wanted.part:
            return web.StreamResponse(status=200, headers=whole_headers(ticket))
        return web.StreamResponse(status=206, headers=range_headers(ticket, first, last, min(total, ticket.size)))

    def _whole(self, answer: ProxiedAnswer, wanted: WantedRange) -> web.StreamResponse:
        ticket = self._transfer.ticket
        if answer.status != 200 or answer.length is None or not (wanted.asked is None or wanted.or_whole):
            raise self._way.gone("another range than was asked for")
        if answer.length > ticket.size:
            raise self._way.gone("more than the image had when its size was asked for")
        self._length = answer.length
        self._op.offset, self._op.length = 0, answer.length
        return web.StreamResponse(status=200, headers=whole_headers(ticket))

    async def _stream(self, answer: ProxiedAnswer, response: web.StreamResponse) -> web.StreamResponse:
        stream, sent = AnswerStream(self._request, response), 0
        async for data in answer.pieces():
            sent += len(data)
            if sent > self._length:
                raise self._way.gone("more than was asked for")
            await self._transfer.bucket.take(len(data))
            await stream.write(data)
            self._op.advance(len(data))
        if sent < self._length:
            raise self._way.gone("less than was asked for")
        return await stream.finish()
