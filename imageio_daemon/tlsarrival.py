# SPDX-License-Identifier: Apache-2.0
"""Connections from accept to the end of their TLS handshake.

Until its client has said something, one costs a descriptor and an entry here, and no memory of TLS.
"""

import asyncio
import logging
import socket
from collections.abc import Callable

from .connectionlimit import ConnectionLimit, Stage
from .poller import READABLE
from .tlssocket import TlsContext
from .tlstransport import Pollers, shake_hands

log = logging.getLogger(__name__)

#: A client that takes longer for its handshake is given up, in seconds: it may hold a connection without a word.
HANDSHAKE_TIMEOUT = 10.0


class TlsArrival:
    """One connection. Lives on the loop of the pollers.

    make: makes the protocol that serves it. ended: called when the connection is served, or closed.
    """

    def __init__(
        self,
        pollers: Pollers,
        sock: socket.socket,
        context: Callable[[], TlsContext],
        make: Callable[[], asyncio.BaseProtocol],
        ended: "Callable[[TlsArrival], None]",
    ) -> None:
        self._pollers = pollers
        self._loop = pollers.handshakes.loop
        self._socket = sock
        self._context = context
        self._make = make
        self._ended = ended
        self._task: asyncio.Task[None] | None = None

    def begin(self, limit: ConnectionLimit, address: str) -> None:
        """Wait for the client. address: its own."""
        self._place = limit.enter(Stage.SILENT, address, lambda: self._loop.call_soon_threadsafe(self.drop))
        self._timer = self._loop.call_later(HANDSHAKE_TIMEOUT, self.drop)
        self._pollers.handshakes.watch(self._socket.fileno(), READABLE, self._spoke)

    def drop(self) -> None:
        """Close the connection, unless it is served already."""
        if self._task is not None:
            self._task.cancel()
        elif self._socket.fileno() != -1:
            self._pollers.handshakes.forget(self._socket.fileno())
            self._close()

    def _spoke(self) -> None:
        self._pollers.handshakes.forget(self._socket.fileno())
        self._place.spoke()
        shaking = shake_hands(self._pollers, self._socket, self._context(), self._make)
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
