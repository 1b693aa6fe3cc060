# SPDX-License-Identifier: Apache-2.0
"""GET and HEAD of an image: the raw image or a qcow2 file of it, whole or a range."""

from collections.abc import Mapping

from aiohttp import web

from ....lanes.http import Instruction
from ....operations import operations
from ....operations.packing import packed
from ....storage.buffers import BufferPool
from ....storage.packed import PackedDisk
from ....transfers.transfer import Transfer
from ..conditions import Conditions
from ..headers import ByteRange, parse_choice
from ..request import answer_to, carry_out, close_if_wanted, connection_of, is_closing, query_of, unmodified
from ..responses import range_headers, whole_headers

RAW, QCOW2 = "raw", "qcow2"


def packs_qcow2(request: web.Request) -> bool:
    """Return whether the query asks for a qcow2 file. Raises InvalidRequest if it asks for another format."""
    return parse_choice(query_of(request), "format", (RAW, QCOW2)) == QCOW2


class Read:
    """An authorised GET or HEAD of a range, or of all if that is None. `pages` are fields for pages of other origins.

    For the exceptions, see Images.get().
    """

    def __init__(
        self, request: web.Request, transfer: Transfer, wanted: ByteRange | None, pages: Mapping[str, str]
    ) -> None:
        self._request = request
        self._transfer = transfer
        self._wanted = wanted
        self._pages = pages
        self._moves = request.method != "HEAD"

    async def raw(self) -> web.StreamResponse:
        """Answer with the image."""
        size = await operations.size(self._transfer, part=self._moves)
        return await self._answer(size, Conditions(self._request.headers, self._transfer, size))

    async def packed(self, maps: BufferPool) -> web.StreamResponse:
        """Answer with a qcow2 file of the image. `maps` has the memory for its map."""
        async with packed(self._transfer, maps, part=self._moves) as disk:
            conditions = Conditions(self._request.headers, self._transfer, disk.length, disk)
            return await self._answer(disk.length, conditions, disk)

    async def _answer(self, size: int, conditions: Conditions, disk: PackedDisk | None = None) -> web.StreamResponse:
        request, ticket = self._request, self._transfer.ticket
        if conditions.unmodified:
            return unmodified(request, conditions.headers)
        wanted = self._wanted if conditions.range_counts else None
        offset, length = 0, size
        if wanted is None:
            headers = whole_headers(ticket)
        else:
            offset, length = wanted.resolve(size)
            headers = range_headers(ticket, offset, offset + length - 1, size)
        headers |= conditions.headers
        status = 200 if wanted is None else 206
        if not self._moves:
            response = web.StreamResponse(status=status, headers=headers)
            response.content_length = length
            close_if_wanted(request, response)
            return response
        is_last = is_closing(request) or connection_of(request).must_close or not request.content.at_eof()
        answer = answer_to(request, status, {**headers, **self._pages}, length, is_last=is_last)
        todo = Instruction(False, offset, length, status, answer, packed=disk)
        return await carry_out(request, self._transfer, todo, is_last=is_last)
