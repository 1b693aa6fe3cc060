# SPDX-License-Identifier: Apache-2.0
"""Images that another server of the images API has. The daemon parses and authorises each request, and passes it on.

The other server knows the image. The daemon checks the ticket: its rights, whether it is in force, and that no request
reaches past its size. If a request depends on the image's size, the daemon asks for the size first.
"""

from collections.abc import Mapping
from ssl import SSLContext
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from ....errors import InvalidRequest, NotFound, UnsupportedEncoding, Unusable
from ....image.extents_json import ExtentReader
from ....storage.backend import Context
from ....storage.bucket import SMALL
from ....storage.operation import Kind, ZeroMethod
from ....transfers.store import TransferStore
from ....transfers.ticket import Access
from ....transfers.transfer import FINALIZED, Transfer
from ....units import MAX_OFFSET
from ..errors import ENCODING
from ..headers import Flush, parse_choice, parse_patch, parse_range
from ..proxy.body import PassedBody
from ..proxy.passed_answers import options_of, passed, read_whole, require_known, tag_of, tells_range, translated
from ..proxy.passing import Passing, ProxiedDownload, WantedRange
from ..request import RequestBody, attach, close_if_wanted, exchange_of, is_closing, name_of, query_of, unmodified
from ..responses import JSON, AnswerStream, json_response, whole_headers
from ..routes import READ_METHODS, Handler, Resource
from .checksum import asks_list, names_range, parse_checksum
from .extents import ExtentWriter
from .finalize import parse_finalize
from .images import (
    READ_FEATURES,
    WRITE_METHODS,
    Images,
    Put,
    is_finalize,
    parse_put,
)
from .local import LocalService
from .reading import packs_qcow2

#: Fields that are passed on unchanged: conditions that only the other server can check (RFC 9110 13.1).
CONDITIONS = ("If-Match", "If-None-Match", "If-Range")
#: The fields among these that decide which bytes the answer has.
COMPARED = ("If-None-Match", "If-Range")


