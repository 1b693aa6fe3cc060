# SPDX-License-Identifier: Apache-2.0
"""Accepted connections until the end of their TLS handshake. Then a TlsTransport serves the connection.

A connection gets memory for TLS when the first byte of its client arrives. Until then it costs a descriptor and a
TlsArrival.

A handshake takes 1 to 3 ms of processor time, most of it for the signature, for which OpenSSL releases the GIL. So its
steps run in threads of their own, and the event loop only waits for sockets.
"""

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .connection_limit import ConnectionLimit, Stage
from .poller import READABLE, WRITABLE, Poller
from .tls_socket import WANTS_INPUT, TlsContext, TlsSocket
from .tls_transport import TlsTransport
from .transports import send_at_once

log = logging.getLogger(__name__)

#: Most seconds from accept to the end of the handshake. A client that takes longer is disconnected.
HANDSHAKE_TIMEOUT = 10.0
#: Most threads for handshakes.
MOST_THREADS = 4


class Handshakes:
    """Shake hands with the clients of one event loop. The steps of all handshakes share a few threads.

    `poller` watches all sockets with TLS, during the handshake and after it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._threads = _running(min(MOST_THREADS, len(os.sched_getaffinity(0))))
        self.poller = Poller(loop)

    def close(self) -> None:
        """Close the poller, and end the threads. Call this when no handshake is under way. Later calls do nothing."""
        self.poller.close()
        self._threads.shutdown(wait=False)

    async def shake(self, sock: socket.socket, context: TlsContext, make: Callable[[], asyncio.BaseProtocol]) -> None:
        """Complete the server's handshake, then connect a new protocol to the socket by a TlsTransport.

        The socket is non-blocking. On success the transport owns it; after an error or cancellation the caller does.
        `make` is called after the handshake. Raises OSError.
        """
        send_at_once(sock)
        tls = context.wrap(sock)
        while result := await self._step(tls):
            await self._ready(sock.fileno(), READABLE if result == WANTS_INPUT else WRITABLE)
        TlsTransport(self.poller, sock, tls, context, make())

    async def _step(self, tls: TlsSocket) -> int:
        """Continue a handshake in a thread. If cancelled, wait for the step's end, so that its socket can be closed."""
        step = self._threads.submit(tls.handshake)
        ended = asyncio.wrap_future(step)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            if not step.cancel():  # if cancel() succeeds, the step has not begun
                while not ended.done():  # some ms, because nothing in the step blocks
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.wait([ended])
                ended.exception()  # so that asyncio does not log it
            raise

    async def _ready(self, fd: int, wanted: int) -> None:
        """Wait until the socket is ready for `wanted`, READABLE or WRITABLE."""
        ready = asyncio.Event()
        self.poller.watch(fd, wanted, ready.set)
        try:
            await ready.wait()
        finally:
            self.poller.forget(fd)


def _running(count: int) -> ThreadPoolExecutor:
    """Return an executor whose threads have all been started. Raises RuntimeError if the host does not allow them.

    submit() starts a thread where none is idle. If that fails it raises, but another thread runs the function later: a
    step of a handshake, whose socket is closed by then, and its descriptor maybe that of another client.
    """
    threads = ThreadPoolExecutor(count, "handshake")
    all_run = threading.Barrier(count)
    try:
        for _ in range(count):
            threads.submit(all_run.wait)
    except RuntimeError:
        all_run.abort()
        threads.shutdown(wait=False)
        raise
    return threads


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
