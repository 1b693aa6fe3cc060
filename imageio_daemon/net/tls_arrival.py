# SPDX-License-Identifier: Apache-2.0
"""Accepted connections until the end of their TLS handshake.

A connection gets memory for TLS when the first byte of its client arrives. Until then it costs a descriptor and a
TlsArrival.
"""

import asyncio
import logging
import socket
from collections.abc import Callable

from .connection_limit import ConnectionLimit, Stage
from .poller import READABLE
from .tls_handshake import Handshakes
from .tls_socket import TlsContext

log = logging.getLogger(__name__)

#: Most seconds from accept to the end of the handshake. A client that takes longer is disconnected.
HANDSHAKE_TIMEOUT = 10.0


class TlsArrival:
    """One accepted connection. Use this on the event loop.

    `make` returns the protocol that will serve the connection. `ended` is called once, when the protocol serves it or
    the connection was closed. The services of HTTP share a limit, so metrics count arrivals by limit, not by service.
    """

    def __init__(
        self,
        handshakes: Handshakes,
        sock: socket.socket,
        context: Callable[[], TlsContext],
        make: Callable[[], asyncio.BaseProtocol],
        ended: "Callable[[TlsArrival], None]",
    ) -> None:
        self._handshakes = handshakes
        self._poller = handshakes.poller
        self._loop = self._poller.loop
        self._socket = sock
        self._context = context
        self._make = make
        self._ended = ended
        self._task: asyncio.Task[None] | None = None

    def begin(self, limit: ConnectionLimit, address: str) -> None:
        """Wait for the first byte of the client, with a place in the limit for its address."""
        self._place = limit.enter(Stage.SILENT, address, self.drop)
        self._timer = self._loop.call_later(HANDSHAKE_TIMEOUT, self.drop)
        self._poller.watch(self._socket.fileno(), READABLE, self._spoke)

    def drop(self) -> None:
        """Cancel the handshake and close the connection, unless the handshake has ended."""
        if self._task is not None:
            self._task.cancel()
        elif self._socket.fileno() != -1:
            self._poller.forget(self._socket.fileno())
            self._close()

    def _spoke(self) -> None:
        self._poller.forget(self._socket.fileno())
        self._place.spoke()
        shaking = self._handshakes.shake(self._socket, self._context(), self._make)
        self._task = self._loop.create_task(shaking)
        self._task.add_done_callback(self._shaken)

    def _shaken(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            self._end()
            return
        if isinstance(error, OSError):
            log.debug("connection was not made: %s", error)
        elif error is not None:
            self._loop.call_exception_handler({"message": "a connection was not made", "exception": error})
        self._close()

    def _close(self) -> None:
        self._socket.close()
        self._end()

    def _end(self) -> None:
        self._timer.cancel()
        self._place.leave()
        self._ended(self)