class Proxied:
    """Wrap the resources of images: serve tickets whose images another server has, and leave others to the resource.

    `images` reads the bodies of PATCH. `context` is for TLS to the other servers. `max_connections` is the largest
    number of connections that OPTIONS recommends. `local` makes the part of OPTIONS about the local service.
    """

    def __init__(
        self, store: TransferStore, images: Images, context: SSLContext, *, max_connections: int, local: LocalService
    ) -> None:
        self._store = store
        self._images = images
        self._passing = Passing(context)
        self._max_connections = max_connections
        self._local = local

    def images(self, own: Resource) -> Resource:
        """Return the resource `/images/{}`."""
        mine = {"OPTIONS": self.options, "GET": self.get, "HEAD": self.get, "PUT": self.put, "PATCH": self.patch}
        return self.around(own, mine)

    def around(self, own: Resource, mine: Mapping[str, Handler]) -> Resource:
        """Return a resource with the handlers `mine` for images that another server has."""

        def either(method: str, owns: Handler) -> Handler:
            passes = mine.get(method, owns)

            async def handler(request: web.Request) -> web.StreamResponse:
                transfer = self._store.get(name_of(request))
                proxied = transfer is not None and transfer.ticket.proxied
                return await (passes if proxied else owns)(request)

            return handler

        methods = {method: either(method, owns) for method, owns in own.methods.items()}
        return Resource(methods, own.allow, own.cors)

    # The image

    async def options(self, request: web.Request) -> web.Response:
        """Answer OPTIONS with the features of the other server, as far as the ticket here allows them."""
        transfer = attach(self._store, request, Access.READ)
        async with (
            self._passing.running(request, transfer, None) as (op, way),
            way.request(op, "OPTIONS") as answer,
        ):
            if answer.status != 200:
                return await passed(answer, way, transfer.ticket.size)
            require_known(answer, way)
            document = options_of(await read_whole(answer, way), way)
        told = translated(document, transfer.ticket, self._max_connections, READ_FEATURES, way)
        allow = READ_METHODS + (WRITE_METHODS if transfer.ticket.may(Access.WRITE) else ())
        there = answer.headers.get("Allow", ",".join(allow)).replace(" ", "").split(",")
        headers = {"Allow": ",".join(method for method in allow if method in there)}
        return json_response(told | self._local.told(request), headers, close=answer.is_last)

    async def get(self, request: web.Request) -> web.StreamResponse:
        """Answer GET with the image or a range of it, and HEAD with the same head, as the other server answers it.

        Raises InvalidRequest, OutOfRange, Forbidden, TooManyConnections, Canceled, PeerGone, WayGone, WaySilent,
        Unusable. An error after the first bytes of the body cuts the connection.
        """
        parse_range(request.headers.get("range"))
        if packs_qcow2(request):
            raise InvalidRequest("An image of another server is not sent as a qcow2 file")
        transfer = attach(self._store, request, Access.READ)
        conditions = {name: request.headers[name] for name in CONDITIONS if name in request.headers}
        wanted = await self._wanted(request, transfer, conditions)
        if not isinstance(wanted, WantedRange):
            return wanted
        async with (
            self._passing.running(request, transfer, Access.READ, wanted.offset, wanted.length) as (op, way),
            way.request(op, request.method, headers=wanted.headers | conditions) as answer,
        ):
            if answer.status == 304 and "If-None-Match" in conditions:
                return unmodified(request, tag_of(answer), close=answer.is_last)
            if answer.status not in (200, 206):
                return await passed(answer, way, transfer.ticket.size)
            download = ProxiedDownload(request, transfer, op, way)
            return await download.pass_on(answer, wanted, close=is_closing(request))

    async def _wanted(
        self, request: web.Request, transfer: Transfer, conditions: dict[str, str]
    ) -> WantedRange | web.StreamResponse:
        """Return the range to ask for, or the answer of a refusal. Asks for the size if the range depends on it."""
        wanted, size = parse_range(request.headers.get("range")), transfer.ticket.size
        condition = wanted is not None and "If-Range" in conditions
        larger = False
        if wanted is None or wanted.first is None or wanted.last is None or conditions.keys() & COMPARED:
            total = await self._passing.size(request, transfer)
            if not isinstance(total, int):
                return total
            larger, size = total > size, min(total, size)
        if larger:  # the other server's tag is not one of the part that the ticket allows
            wanted, condition = None if condition else wanted, False
            for name in COMPARED:
                conditions.pop(name, None)
        if wanted is not None:
            offset, length = wanted.resolve(size)
            return WantedRange(offset, length, f"bytes={offset}-{offset + length - 1}", part=True, or_whole=condition)
        if larger and size == 0:
            return web.Response(headers=whole_headers(transfer.ticket))
        return WantedRange(0, size, f"bytes=0-{size - 1}" if larger else None, part=False, or_whole=False)

    async def put(self, request: web.Request) -> web.Response:
        """Pass on a PUT, with its body unchanged. A coded body only goes to a server that says it knows the coding.

        Another one would write the coded bytes into the image. Raises InvalidRequest, UnsupportedEncoding, Truncated,
        OutOfRange, Forbidden, TooManyConnections, Canceled, PeerGone, WayGone, WaySilent, Unusable.
        """
        put = parse_put(request)
        transfer = attach(self._store, request, Access.WRITE)
        ticket = transfer.ticket
        ticket.require_range(put.offset, put.length or 0)
        async with self._passing.running(request, transfer, Access.WRITE, put.offset, put.length or 0) as (op, way):
            if put.encoded and ENCODING not in await self._passing.encodings(op, way):
                raise UnsupportedEncoding(f"The server that has the image does not know Content-Encoding {ENCODING}")
            source, most = RequestBody(request), MAX_OFFSET if put.encoded else ticket.size - put.offset
            source.require_alive()
            body = PassedBody(source, request.content_length, most, transfer, op, way.address, coded=put.encoded)
            target, headers = f"?flush={'y' if put.flush else 'n'}", _placed(put)
            async with way.request(op, "PUT", target, headers=headers, body=body) as answer:
                response = await passed(answer, way, ticket.size)
                if response.status < 300 and not body.ended:
                    raise way.gone("it has answered before the end of the body")
            if response.status < 300 and put.encoded:
                op.advance(put.length or 0)
        close_if_wanted(request, response)
        return response

    async def patch(self, request: web.Request) -> web.Response:
        """Pass on a zero, a flush or a finalize. Raises what Images.patch() raises, WayGone and WaySilent."""
        document = await self._images.read_patch(request)
        if is_finalize(document):
            return await self._finalize(request, document)
        todo = parse_patch(document)
        transfer = attach(self._store, request, Access.WRITE)
        if isinstance(todo, Flush):
            return await self._passing.ask(request, transfer, Kind.FLUSH, "PATCH", json={"op": "flush"})
        transfer.ticket.require_range(todo.offset, todo.size)
        asked: dict[str, object] = {"op": "zero", "offset": todo.offset, "size": todo.size, "flush": todo.flush}
        if todo.fast:
            asked["fast"] = True
        async with self._passing.running(request, transfer, Access.WRITE, todo.offset, todo.size, kind=Kind.ZERO) as (
            op,
            way,
        ):
            await transfer.bucket.take(SMALL)
            exchange_of(request).require_alive()
            async with way.request(op, "PATCH", json=asked, works=True) as answer:
                response = await passed(answer, way, transfer.ticket.size)
            if response.status < 300:
                transfer.traffic.zeroed(ZeroMethod.REMOTE, todo.size)
                op.advance(todo.size)
        return response

    async def _finalize(self, request: web.Request, document: dict[str, Any]) -> web.Response:
        parse_finalize(document)
        transfer = attach(self._store, request, Access.READ)
        transfer.ticket.require(Access.WRITE)
        refusal = await self._passing.require_all(request, transfer)
        response = refusal or await self._passing.ask(request, transfer, Kind.CHECKSUM, "PATCH", json=document)
        if response.status == 200:
            await self._finalized(transfer)
        return response

    async def _finalized(self, transfer: Transfer) -> None:
        """Note that the other server has finalized the image, and make the ticket read-only as it did."""
        transfer.kept_state[FINALIZED] = True
        transfer.permission.seal.close()
        await self._store.keep(transfer)

    # About the image

    async def get_extents(self, request: web.Request) -> web.StreamResponse:
        """Pass on the list of extents, up to the ticket's size, while it arrives. Raises as Extents.get()."""
        context = Context(parse_choice(query_of(request), "context", tuple(Context)))
        transfer = attach(self._store, request, Access.READ)
        if context is Context.DIRTY and not transfer.ticket.dirty:
            raise NotFound("The ticket does not give dirty extents")
        total = await self._passing.size(request, transfer)
        if not isinstance(total, int):
            return total
        async with (
            self._passing.running(request, transfer, None, kind=Kind.EXTENTS) as (op, way),
            way.request(op, "GET", f"/extents?context={context}") as answer,
        ):
            if answer.status != 200:
                return await passed(answer, way, transfer.ticket.size)
            require_known(answer, way)
            await transfer.bucket.take(SMALL)
            reader = ExtentReader(min(total, transfer.ticket.size), context, way.gone("invalid extents"))
            stream = AnswerStream(request, web.StreamResponse(headers={"Content-Type": JSON}))
            writer = ExtentWriter(stream, context)
            async for data in answer.pieces():
                await writer.add(reader.feed(data))
            reader.end()
            await writer.end()
            return await stream.finish()

    async def get_checksum(self, request: web.Request) -> web.Response:
        """Pass on a request for a checksum, which the other server computes."""
        query = query_of(request)
        wanted = parse_checksum(query)
        if asks_list(query):
            raise InvalidRequest("The digests of blocks are not passed on from another server")
        transfer = attach(self._store, request, Access.READ)
        transfer.ticket.require_range(wanted.offset, wanted.length or 0)
        if wanted.length is None and (refusal := await self._passing.require_all(request, transfer)) is not None:
            return refusal
        asked: dict[str, object] = {"algorithm": wanted.algorithm, "block_size": wanted.block_size}
        if names_range(query):
            asked["offset"] = wanted.offset
        if wanted.length is not None:
            asked["length"] = wanted.length
        target = f"/checksum?{urlencode(asked)}"
        response = await self._passing.ask(request, transfer, Kind.CHECKSUM, "GET", target)
        if response.status == 200 and names_range(query) and not tells_range(response, asked):
            why = "The server that has the image computes no checksums of parts of it"
            raise Unusable(why, "pass on", transfer.ticket.shown_url)
        return response

    async def get_finalize(self, request: web.Request) -> web.Response:
        """Pass on a request for the state of a finalize."""
        query_of(request)
        transfer = attach(self._store, request, Access.READ)
        return await self._passing.ask(request, transfer, Kind.STAT, "GET", "/finalize")


def _placed(put: Put) -> dict[str, str]:
    """Return the fields with the range to which the body of a PUT is written."""
    last = put.offset + put.length - 1 if put.length else "*"
    headers = {"Content-Range": f"bytes {put.offset}-{last}/*"}
    return headers | ({"Content-Encoding": ENCODING} if put.encoded else {})
