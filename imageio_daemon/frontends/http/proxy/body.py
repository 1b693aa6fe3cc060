# SPDX-License-Identifier: Apache-2.0
"""The body of a client's request, passed on to the other server while it arrives, and waits for that server."""

import asyncio

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from ....errors import Error, OutOfRange, Truncated, WaySilent
from ....storage.operation import Operation
from ....transfers.transfer import Transfer
from ..request import RequestBody

#: Most seconds for sending one piece of at most 64 KiB.
DATA_TIMEOUT = 60.0


class Waits:
    """Note for an operation whether it waits for the other server: for the status and the log, it waits for storage."""

    def __init__(self, op: Operation) -> None:
        self._op = op
        self._there = False

    def begin(self) -> None:
        """Begin to wait. This has no effect while the operation waits."""
        if not self._there:
            self._there = True
            self._op.retain()

    def end(self) -> None:
        """End the wait. This has no effect if the operation does not wait."""
        if self._there:
            self._there = False
            self._op.release()


class PassedBody(aiohttp.Payload):
    """Send the body of a request to the other server, each piece after the one before, as fast as the limit allows.

    `length` is the body's number of bytes, or None if it is in chunks; `most` is how many it may have. `op` gets the
    sent bytes as its progress, unless the body is `coded`. `what` names the request in the log.
    """

    def __init__(
        self,
        source: RequestBody,
        length: int | None,
        most: int,
        transfer: Transfer,
        op: Operation,
        what: object,
        *,
        coded: bool,
    ) -> None:
        super().__init__(source, content_type="application/octet-stream")
        self._size = length
        self._most = most
        self._source = source
        self._transfer = transfer
        self._op = op
        self._what = what
        self._coded = coded
        #: Whether all of the body was sent.
        self.ended = False
        #: Why the body ended early, if it did.
        self.failure: Error | None = None
        self.waits = Waits(op)
        #: Whether the client waits for 100 Continue. Then it gets one when the other server has sent one. For an empty
        #: body, nothing is asked of the other server, which answers at once (RFC 9110 10.1.1).
        self.is_expected = source.is_held and length != 0

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Raise TypeError: the bytes of an image are not text."""
        raise TypeError("the body is not text")

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send all of the body. Raises Truncated, OutOfRange, InvalidRequest, PeerGone, WaySilent, OSError."""
        try:
            await self._pass_on(writer)
        except BaseException as e:
            if isinstance(e, Error):
                self.failure = e
            if writer.transport is not None:
                writer.transport.abort()  # unsent bytes would keep the connection open
            raise

    async def _pass_on(self, writer: AbstractStreamWriter) -> None:
        passed = 0
        while data := await self._source.read():
            passed += len(data)
            if passed > self._most:
                raise OutOfRange("The request's body reaches past the end of the ticket", self._transfer.ticket.size)
            await self._transfer.bucket.take(len(data))
            self._source.require_alive()
            await self._send(writer, data)
            if not self._coded:
                self._op.advance(len(data))
        if self._size is not None and passed < self._size:
            raise Truncated("The request's body is shorter than its Content-Length")
        self.ended = True
        self.waits.begin()  # for the answer

    async def _send(self, writer: AbstractStreamWriter, data: bytes) -> None:
        self.waits.begin()
        try:
            async with asyncio.timeout(DATA_TIMEOUT):
                await writer.write(data)
        except TimeoutError:
            raise WaySilent(f"PUT {self._what}", "it does not take the body") from None
        finally:
            self.waits.end()
