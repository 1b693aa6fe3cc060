# SPDX-License-Identifier: Apache-2.0
"""One connection: its socket, its timers, its limits, and the order of its requests.

A Connection stands before all that serve its requests. It hands exactly one request at a time on, holds the rest back,
and decides when and how the connection ends; aiohttp sees a transport that it does not own.
"""

import asyncio
import enum
import logging
from collections.abc import Callable
from typing import cast

from ... import logs
from ...connectionlimit import Place, Stage
from ...errors import Error, Truncated
from ...transfers import Transfer
from ..watchdog import Watchdog
from . import errors
from .account import Account
from .discard import Discard
from .framing import FixedBody, Head, parse_head
from .incoming import Incoming
from .lending import Lender, Returned
from .messages import encode
from .owner import Owner
from .serving import Serving
from .wire import Wire

log = logging.getLogger(__name__)


class State(enum.Enum):
    """What the connection does."""

    IDLE = "between requests"
    SERVING = "in a request"
    LENT = "served by C"
    DISCARDING = "reading what nobody wants, before it closes"
    CLOSED = "closed, though the last bytes may be on their way"


class Connection(asyncio.BufferedProtocol):
    """Serve the requests of one client, one after the other."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._wire: Wire
        self._serving: Serving
        self._state = State.IDLE
        self._closing = False
        self.peer = "unix"
        self.reason = "client"
        self._watchdog = Watchdog(self._loop, owner.inactivity_timeout, self._waits_for_peer, self._timed_out)
        self._incoming = Incoming(owner.scratch, self._watchdog)
        self._account = Account(self._loop)
        self._lender = Lender(owner.lending, self)
        self._discard: Discard | None = None
        self._place: Place

    # The socket's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve, or refuse when there are too many."""
        transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self._wire = Wire(transport)
        self._serving = Serving(self._owner, self._wire, self._incoming, self._account)
        self.peer = self._wire.peer
        self._wire.watch_writing()
        self._watchdog.start(transport)
        address = self._wire.address
        try:
            self._place = self._owner.admit(self, address, self._drop_soon)
        except Error as e:
            self._place = self._owner.limit.enter(Stage.REFUSED, address, self._drop_soon)
            self.reason = "limit"
            self.write(encode(errors.answer(e, self.peer), close=True))
            self._begin_discard()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything; what runs for this client ends."""
        self._state = State.CLOSED
        self._watchdog.stop()
        self._stop_discarding()
        self._account.close()
        self._place.leave()
        self._owner.forget(self)
        self._lender.lost()
        self._incoming.lost()
        self._wire.lost()
        self._serving.lost(exc)
        fields = logs.fields(client=self.peer, **self._account.fields(), reason=self.reason)
        log.info("connection ended", extra=fields)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the socket is read into: the memory of the handler that waits for it, if one does."""
        return self._incoming.get_buffer(inside_request=self._state is not State.IDLE)

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read."""
        if self._incoming.updated(nbytes):
            self._account.received += nbytes
        else:
            self.data_received(self._incoming.read(nbytes))

    def data_received(self, data: bytes) -> None:
        """Pass a request's bytes on; hold back what follows it."""
        incoming = self._incoming
        self._account.received += len(data)
        if self._state is State.SERVING and not incoming.ahead:
            data = incoming.feed(data)
        if not data:
            return
        if self._discard is not None:
            self._discard.feed(data)
        elif self._state is not State.CLOSED:
            incoming.ahead += data
            self._next_request()
            if incoming.ahead and (self._state is State.SERVING or self._wire.writing_paused):
                self._wire.hold("ahead")

    def eof_received(self) -> bool:
        """The client sends no more. One on a plain socket may still wait for its answer."""
        self._incoming.at_eof = True
        if self._state is not State.SERVING or self._wire.hung_up:
            return False
        if self._incoming.inside_body:
            self._incoming.fail(Truncated("The request's body is shorter than announced"))
        return not self._wire.tls

    def pause_writing(self) -> None:
        """The client reads slower than we write."""
        self._wire.pause_writing()
        self._watchdog.writing_paused(paused=True)
        self._serving.pause_writing()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._watchdog.writing_paused(paused=False)
        self._serving.resume_writing()
        self._wire.resume_writing()
        if self._incoming.ahead:
            self._next_request()

    # The handlers' side

    def begin(self, on_body_error: Callable[[Exception], None]) -> None:
        """Note that a request is being handled; the callback ends its wait for a body that will not come."""
        self._account.requests += 1
        self._incoming.on_error(on_body_error)

    def use(self, transfer: Transfer) -> None:
        """Count this connection as one of the transfer's, and live by its timeout. Raises TooManyConnections."""
        self._account.use(transfer)
        self._place.know(self._has_ticket)
        self._watchdog.timeout = transfer.ticket.inactivity_timeout

    def waiting_for_body(self, *, waiting: bool) -> None:
        """Note that a handler waits for the client's next bytes: only then is silence the client's."""
        self._watchdog.wait_for_body(waiting=waiting)

    def write(self, data: bytes | memoryview) -> None:
        """Send bytes; a memoryview must stay as it is until drained() returns."""
        if not self._wire.is_closing:
            self._account.sent += len(data)
            self._wire.transport.write(data)

    async def drained(self) -> None:
        """Wait until the transport holds no reference to what was written. Raises PeerGone."""
        await self._wire.drained()

    def when_drained(self, call: Callable[[], None]) -> None:
        """Call back when the transport holds no reference to what was written; never, when the client is gone."""
        self._wire.when_drained(call)

    def hand_over(self, head: Head, body: bytes) -> None:
        """Serve a short request, whose body has come, by the fast lane."""
        self._serving.hand_over(self, head, body)

    def send_continue(self) -> None:
        """Tell the client to send its body."""
        self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    @property
    def must_close(self) -> bool:
        """Tell whether the answer that is given now is the connection's last."""
        return self._closing

    @property
    def closed(self) -> bool:
        """Tell whether nothing more can be sent."""
        return self._state in (State.DISCARDING, State.CLOSED) or self._wire.is_closing

    def answered(self, *, close: bool) -> None:
        """Note that the answer is complete; go on to the next request, or close."""
        if self._state is not State.SERVING:
            return
        self._serving.answered()
        if close or not self._incoming.complete:
            self.close("answered")
            return
        self._state = State.IDLE
        self._watchdog.progress()
        if self._incoming.ahead:
            # Not here: the handler that calls is still on the stack.
            self._loop.call_soon(self._next_request)
        else:
            self._when_idle()

    def failed(self, error: BaseException) -> None:
        """Note that a request ended without an answer, by a bug."""
        log.error("request failed", exc_info=error)
        self.abort("failed")

    def abort(self, reason: str) -> None:
        """Cut the connection: the answer cannot be completed."""
        self.reason = reason
        if self._lender.lends:
            self._lender.abort()
            return  # the rest follows when C has let go of it
        self._state = State.CLOSED
        self._wire.abort()

    async def aborted(self, reason: str) -> None:
        """Cut it and wait, cancelled or not, until the transport holds no reference to what was written."""
        self.abort(reason)
        await self._wire.gone()

    def close(self, reason: str) -> None:
        """Send what was written, take off what the client still sends, and close."""
        if self._state in (State.DISCARDING, State.CLOSED):
            return
        self.reason = reason
        if self._incoming.unwanted:
            self._begin_discard()
        else:
            self._finish()

    def close_when_idle(self) -> None:
        """Serve the request that runs, and no other."""
        self._closing = True
        self._lender.refuse()
        if self._state is State.IDLE:
            self.close("shutdown")

    # Requests

    def _next_request(self) -> None:
        """Hand on the request that begins what was received, if its head is complete."""
        if self._state is not State.IDLE or self._wire.writing_paused:
            return
        try:
            head = self._incoming.next_head()
            if head:
                self._start_request(head)
            else:
                self._when_idle()
        except Error as e:
            self._incoming.body = None
            self._refuse(e, close=True)

    def _start_request(self, data: bytes) -> None:
        head = parse_head(data)
        ahead = self._incoming.ahead
        if not self._closing and self._lender.lend(head, ahead, self._wire):
            ahead.clear()
            self._state = State.LENT
            self._wire.hold("lent")
            return
        del ahead[: len(data)]
        self._state = State.SERVING
        self._watchdog.progress()
        refusal = self._serving.start(self, head, data)
        if refusal is not None:
            self._refuse(refusal, close=not head.keep_alive)
        elif not ahead:
            self._wire.release("ahead")

    def returned(self, end: Returned) -> None:
        """Go on with the connection, which C has served."""
        self._account.add(requests=end.requests, received=end.received, sent=end.sent)
        if self._state is not State.LENT:
            return  # it is lost
        self._state = State.IDLE
        self._watchdog.progress()
        if end.cut is not None:
            self.abort(end.cut if self.reason == "client" else self.reason)
            return
        self._incoming.ahead += end.rest
        self._incoming.body = FixedBody(end.unread)
        self._wire.release("lent")
        if end.error is not None:
            self._refuse(end.error, close=False)
        else:
            self._next_request()

    def _refuse(self, error: Exception, *, close: bool) -> None:
        """Answer a request that is not handed on."""
        self._account.requests += 1
        self._state = State.SERVING
        response = errors.answer(error, self.peer)
        close = close or response.close or not self._incoming.complete or self._closing
        self.write(encode(response, close=close))
        self.answered(close=close)

    def _when_idle(self) -> None:
        """Nothing more is here: read on, or end."""
        self._wire.release("ahead")
        if self._closing:
            self.close("shutdown")
        elif self._incoming.at_eof:
            self.close("client")

    # The end

    def _begin_discard(self) -> None:
        self._state = State.DISCARDING
        self._discard = Discard(self._wire, self._incoming, ended=self._finish, too_much=self._give_up)
        self._discard.start()

    def _give_up(self) -> None:
        self._stop_discarding()
        # Not close(): under TLS that goes on reading, up to 30 s, for the peer's farewell.
        self.abort(self.reason)

    def _stop_discarding(self) -> None:
        if self._discard is not None:
            self._discard.stop()
            self._discard = None

    def _finish(self) -> None:
        self._stop_discarding()
        self._state = State.CLOSED
        self._watchdog.progress()
        self._wire.close()

    # Its place

    def _has_ticket(self) -> bool:
        return self._account.has_ticket

    def _drop_soon(self) -> None:
        """End it, from any thread: another connection needs its place."""
        self._loop.call_soon_threadsafe(self.abort, "limit")

    # Timers

    def _waits_for_peer(self) -> bool:
        if self._state is State.SERVING:
            return self._watchdog.reading and not self._wire.held
        return self._state not in (State.DISCARDING, State.LENT)

    def _timed_out(self) -> None:
        if self._state is State.IDLE:
            self.reason = "inactivity"
            self._finish()
        else:
            self.abort("inactivity")
