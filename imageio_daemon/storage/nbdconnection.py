# SPDX-License-Identifier: Apache-2.0
"""One connection to an NBD server: connecting, and requests whose data moves between their memory and the socket."""

import asyncio
import logging
import socket
import ssl
from collections import deque
from typing import NamedTuple, cast

from ..errors import Canceled, NotFast, ServerGone, StorageError
from ..nbdproto.client import Agreed, ClientNegotiation, Refused, Violation
from ..nbdproto.clientreplies import ClientReplies, ClientRequest
from ..nbdproto.constants import Command, ErrorNumber
from ..nbdproto.messages import BadMagic
from ..nbdurl import NbdAddress
from ..transports import keep_alive, pause_when_anything_waits
from ..units import KiB, MiB
from .base import Operation

log = logging.getLogger(__name__)

#: Bytes handed to the transport at once under TLS: it encrypts all of it before it sends any. In the clear it sends
#: from the memory itself.
MOST_ENCRYPTED = 1 * MiB
#: Memory for the negotiation's replies.
_NEGOTIATION = 16 * KiB
#: Characters of a server's text that are logged.
MAX_TEXT = 256
#: Seconds that a connection may take to close in order.
CLOSE_TIMEOUT = 1.0
#: Seconds until a server is given up that does not confirm what was sent, or takes nothing more: by default the kernel
#: goes on for 15 minutes. Twice the time that clients wait, so storage that hangs for a while is waited for. It holds
#: for the probes of keep_alive(), too.
STUCK_TIMEOUT = 120.0


class Options(NamedTuple):
    """How to connect. Times in seconds. `greeting_timeout`: from connecting to the first bytes of the server."""

    dirty: bool
    context: ssl.SSLContext | None
    timeout: float
    greeting_timeout: float


class Call(ClientRequest):
    """A request of an operation.

    payload: what a WRITE sends. counts: the bytes of the operation that it does. `ended` is done with the reply, or
    fails with ServerGone or Canceled: until then the memory is in use.
    """

    __slots__ = ("counts", "ended", "op", "payload")

    def __init__(
        self,
        op: Operation,
        command: Command,
        offset: int = 0,
        length: int = 0,
        flags: int = 0,
        view: memoryview | None = None,
        payload: memoryview | None = None,
        counts: int = 0,
    ) -> None:
        super().__init__(command, offset, length, flags, view)
        self.op = op
        self.payload = payload
        self.counts = counts
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def check(self) -> None:
        """Raise what the reply says went wrong: NotFast, StorageError."""
        if not self.error:
            return
        if self.error == ErrorNumber.ENOTSUP:  # said of fast zeroing only
            raise NotFast
        detail = f"offset={self.offset} length={self.length}"
        raise StorageError(self.error, f"NBD {self.command.name}", f"the server says {self.text[:MAX_TEXT]!r}", detail)


