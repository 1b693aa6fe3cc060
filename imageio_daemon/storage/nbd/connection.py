# SPDX-License-Identifier: Apache-2.0
"""One connection to an NBD server in its transmission phase (proto.md, "Transmission").

Data of a READ is received into the memory of its request, and data of a WRITE is sent from there.
"""

import asyncio
import logging
from collections import deque

from ...errors import Canceled, Error, ServerGone, StorageError
from ...nbdproto.client.negotiation import Agreed, Violation
from ...nbdproto.client.replies import ClientReplies
from ...nbdproto.client.request import ClientRequest
from ...nbdproto.constants import Command
from ...nbdproto.messages import BadMagic
from ...units import KiB, MiB
from ...urls.nbd import NbdAddress
from ..backend import Operation
from ..work import Countdown

log = logging.getLogger(__name__)

#: Most bytes that the transport gets at once under TLS: it encrypts all of them before it sends any. Without TLS it
#: sends from the memory of the request.
MOST_ENCRYPTED = 1 * MiB
#: Characters of a server's error message that are logged.
MAX_TEXT = 256
#: Seconds for the replies to requests that were sent, before the connection is closed. All requests of the image wait
#: meanwhile, so it is no longer than clients wait for an answer.
DRAIN_TIMEOUT = 60.0
#: Seconds after that in which the connection has to close in order.
CLOSE_TIMEOUT = 1.0
_CHANGES = frozenset((Command.WRITE, Command.WRITE_ZEROES, Command.TRIM))
#: Memory for bytes that a connection receives after a failure. All connections share it, because nothing reads it.
_UNSEEN = memoryview(bytearray(16 * KiB))
_NOTHING = memoryview(b"")


class Call(ClientRequest):
    """A request of an operation.

    view: memory for the data of a READ. payload: the data of a WRITE. counts: the bytes by which the request
    advances the operation. The memory is in use until the request has counted its Countdown.
    """

    __slots__ = ("_end", "_failure", "counts", "op", "payload")

    def __init__(
        self,
        op: Operation,
        command: Command,
        offset: int = 0,
        length: int = 0,
        flags: int = 0,
        view: memoryview | None = None,
        payload: memoryview = _NOTHING,
        counts: int = 0,
    ) -> None:
        super().__init__(command, offset, length, flags, view)
        self.op = op
        self.payload = payload
        self.counts = counts
        self._end: Countdown | None = None
        self._failure: Error | None = None

    def begin(self, end: Countdown) -> None:
        """Set the Countdown that the end of the request counts."""
        self._end = end

    def end(self, failure: Error | None = None) -> None:
        """Note that the request has its reply, or the failure for which it gets none. Later calls do nothing."""
        end, self._end = self._end, None
        if end is not None:
            self._failure = failure
            end.count()

    @property
    def failure(self) -> Error | None:
        """Return the error of a request that got no reply or an error reply; None if it succeeded.

        ENOTSUP in reply to a fast zero is a StorageError and not NotFast, because the server may already have changed a
        part of the range.
        """
        if self._failure is not None or not self.error:
            return self._failure
        why, detail = f"the server says {self.text[:MAX_TEXT]!r}", f"offset={self.offset} length={self.length}"
        return StorageError(self.error, f"NBD {self.command.name}", why, detail)


