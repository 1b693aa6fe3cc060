# SPDX-License-Identifier: Apache-2.0
"""The body of a client's request, passed on while it comes."""

import asyncio

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from ....errors import Error, OutOfRange, Truncated, WaySilent
from ....storage.backend import Operation
from ....transfers.transfer import Transfer
from ..request import RequestBody
from .waits import Waits

#: Seconds for one piece of data, of at most 64 KiB, to be sent.
DATA_TIMEOUT = 60.0


class PassedBody(aiohttp.Payload):
    """Send the body of a request to the other server: each piece when the one before has gone, as the limit allows.

    length: bytes of the body; None: it is in chunks. most: bytes that may be in it. op: gets what has gone as its
    progress, unless the body is coded. what: the request, for the log.
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
        #: All of it has gone.
        self.ended = False
        #: Why it ended before.
        self.failure: Error | None = None
        self.waits = Waits(op)
        #: The client sends it when it is told to. Then it is told so when the other server has told so. Nothing is
        #: expected for no bytes (RFC 9110 10.1.1): the other server answers at once.
        self.is_expected = source.is_held and length != 0

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Refuse: these are the bytes of an image."""
        raise TypeError("the body is not text")

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send all. Raises Truncated, OutOfRange, InvalidRequest, PeerGone, WaySilent, OSError."""
        try:
            await self._pass_on(writer)
        except BaseException as e:
            if isinstance(e, Error):
                self.failure = e
            if writer.transport is not None:
                writer.transport.abort()  # what is not sent would keep the connection
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
