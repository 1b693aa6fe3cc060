# SPDX-License-Identifier: Apache-2.0
"""The order of a connection's requests: one at a time goes to aiohttp or to a lane, and the next ones wait."""

import asyncio

from aiohttp import web

from ...errors import STOPPING, Error, Forbidden, Unavailable
from ...lanes.http import Asks
from ...net.watchdog import Watchdog
from . import errors
from .aiohttp_transport import AiohttpTransport
from .cors import cors_headers
from .ending import Ending
from .exchange import Exchange
from .framing import FixedBody, Head
from .handover import LaneHandover, Returned
from .incoming import Incoming
from .messages import encode
from .phase import Phase, State
from .services import Services
from .transport import ClientTransport
from .usage import Usage


class RequestSequence:
    """Pass the requests of one connection to aiohttp or to a lane. Handlers of aiohttp use it with its exchange."""

    def __init__(
        self,
        services: Services,
        phase: Phase,
        transport: ClientTransport,
        incoming: Incoming,
        usage: Usage,
        watchdog: Watchdog,
        exchange: Exchange,
        handover: LaneHandover,
        ending: Ending,
    ) -> None:
        self.exchange = exchange
        self._services = services
        self._phase = phase
        self._transport = transport
        self._incoming = incoming
        self._usage = usage
        self._watchdog = watchdog
        self._handover = handover
        self._ending = ending
        self._handler: asyncio.Protocol | None = None
        self._closing = False
        self._is_last = False  # the connection closes after the request that runs
        self._asks = Asks()  # of the answer to the request that runs

    # For the handlers of aiohttp

    @property
    def must_close(self) -> bool:
        """Tell whether the connection closes after the answer to the request that runs."""
        return self._closing or self._is_last

    @property
    def closed(self) -> bool:
        """Tell whether no more bytes can be sent."""
        return self._phase.ends or self._transport.is_closing

    def answered(self, *, close: bool) -> None:
        """Go on to the next request, or close, because the answer is complete."""
        if self._phase.state is not State.SERVING:
            return
        self._incoming.end()
        if close or not self._incoming.complete:
            self._ending.close("answered")
            return
        self._phase.state = State.IDLE
        self._watchdog.progress()
        if self._incoming.ahead:
            self._transport.hold("ahead")  # so that a refusal of the next request is sent before its body is read
            # Not in this call: the handler that makes it is still on the stack.
            asyncio.get_running_loop().call_soon(self.next)
        else:
            self._when_idle()

    def error_answer(self, error: Exception) -> web.Response:
        """Return the answer to a request that has failed. The stop of the server is the reason for what it cancels."""
        if self._closing and isinstance(error, Forbidden):
            error = Unavailable(STOPPING)
        return errors.answer(error, self.exchange.peer, json=self._asks.json)

    def abort(self, reason: str) -> None:
        """Cut the connection, because the answer cannot be completed."""
        self._ending.abort(reason)

    def close(self, reason: str) -> None:
        """Send all written bytes, discard what the client still sends, and close."""
        self._ending.close(reason)

    # For the connection

    def next(self) -> None:
        """Start the next request of the bytes that were received, if its head is complete."""
        if self._phase.state is not State.IDLE or self._transport.writing_paused:
            return
        try:
            head = self._incoming.next_head()
            if head is None:
                self._when_idle()
            else:
                self._start(head)
        except Error as e:
            self._incoming.body = None
            self._asks = Asks()
            self._refuse(e, close=True)

    def close_when_idle(self) -> None:
        """Finish the request that runs, then close."""
        self._closing = True
        self._handover.refuse()
        if self._phase.state is State.IDLE:
            self._ending.close("shutdown")

    def writing_paused(self, *, paused: bool) -> None:
        """Pause or resume the handler's writes, as the client reads; start the next request after a pause."""
        if self._handler is not None:
            if paused:
                self._handler.pause_writing()
            else:
                self._handler.resume_writing()
        if not paused and self._incoming.ahead:
            self.next()

    def lost(self, exc: Exception | None) -> None:
        """End the handler of aiohttp, because the connection is lost."""
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.connection_lost(exc)

    # One request

    def _start(self, head: Head) -> None:
        ahead = self._incoming.ahead
        if not self._closing and self._handover.begin(head, ahead, self._returned):
            ahead.clear()
            self._phase.state = State.HANDED_OVER
            self._transport.hold("handover")
            return
        del ahead[: len(head.data)]
        self._is_last = not head.keep_alive
        self._asks = head.asks
        self._phase.state = State.SERVING
        self._watchdog.progress()
        self._incoming.body = head.body()
        refusal = self._services.refusal(head)
        if refusal is not None:
            self._refuse(refusal, close=False, to=head.method)
            return
        self._hand_on(head)
        if not ahead:
            self._transport.release("ahead")

    def _hand_on(self, head: Head) -> None:
        """Pass a request to aiohttp."""
        if self._handler is None:
            self._handler = self._services.make_handler()
            self._handler.connection_made(AiohttpTransport(self, self._transport))
        self._incoming.pass_to(self._handler)
        self._handler.data_received(head.data)
        self._incoming.feed_ahead()

    def _returned(self, end: Returned) -> None:
        """Go on with the connection after a lane has given it back."""
        self._usage.add(end.served)
        if self._phase.state is not State.HANDED_OVER:
            return  # the connection is lost
        self._phase.state = State.IDLE
        self._watchdog.progress()
        if end.cut is not None:
            reason = self._ending.reason
            self._ending.abort(end.cut if reason == "client" else reason)
            return
        self._incoming.ahead += end.rest
        self._incoming.body = FixedBody(end.unread)
        self._transport.release("handover")
        if end.error is not None:
            self._asks = end.asks
            self._refuse(end.error, close=False, origin=end.asks.origin)
        else:
            self.next()

    def _refuse(self, error: Exception, *, close: bool, to: str = "", origin: bool = False) -> None:
        """Answer a request with an error, without aiohttp.

        to: its method; an answer to HEAD has no body. origin: a page of another origin may read it.
        """
        self._usage.requests += 1
        self._phase.state = State.SERVING
        response = self.error_answer(error)
        if origin:
            response.headers.update(cors_headers({"origin": ""}, ""))
        self._usage.answered(response.status)
        close = close or response.keep_alive is False or not self._incoming.complete or self.must_close
        self._transport.write(encode(response, close=close, to=to))
        self.answered(close=close)

    def _when_idle(self) -> None:
        """Read the socket again, or close: no received bytes are left."""
        self._transport.release("ahead")
        if self._closing:
            self._ending.close("shutdown")
        elif self._incoming.at_eof:
            self._ending.close("client")
