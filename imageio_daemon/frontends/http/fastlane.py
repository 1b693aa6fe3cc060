# SPDX-License-Identifier: Apache-2.0
"""The fast lane: the requests that transfers are made of, served without aiohttp and without copies.

Takes only requests whose every part it knows, and answers them through the same handlers; anything else goes to
aiohttp's lane, slower, with the same answers.
"""

import asyncio
from typing import Protocol

from .framing import Head
from .headers import parse_target
from .messages import WRITE_PIECE, Client, Request, Response, encode, encode_head
from .receiver import Receiver
from .routes import Routes

_METHODS = frozenset(("GET", "PUT", "PATCH"))
#: Fields that only aiohttp knows. The handlers know the others that matter.
_OTHER_FIELDS = frozenset(("transfer-encoding", "upgrade"))
#: What the path of an image begins with.
IMAGES = "/images/"


class Line(Client, Protocol):
    """What the lane needs of its connection."""

    def write(self, data: bytes | memoryview) -> None:
        """Send bytes; a memoryview must stay as it is until drained() returns."""
        ...

    async def drained(self) -> None:
        """Wait until the transport holds no reference to what was written. Raises PeerGone."""
        ...

    def send_continue(self) -> None:
        """Tell the client to send its body."""
        ...

    def waiting_for_body(self, *, waiting: bool) -> None:
        """Note that a handler waits for the client's next bytes."""
        ...

    def answered(self, *, close: bool) -> None:
        """Note that the answer is complete."""
        ...

    def abort(self, reason: str) -> None:
        """Cut the connection: the answer cannot be completed."""
        ...

    async def aborted(self, reason: str) -> None:
        """Cut it and wait, cancelled or not, until the transport holds no reference to what was written."""
        ...


def takes(head: Head) -> bool:
    """Tell whether the request is one of the fast lane's."""
    return (
        head.method in _METHODS
        and head.version == "1.1"
        and head.target.startswith(IMAGES)
        and head.target.find("/", len(IMAGES)) < 0
        and head.fields.get("connection", "keep-alive") == "keep-alive"
        and _OTHER_FIELDS.isdisjoint(head.fields)
    )


async def serve(routes: Routes, line: Line, head: Head, receiver: Receiver) -> None:
    """Answer one request. Cancelled when the connection is lost."""
    path, query = parse_target(head.target)
    length = head.fields.get("content-length")
    body = _Body(receiver, line)
    request = Request(
        method=head.method,
        path=path,
        query=query,
        headers=head.fields,
        length=None if length is None else int(length),
        chunked=False,
        body=body,
        client=line,
    )
    body.waits = request.waits_for_continue
    await routes.serve(request, _Answer(line))


class _Body:
    """A request's body, received straight into the reader's memory."""

    def __init__(self, receiver: Receiver, line: Line) -> None:
        self._receiver = receiver
        self._line = line
        #: The client sends its body only when it is told to.
        self.waits = False

    @property
    def ended(self) -> bool:
        return self._receiver.ended

    async def readinto(self, view: memoryview) -> int:
        if self.waits:
            self.waits = False
            self._line.send_continue()
        self._line.waiting_for_body(waiting=True)
        try:
            return await self._receiver.readinto(view)
        finally:
            self._line.waiting_for_body(waiting=False)


class _Answer:
    """An answer, its body sent from the reader's memory."""

    def __init__(self, line: Line) -> None:
        self.started = False
        self._line = line
        self._head = b""
        self._close = False

    async def plain(self, response: Response, *, close: bool) -> None:
        self._line.write(encode(response, close=close))
        self._line.answered(close=close)

    def expect(self, response: Response, *, close: bool) -> None:
        self._head = encode_head(response, close=close)
        self._close = close

    async def write(self, view: memoryview) -> None:
        self._start()
        for start in range(0, len(view), WRITE_PIECE):
            self._line.write(view[start : start + WRITE_PIECE])
            try:
                await self._line.drained()
            except asyncio.CancelledError:
                # The transport still refers to memory that is about to be used for something else.
                await self._line.aborted("cut")
                raise

    async def finish(self) -> None:
        self._start()
        self._line.answered(close=self._close)

    def cut(self) -> None:
        self._line.abort("cut")

    def _start(self) -> None:
        if not self.started:
            self.started = True
            self._line.write(self._head)
