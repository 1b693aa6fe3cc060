# SPDX-License-Identifier: Apache-2.0
"""Requests that are passed on to another server. Each is an operation of its transfer."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from ....errors import Unusable, WayGone
from ....operations import operations
from ....storage.bucket import SMALL
from ....storage.operation import Kind, Operation
from ....transfers.ticket import Access
from ....transfers.transfer import Transfer
from ..request import connection_of, exchange_of
from ..responses import JSON
from .passed_answers import names, options_of, passed, range_of, read_whole
from .way import Way


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
        *,
        kind: Kind | None = None,
        part: bool = False,
    ) -> AsyncIterator[tuple[Operation, Way]]:
        """Run the block as an operation of the transfer. It uses the Way that the client's connection has for it.

        If the connection to the other server has ended between two requests, the client's connection ends without an
        answer, as it would without this daemon between them. For the other parameters, see operations.tracked().
        """
        async with operations.tracked(transfer, access, offset, length, kind=kind, part=part) as op:
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
