# SPDX-License-Identifier: Apache-2.0
"""The order of a connection's requests. One at a time goes to aiohttp or to a lane, and the next ones wait.

HttpShared has what the connections of one server share.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import web

from ....errors import STOPPING, Error, Forbidden, Unavailable
from ....lanes.http import Asks, HttpEnd, Instruction
from ....net.admission import Admission
from ....net.watchdog import Watchdog
from ....runtime.sums import Served
from ....transfers.transfer import Transfer
from .. import errors
from ..responses import cors_headers, encode
from .aiohttp_transport import AiohttpTransport
from .exchange import Exchange
from .framing import ChunkedBody, FixedBody, RequestHead
from .handover import LaneHandover
from .incoming import Incoming
from .lane_service import LaneService
from .life import ConnectionLife, State
from .transport import ClientTransport


@dataclass(frozen=True)
class HttpShared:
    """The objects that the connections of one server share.

    `inactivity_timeout` is for a connection that has used no ticket, in seconds. If the server `trusts` its clients
    (control socket), they keep their places without a ticket. `make_handler` makes a handler of aiohttp. `direct`
    returns the answer or the error for a request that aiohttp cannot answer. `lanes` starts lanes, if the server has
    any. `served` counts requests and bytes by service, under `names`: first that for clients of the network, then that
    for clients of the unix socket. All sockets are read into `scratch`, whose content is used before the next read.
    """

    inactivity_timeout: float
    admission: Admission
    trusts: bool
    make_handler: Callable[[], asyncio.Protocol]
    direct: Callable[[RequestHead], web.Response | Exception | None]
    lanes: LaneService | None
    served: Served
    names: tuple[str, str]
    scratch: memoryview


class RequestSequence:
    """Pass the requests of one connection to aiohttp or to a lane. Handlers find it by connection_of()."""

    def __init__(
        self,
        shared: HttpShared,
        transport: ClientTransport,
        incoming: Incoming,
        watchdog: Watchdog,
        exchange: Exchange,
        handover: LaneHandover,
        life: ConnectionLife,
        give_away: Callable[[Callable[[asyncio.Transport, bytes], None]], None],
    ) -> None:
        self._give_away = give_away
        self.exchange = exchange
        self._shared = shared
        self._transport = transport
        self._incoming = incoming
        self._watchdog = watchdog
        self._handover = handover
        self._life = life
        self._handler: asyncio.Protocol | None = None
        self._handlers_transport: AiohttpTransport | None = None
        self._closing = False
        self._is_last = False  # whether the connection closes after the running request
        self._asks = Asks()  # the wishes of the running request for its answer
        #: Whether a lane has carried out the running request.
        self.carried_out = False

    # For the handlers of aiohttp

    @property
    def must_close(self) -> bool:
        """Return whether the connection closes after the answer to the running request."""
        return self._closing or self._is_last

    @property
    def body_taken(self) -> bool:
        """Return whether all of the request's body was received, here or by a lane."""
        return self._incoming.complete

    async def hand_out(self, transfer: Transfer, instruction: Instruction) -> Awaitable[HttpEnd]:
        """Have a lane carry out the running request on the open image. Raises Unavailable, Error.

        When this returns, the lane has the connection. The returned awaitable has the lane's result.
        """
        ended = await self._handover.carry_out(transfer, instruction, self._incoming.ahead)
        self._life.state = State.HANDED_OVER
        self._transport.hold("handover")
        self.carried_out = True
        return ended

    def take_back(self, instruction: Instruction, end: HttpEnd) -> None:
        """Go on with the connection after the lane, unless it is lost. Raises the Error of the running request."""
        if not self._resume(State.SERVING, end):
            return
        if instruction.writes and instruction.body is None and end.error is not None:
            self._incoming.body = ChunkedBody(end.chunks)
        elif instruction.writes:
            self._incoming.body = FixedBody(end.unread)
        if end.error is not None:
            raise end.error

    def answered(self, *, close: bool) -> None:
        """Go on to the next request, or close. Call this when the answer is complete."""
        if self._life.state is not State.SERVING:
            return
        self._incoming.end()
        if self.carried_out:
            self._drop_handler()
        if close or not self._incoming.complete:
            self._life.close("answered")
            return
        self._life.state = State.IDLE
        self._watchdog.progress()
        if self._incoming.ahead:
            self._transport.hold("ahead")  # so that a refusal of the next request is sent before its body is read
            # Not in this call, which comes from a handler that is still on the stack.
            asyncio.get_running_loop().call_soon(self.next)
        else:
            self._when_idle()

    def error_answer(self, error: Exception) -> web.Response:
        """Return the answer to a request that has failed. If the server's stop has cancelled it, the answer says so."""
        if self._closing and isinstance(error, Forbidden):
            error = Unavailable(STOPPING)
        return errors.answer(error, self.exchange.peer, json=self._asks.json)

    def upgrade(self, head: bytes, adopt: Callable[[asyncio.Transport, bytes], None]) -> None:
        """Send a head. Give the connection away in the next step of the loop, because the caller still uses it now."""
        self.exchange.answered(HTTPStatus.SWITCHING_PROTOCOLS)
        self._transport.write(head)
        asyncio.get_running_loop().call_soon(self._give_away, adopt)

    def abort(self, reason: str) -> None:
        """Cut the connection, because the answer cannot be completed."""
        self._life.abort(reason)

    # For the connection

    def next(self) -> None:
        """Start the next request if its head was received."""
        if self._life.state is not State.IDLE or self._transport.writing_paused:
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
        """Finish the running request, then close."""
        self._closing = True
        self._handover.refuse()
        if self._life.state is State.IDLE:
            self._life.close("shutdown")

    def writing_paused(self, *, paused: bool) -> None:
        """Pause or resume the handler's writes. After a pause, start the next request."""
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
        self._handlers_transport, self._give_away = None, _keep  # breaks reference cycles
        if handler is not None:
            handler.connection_lost(exc)

    def _drop_handler(self) -> None:
        """Drop the handler of aiohttp, whose parser still waits for a body that a lane has taken."""
        handler, self._handler = self._handler, None
        transport, self._handlers_transport = self._handlers_transport, None
        if handler is not None and transport is not None:
            transport.detach()
            # Not in this call, which comes from the handler itself.
            asyncio.get_running_loop().call_soon(handler.connection_lost, None)

    # One request

    def _start(self, head: RequestHead) -> None:
        ahead = self._incoming.ahead
        if not self._closing and self._handover.begin(head, ahead, self._returned):
            ahead.clear()
            self._life.state = State.HANDED_OVER
            self._transport.hold("handover")
            return
        del ahead[: len(head.data)]
        self._is_last = not head.keep_alive
        self._asks = head.asks
        self._life.state = State.SERVING
        self._watchdog.progress()
        self._incoming.body = head.body()
        direct = self._shared.direct(head)
        if direct is not None:
            response = self.error_answer(direct) if isinstance(direct, Exception) else direct
            self._answer(response, close=False, to=head.method)
            return
        self._hand_on(head)
        if not self._incoming.is_full:
            self._transport.release("ahead")

    def _hand_on(self, head: RequestHead) -> None:
        """Pass a request to aiohttp. Its body follows when it is wanted."""
        self.carried_out = False
        if self._handler is None:
            self._handler = self._shared.make_handler()
            self._handlers_transport = AiohttpTransport(self, self._life, self._transport)
            self._handler.connection_made(self._handlers_transport)
        self._incoming.pass_to(self._handler)
        self._handler.data_received(head.data)

    def _returned(self, end: HttpEnd) -> None:
        """Go on with the connection after a lane has given it back."""
        if not self._resume(State.IDLE, end):
            return
        self._incoming.body = FixedBody(end.unread)
        if end.error is not None:
            self._asks = end.asks
            self._refuse(end.error, close=False, origin=end.asks.origin)
        else:
            self.next()

    def _resume(self, state: State, end: HttpEnd) -> bool:
        """Go on, in the state, after a lane has given the connection back. Return False if it is lost or cut."""
        self.exchange.add(end.served)
        if self._life.state is not State.HANDED_OVER:
            return False
        self._life.state = state
        self._watchdog.progress()
        if end.cut is not None:
            reason = self._life.reason
            self._life.abort(end.cut if reason == "client" else reason)
            return False
        self._incoming.ahead += end.rest
        if self._incoming.is_full:  # the next lane takes no more bytes than a lane can give back
            self._transport.hold("ahead")
        self._transport.release("handover")
        return True

    def _refuse(self, error: Exception, *, close: bool, origin: bool = False) -> None:
        """Answer a request with an error, without aiohttp. With `origin`, a page of another origin may read it."""
        response = self.error_answer(error)
        if origin:
            response.headers.update(cors_headers({"origin": ""}, ""))
        self._answer(response, close=close)

    def _answer(self, response: web.Response, *, close: bool, to: str = "") -> None:
        """Answer a request without aiohttp. If its method `to` is HEAD, the answer has no body."""
        self.exchange.requests += 1
        self._life.state = State.SERVING
        self.exchange.answered(response.status)
        close = close or response.keep_alive is False or not self._incoming.complete or self.must_close
        self._transport.write(encode(response, close=close, to=to))
        self.answered(close=close)

    def _when_idle(self) -> None:
        """Read the socket again, or close. Call this when no received request is left."""
        self._transport.release("ahead")
        if self._closing:
            self._life.close("shutdown")
        elif self._incoming.at_eof:
            self._life.close("client")


def _keep(_: Callable[[asyncio.Transport, bytes], None]) -> None:
    """Give nothing away: the connection is lost."""
