# SPDX-License-Identifier: Apache-2.0
"""The server's TLS handshake on an accepted socket. At its end a TlsTransport serves the connection.

A handshake takes 1 to 3 ms of processor time, most of it for the signature, for which OpenSSL releases the GIL. So its
steps run in threads of their own, and the event loop only waits for sockets.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .poller import READABLE, WRITABLE, Poller
from .tls_socket import WANTS_INPUT, TlsContext, TlsSocket
from .tls_transport import TlsTransport
from .transports import send_at_once

#: Most threads for handshakes.
MOST_THREADS = 4


class Handshakes:
    """Shake hands with the clients of one event loop. The steps of all handshakes share a few threads.

    `poller` watches all sockets with TLS, during the handshake and after it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.poller = Poller(loop)
        self._threads = ThreadPoolExecutor(min(MOST_THREADS, len(os.sched_getaffinity(0))), "handshake")

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
