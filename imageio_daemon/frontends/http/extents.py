# SPDX-License-Identifier: Apache-2.0
"""`/images/{id}/extents`: what an image holds, as JSON that is written while it is found."""

from ... import operations
from ...errors import NotFound
from ...extents import Extent, ExtentList
from ...pipeline import ByteSink
from ...storage.base import Context
from ...tickets import Access
from ...transferstore import TransferStore
from ...units import KiB
from .headers import parse_choice
from .images import READ_METHODS, attach
from .messages import JSON, Request, Response, preflight
from .routes import Resource

#: Text collected before it is sent: about a thousand extents. A million of them never exist as text at once.
PIECE = 64 * KiB


class Extents:
    """Serve the extents of images."""

    def __init__(self, store: TransferStore) -> None:
        self._store = store

    def resource(self) -> Resource:
        """Return the resource `/images/{}/extents`."""
        return Resource({"OPTIONS": preflight(READ_METHODS), "GET": self.get}, READ_METHODS, READ_METHODS)

    async def get(self, request: Request) -> Response:
        """Send the list."""
        context = Context(parse_choice(request.query, "context", (Context.ZERO, Context.DIRTY)))
        transfer = attach(self._store, request, Access.READ)
        if context is Context.DIRTY and not transfer.ticket.dirty:
            raise NotFound("The ticket does not give dirty extents")

        async def stream(sink: ByteSink) -> None:
            writer = _Writer(sink, context)
            await operations.extents(transfer, context, writer.add)
            await writer.end()

        return Response(200, {"Content-Type": JSON}, stream=stream)


class _Writer:
    """Write a JSON array in pieces."""

    def __init__(self, sink: ByteSink, context: Context) -> None:
        self._sink = sink
        self._describe = _zero if context is Context.ZERO else _dirty
        self._text: list[str] = []
        self._size = 0
        self._separator = "["

    async def add(self, found: ExtentList) -> None:
        for extent in found:
            text = self._separator + self._describe(extent)
            self._separator = ", "
            self._text.append(text)
            self._size += len(text)
            if self._size >= PIECE:
                await self._send()

    async def end(self) -> None:
        self._text.append("[]" if self._separator == "[" else "]")
        await self._send()

    async def _send(self) -> None:
        data = "".join(self._text).encode()
        self._text.clear()
        self._size = 0
        await self._sink.write(memoryview(data))


# Not by json.dumps, which takes 5 µs instead of 0.6 for such an object of numbers and flags.


def _zero(extent: Extent) -> str:
    start, length, zero, hole, _ = extent
    return f'{{"start": {start}, "length": {length}, "zero": {_FLAG[zero]}, "hole": {_FLAG[hole]}}}'


def _dirty(extent: Extent) -> str:
    start, length, zero, _, dirty = extent
    return f'{{"start": {start}, "length": {length}, "dirty": {_FLAG[dirty]}, "zero": {_FLAG[zero]}}}'


_FLAG = ("false", "true")
