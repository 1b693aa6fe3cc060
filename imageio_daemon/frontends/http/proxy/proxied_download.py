# SPDX-License-Identifier: Apache-2.0
"""The bytes of an image, passed on from the other server's answer while they arrive."""

from typing import NamedTuple

from aiohttp import web

from ....storage.operation import Operation
from ....transfers.transfer import Transfer
from ..responses import AnswerStream, range_headers, whole_headers
from .passed_answers import range_of, require_known, tag_of
from .way import ProxiedAnswer, Way


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