class Connection(asyncio.BufferedProtocol):
    """A connection in its transmission phase; made by connect()."""

    def __init__(self, address: NbdAddress, options: Options) -> None:
        self._address = address
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._open_transport: asyncio.Transport | None = None
        self._negotiation = ClientNegotiation(address.export, tls=address.tls, dirty=options.dirty)
        self._memory = memoryview(bytearray(_NEGOTIATION))
        self._replies: ClientReplies | None = None
        self._queue: deque[Call] = deque()
        self._sending: Call | None = None  # what the transport has not sent all of yet
        self._unsent = memoryview(b"")  # the part of its payload that the transport was not given yet
        self._paused = False
        self._failure: Exception | None = None
        self._changed = asyncio.Event()  # in the negotiation: something was received
        self._idle: asyncio.Future[None] | None = None
        #: Done when the connection has ended.
        self.lost: asyncio.Future[None] = self._loop.create_future()

    @property
    def _transport(self) -> asyncio.Transport:
        if self._open_transport is None:
            raise RuntimeError("not connected")
        return self._open_transport

    @property
    def agreed(self) -> Agreed:
        """Return what was negotiated."""
        agreed = self._negotiation.agreed
        if agreed is None:
            raise RuntimeError("the negotiation has not ended")
        return agreed

    # Negotiation

    @classmethod
    async def connect(cls, address: NbdAddress, options: Options) -> "Connection":
        """Connect and negotiate. Raises ServerGone: with the reason, whatever it is."""
        connection = cls(address, options)
        try:
            async with asyncio.timeout(options.timeout):
                async with asyncio.timeout(options.greeting_timeout) as greeting:
                    await connection._open()
                    while not connection._negotiation.greeted:
                        await connection._receive()
                    greeting.reschedule(None)
                await connection._negotiate()
        except TimeoutError:
            connection._hang_up()
            raise ServerGone(str(address), "it does not answer in time") from None
        except (OSError, Refused, Violation, BadMagic) as e:
            connection._hang_up()
            raise ServerGone(str(address), str(e)) from None
        except BaseException:
            connection._hang_up()
            raise
        return connection

    async def _open(self) -> None:
        try:
            if self._address.socket:
                await self._loop.create_unix_connection(lambda: self, self._address.socket)
            else:
                await self._loop.create_connection(lambda: self, self._address.host, self._address.port)
        except BaseException:
            self._open_transport = None  # closed already, and uvloop's does not even take a close() any more
            raise

    async def _receive(self) -> None:
        """Wait for bytes; raise what ended the connection."""
        self._changed.clear()
        if self._failure is None and not self.lost.done():
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure
        if self.lost.done():
            raise ConnectionResetError("the server closed the connection")

    async def _negotiate(self) -> None:
        while self._negotiation.agreed is None:
            self._transport.write(self._negotiation.take_output())
            if self._negotiation.wants_tls:
                await self._start_tls()
            else:
                await self._receive()
        self._replies = ClientReplies(self._negotiation.agreed, self._reply_ended)

    async def _start_tls(self) -> None:
        context = self._options.context
        if context is None:
            raise RuntimeError("TLS without a context")
        transport = await self._loop.start_tls(
            self._transport, self, context, server_hostname=self._address.tls_hostname, ssl_shutdown_timeout=1.0
        )
        if transport is None:
            raise ConnectionResetError("the server left while TLS started")
        self._take_transport(transport)
        self._negotiation.tls_started()

    def _take_transport(self, transport: asyncio.Transport) -> None:
        self._open_transport = transport
        # When writing resumes, all that was written has left our memory.
        pause_when_anything_waits(transport)

    def _hang_up(self) -> None:
        """End a connection that did not come about, with the goodbye that the negotiation may have left."""
        transport = self._open_transport
        if transport is not None and not transport.is_closing():
            transport.write(self._negotiation.take_output())
            transport.close()

    # Requests

    def start(self, call: Call) -> None:
        """Send a request as soon as those before it are sent. Its buffer is in use until `ended` is done."""
        if self.lost.done() or self._failure is not None or self._transport.is_closing():
            call.ended.set_exception(self._gone())
            return
        self._queue.append(call)
        self._pump()

    def drop_canceled(self) -> None:
        """End cancelled requests that were not sent yet."""
        kept = deque(call for call in self._queue if not call.op.canceled)
        dropped = [call for call in self._queue if call.op.canceled]
        self._queue = kept
        for call in dropped:
            call.ended.set_exception(Canceled())

    async def close(self) -> None:
        """Say goodbye once all replies are there, and wait for the end."""
        if not self.lost.done() and not self._transport.is_closing():
            await self._drained()
            if not self._transport.is_closing() and self._replies is not None:
                self._transport.write(self._replies.begin(ClientRequest(Command.DISC)))
            self._transport.close()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await asyncio.shield(self.lost)
        except TimeoutError:
            self._transport.abort()
            await self.lost

    def abort(self, reason: Exception) -> None:
        """End the connection now: what it is believed to say is of no use any more."""
        if self._failure is None:
            self._failure = reason
        self._transport.abort()

    async def _drained(self) -> None:
        if self._busy and not self.lost.done():
            self._idle = self._loop.create_future()
            await self._idle

    @property
    def _busy(self) -> bool:
        waiting = self._replies is not None and self._replies.waiting
        return bool(waiting or self._queue or self._sending is not None)

    def _pump(self) -> None:
        """Give the transport as much as it takes without holding any of it back."""
        while not self._paused and self._replies is not None:
            self._sending = None
            if self._unsent:
                self._write(b"")
            elif self._queue:
                call = self._queue.popleft()
                if call.op.canceled:
                    call.ended.set_exception(Canceled())
                    continue
                header = self._replies.begin(call)
                self._unsent = memoryview(b"") if call.payload is None else call.payload
                self._sending = call
                self._write(header)
            else:
                return

    def _write(self, header: bytes) -> None:
        most = MOST_ENCRYPTED if self._address.tls else len(self._unsent)
        piece, self._unsent = self._unsent[:most], self._unsent[most:]
        self._transport.writelines([part for part in (header, piece) if part])

    def _reply_ended(self, request: ClientRequest) -> None:
        if request is self._sending and self._in_use(request):
            # The transport may still read its buffer, which is given back with the reply.
            raise Violation("a reply to a request that was not sent yet")
        if isinstance(request, Call):
            request.ended.set_result(None)
        if self._idle is not None and not self._busy and not self._idle.done():
            self._idle.set_result(None)

    def _in_use(self, request: ClientRequest) -> bool:
        return request.command == Command.WRITE and (self._paused or bool(self._unsent))

    def _gone(self) -> ServerGone:
        reason = str(self._failure) if self._failure is not None else "the server closed the connection"
        return ServerGone(str(self._address), reason)

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        # uvloop's transports are not below asyncio's classes.
        self._take_transport(cast(asyncio.Transport, transport))
        sock = transport.get_extra_info("socket")
        # A unix socket keeps its 208 KiB: with 4 MiB an upload on one connection took 1.35 instead of 1.14 s. Memory of
        # the kernel that is used again at once is still in the processor's cache.
        if sock is not None and not self._address.socket:
            keep_alive(sock)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(STUCK_TIMEOUT * 1000))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return memory for the next bytes."""
        if self._failure is not None or self._replies is None:
            return self._memory
        return self._replies.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes."""
        if self._failure is not None:
            return
        try:
            if self._replies is not None:
                self._replies.received(nbytes)
            else:
                self._negotiation.feed(self._memory[:nbytes])
        except Refused as e:
            self._failure = e
        except (Violation, BadMagic) as e:
            log.error("NBD server %s breaks the protocol: %s", self._address, e)
            self.abort(e)
        self._changed.set()

    def eof_received(self) -> bool:
        """Close: a server that says no more has left."""
        return False

    def pause_writing(self) -> None:
        """Send no more."""
        self._paused = True

    def resume_writing(self) -> None:
        """Go on: nothing is left in the transport."""
        self._paused = False
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all that waits."""
        if self._failure is None:
            self._failure = exc
        calls = [*(self._replies.waiting.values() if self._replies is not None else ()), self._sending, *self._queue]
        self._queue.clear()
        self._sending, self._unsent = None, memoryview(b"")
        if self._replies is not None:
            self._replies.waiting.clear()
        for call in calls:
            if isinstance(call, Call) and not call.ended.done():
                call.ended.set_exception(self._gone())
        if not self.lost.done():
            self.lost.set_result(None)
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        self._changed.set()
