# SPDX-License-Identifier: Apache-2.0
"""One connection as the event loop sees it: its socket, its timeouts and its place among all connections.

RequestSequence keeps the order of its requests, and ConnectionLife has its state and ends it. The code that serves a
request deals with the connection by its Exchange.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from ....errors import Error
from ....net.connection_limit import LOCAL, Place, Stage
from ....net.transports import pause_when_anything_waits
from ....net.watchdog import Watchdog
from ....runtime import logs
from ....runtime.sums import By
from .. import errors
from ..responses import encode
from .exchange import Exchange
from .handover import LaneHandover
from .incoming import Incoming
from .life import ConnectionLife, State
from .sequence import HttpShared, RequestSequence
from .transport import ClientTransport

log = logging.getLogger(__name__)


class ServerConnection(asyncio.BufferedProtocol):
    """Serve the requests of one client, one after the other."""

    def __init__(self, shared: HttpShared) -> None:
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._watchdog = Watchdog(self._loop, shared.inactivity_timeout, self._waits_for_peer, self._timed_out)
        self._incoming = Incoming(shared.scratch, self._watchdog)
        self._transport: ClientTransport
        self._place: Place
        self._exchange: Exchange
        self._handover: LaneHandover
        self._life: ConnectionLife
        self._requests: RequestSequence

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve, or refuse if there are too many connections."""
        transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self._transport = ClientTransport(transport)
        refusal = self._take_place()
        self._build()
        exchange = self._exchange
        self._shared.served.begin((exchange.service, By.PYTHON), exchange)
        pause_when_anything_waits(transport)  # at once, if the TLS handshake has left bytes in it
        self._watchdog.start(transport)
        if refusal is not None:
            self._life.refuse("limit", encode(errors.answer(refusal, exchange.peer), close=True))

    def _take_place(self) -> Error | None:
        """Take a place. If the connection cannot be served, return the reason, and take a place for its refusal."""
        admission, address = self._shared.admission, self._transport.address
        try:
            self._place = admission.enter(self, Stage.STRANGER, address, self._drop_soon)
        except Error as e:
            self._place = admission.limit.enter(Stage.REFUSED, address, self._drop_soon)
            return e
        if self._shared.trusts:
            self._place.know(lambda: True)
        return None

    def _build(self) -> None:
        """Make the parts that need the transport and the place."""
        transport, incoming, watchdog = self._transport, self._incoming, self._watchdog
        service = self._shared.names[transport.address == LOCAL]
        self._exchange = Exchange(transport, incoming, watchdog, self._place, service)
        self._handover = LaneHandover(self._shared.lanes, self._exchange, transport)
        self._life = ConnectionLife(transport, incoming, watchdog, self._handover)
        self._requests = RequestSequence(
            self._shared,
            transport,
            incoming,
            watchdog,
            self._exchange,
            self._handover,
            self._life,
            self._give_away,
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything, and end the requests that run for this client."""
        self._watchdog.stop()
        self._life.lost()
        self._exchange.lost()
        self._shared.served.end(self._exchange)
        self._place.leave()
        self._shared.admission.forget(self)
        self._exchange.add(self._handover.lost())
        self._incoming.lost()
        self._transport.lost()
        self._requests.lost(exc)
        fields = self._exchange.fields()
        log.info(
            "connection ended",
            extra=logs.fields(client=self._exchange.peer, **fields, reason=self._life.reason),
        )

    # Reading

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next read from the socket."""
        return self._incoming.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that were read."""
        self.data_received(self._incoming.read(nbytes))

    def data_received(self, data: bytes) -> None:
        """Pass a request's bytes on, and hold back those that follow it."""
        incoming, life = self._incoming, self._life
        self._exchange.received += len(data)
        if life.state is State.SERVING and not incoming.ahead:
            data = incoming.feed(data)
        if not data or life.discard(data):
            return
        if life.state is not State.CLOSED:
            incoming.ahead += data
            self._requests.next()
            if incoming.is_full and (life.state is State.SERVING or self._transport.writing_paused):
                self._transport.hold("ahead")

    def eof_received(self) -> bool:
        """Note that the client sends no more. Without TLS, it may still wait for its answer."""
        self._incoming.at_eof = True
        if self._life.state is not State.SERVING or self._transport.hung_up:
            return False
        self._incoming.end_early()
        return not self._transport.tls

    # Writing

    def pause_writing(self) -> None:
        """Note that the client reads more slowly than the daemon writes."""
        self._transport.writing_paused = True
        self._watchdog.writing_paused(paused=True)
        self._requests.writing_paused(paused=True)

    def resume_writing(self) -> None:
        """Note that the client has caught up."""
        self._transport.writing_paused = False
        self._watchdog.writing_paused(paused=False)
        self._requests.writing_paused(paused=False)

    # Another protocol

    def _give_away(self, adopt: Callable[[asyncio.Transport, bytes], None]) -> None:
        """Give the connection to another protocol, and do as if it were lost."""
        if self._life.state is not State.SERVING:
            return  # it has ended since
        transport, received = self._transport.asyncio_transport, bytes(self._incoming.ahead)
        transport.pause_reading()
        self._life.reason = "upgraded"
        self.connection_lost(None)
        adopt(transport, received)

    # Its place

    def shut_down(self) -> None:
        """Finish the running request, then close."""
        self._requests.close_when_idle()

    def abort(self, reason: str) -> None:
        """Cut the connection because the server ends, even if a lane still has it."""
        self._life.cut_off(reason)

    def _drop_soon(self) -> None:
        """End the connection, in a later step of the loop: the caller is another connection, which needs the place."""
        self._loop.call_soon(self._drop)

    def _drop(self) -> None:
        self._life.abort("limit")

    # Timeouts

    def _waits_for_peer(self) -> bool:
        """Return whether the timeout runs: whether the daemon waits for the client."""
        if self._life.state is State.SERVING:
            return self._watchdog.reading and not self._transport.held
        return self._life.state not in (State.DISCARDING, State.HANDED_OVER)

    def _timed_out(self) -> None:
        if self._life.state is State.IDLE:
            self._life.reason = "inactivity"
            self._life.finish()
        else:
            self._life.abort("inactivity")