class ClientConnection(asyncio.BufferedProtocol):
    """The transmission phase of a connection. It takes over the transport of the ClientHandshake that makes it.

    paused: the transport holds unsent bytes, and calls resume_writing() after it has sent them. Used on one loop.
    """

    def __init__(self, address: NbdAddress, agreed: Agreed, transport: asyncio.Transport, *, paused: bool) -> None:
        #: What was negotiated.
        self.agreed = agreed
        #: True after the connection has ended with changes unanswered. The server may still make them at any time.
        self.gave_up_changes = False
        self._address = address
        self._transport = transport
        self._replies = ClientReplies(agreed, self._reply_ended)
        self._queue: deque[Call] = deque()
        self._sending: Call | None = None  # the request that the transport has not sent completely
        self._unsent = _NOTHING  # the rest of its payload, which the transport does not have yet
        self._paused = paused
        self._failure: Exception | None = None
        self._closing = False
        self._idle: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        #: Done when the connection has ended.
        self.lost: asyncio.Future[None] = self._loop.create_future()
        transport.set_protocol(self)

    # Requests

    def start(self, call: Call, end: Countdown) -> None:
        """Send a request after those that were started before it. Its memory is in use until it has counted `end`.

        The failure of the request is in call.failure: ServerGone if the connection is being closed or ends before the
        reply, Canceled if the operation is cancelled before the request is sent, StorageError for an error reply. A
        request that was sent is not cancelled: it waits for its reply.
        """
        call.begin(end)
        if self._closing or self.lost.done() or self._failure is not None or self._transport.is_closing():
            call.end(self._gone())
            return
        self._queue.append(call)
        self._pump()

    def drop_canceled(self) -> None:
        """End requests that are cancelled and not sent yet, with Canceled."""
        kept = deque(call for call in self._queue if not call.op.canceled)
        dropped = [call for call in self._queue if call.op.canceled]
        self._queue = kept
        for call in dropped:
            call.end(Canceled())

    async def close(self) -> None:
        """Wait for all replies, send NBD_CMD_DISC, and wait until the connection has ended.

        Requests without a reply after DRAIN_TIMEOUT fail with ServerGone, as do requests that are started during it.
        """
        self._closing = True
        if not self.lost.done() and not self._transport.is_closing():
            try:
                async with asyncio.timeout(DRAIN_TIMEOUT):
                    await self._drained()
            except TimeoutError:
                self._give_up()
            if not self._transport.is_closing():
                self._transport.write(self._replies.begin(ClientRequest(Command.DISC)))
            self._transport.close()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await asyncio.shield(self.lost)
        except TimeoutError:
            self._transport.abort()
            await self.lost

    def _give_up(self) -> None:
        log.warning("NBD server %s leaves %d requests unanswered", self._address, len(self._replies.waiting))
        self.abort(ServerGone(str(self._address), "it leaves requests unanswered"))

    def abort(self, reason: Exception) -> None:
        """End the connection now, without NBD_CMD_DISC. Its requests fail with ServerGone, which names the reason."""
        if self._failure is None:
            self._failure = reason
        self._transport.abort()

    async def _drained(self) -> None:
        if self._busy and not self.lost.done():
            self._idle = self._loop.create_future()
            await self._idle

    @property
    def _busy(self) -> bool:
        return bool(self._replies.waiting or self._queue or self._sending is not None)

    def _pump(self) -> None:
        """Give requests to the transport until it holds bytes that it cannot send at once."""
        while not self._paused:
            self._sending = None
            if self._unsent:
                self._write(b"")
            elif self._queue:
                call = self._queue.popleft()
                if call.op.canceled:
                    call.end(Canceled())
                    continue
                header = self._replies.begin(call)
                self._unsent = call.payload
                self._sending = call
                self._write(header)
            else:
                return

    def _write(self, header: bytes) -> None:
        most = MOST_ENCRYPTED if self._address.tls else len(self._unsent)
        piece, self._unsent = self._unsent[:most], self._unsent[most:]
        self._transport.writelines(filter(len, (header, piece)))

    def _reply_ended(self, request: ClientRequest) -> None:
        if request is self._sending and self._in_use(request):
            # The transport may still read from the memory, which the end of the request releases.
            raise Violation("a reply to a request that was not sent yet")
        if self._idle is not None and not self._busy and not self._idle.done():
            self._idle.set_result(None)
        if isinstance(request, Call):
            request.end()

    def _in_use(self, request: ClientRequest) -> bool:
        return request.command == Command.WRITE and (self._paused or bool(self._unsent))

    def _gone(self) -> ServerGone:
        reason = str(self._failure) if self._failure is not None else "the server closed the connection"
        return ServerGone(str(self._address), reason)

    # asyncio

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return memory to receive the next bytes into."""
        if self._failure is not None:
            return _UNSEEN
        return self._replies.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Parse received bytes. A violation of the protocol is logged and ends the connection."""
        if self._failure is not None:
            return
        try:
            self._replies.received(nbytes)
        except (Violation, BadMagic) as e:
            log.error("NBD server %s breaks the protocol: %s", self._address, e)
            self.abort(e)

    def eof_received(self) -> bool:
        """Close the connection: a server that ends its direction sends no more replies."""
        return False

    def pause_writing(self) -> None:
        """Stop sending: the transport holds unsent bytes."""
        self._paused = True

    def resume_writing(self) -> None:
        """Send on: the transport has sent all of its bytes."""
        self._paused = False
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all requests with ServerGone."""
        if self._failure is None:
            self._failure = exc
        waiting = self._replies.waiting.values()
        self.gave_up_changes = any(request.command in _CHANGES for request in waiting)
        calls = [*waiting, self._sending, *self._queue]
        self._queue.clear()
        self._sending, self._unsent = None, _NOTHING
        self._replies.waiting.clear()
        if not self.lost.done():
            self.lost.set_result(None)
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        for call in calls:
            if isinstance(call, Call):
                call.end(self._gone())
