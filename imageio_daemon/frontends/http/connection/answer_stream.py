# SPDX-License-Identifier: Apache-2.0
"""Answers whose body is sent while it is still being made."""

from collections.abc import Awaitable

from aiohttp import web

from ....errors import PeerGone
from ....runtime.request_activity import Wait, waiting


class AnswerStream:
    """Send an answer piece by piece. Its head is sent with the first piece, so an earlier error gets its own answer.

    If the length of the body is unknown, the first piece waits for the second or the end, so that a body of one piece
    gets a Content-Length.
    """

    def __init__(self, request: web.Request, response: web.StreamResponse) -> None:
        self._request = request
        self._response = response
        self._first: bytes | None = None

    async def write(self, data: bytes) -> None:
        """Send the bytes. The transport refers to them until they are sent. Raises PeerGone."""
        if self._first is None and self._response.content_length is None:
            self._first = data
            return
        await self._begin()
        await _to_peer(self._response.write(data))

    async def finish(self) -> web.StreamResponse:
        """Send the rest of the body, and return the answer. The caller sends its end. Raises PeerGone."""
        if not self._response.prepared and self._response.content_length is None:
            self._response.content_length = len(self._first or b"")
        await self._begin()
        return self._response

    async def _begin(self) -> None:
        if not self._response.prepared:
            await _to_peer(self._response.prepare(self._request))
            if self._first:
                await _to_peer(self._response.write(self._first))
                self._first = b""


async def _to_peer(written: Awaitable[object]) -> None:
    try:
        with waiting(Wait.CLIENT):
            await written
    except ConnectionError as e:
        raise PeerGone("the connection was lost inside an answer") from e
