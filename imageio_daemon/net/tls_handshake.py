# SPDX-License-Identifier: Apache-2.0
"""The server's TLS handshake on an accepted socket. At its end a TlsTransport serves the connection.

A handshake takes 1 to 3 ms of processor time, most of it for the signature, and OpenSSL releases the GIL meanwhile. So
its steps are done in threads of their own, and the event loop waits for sockets only.
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

#: The most threads for handshakes.
MOST_THREADS = 4


class Handshakes:
    """Shake hands with the clients of one event loop; the steps of all handshakes share a few threads.

    poller: of all sockets with TLS, during the handshake and after it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.poller = Poller(loop)
        self._threads = ThreadPoolExecutor(min(MOST_THREADS, len(os.sched_getaffinity(0))), "handshake")

    def close(self) -> None:
        """Close the poller, and end the threads. No handshake may be under way. Later calls do nothing."""
        self.poller.close()
        self._threads.shutdown(wait=False)

    async def shake(self, sock: socket.socket, context: TlsContext, make: Callable[[], asyncio.BaseProtocol]) -> None:
        """Complete the server's handshake, then connect a new protocol to the socket by a TlsTransport.

        sock: non-blocking; the transport owns it on success, the caller after an error or cancellation. make: called
        after the handshake. Raises OSError.
        """
        send_at_once(sock)
        tls = context.wrap(sock)
        while result := await self._step(tls):
            await self._ready(sock.fileno(), READABLE if result == WANTS_INPUT else WRITABLE)
        TlsTransport(self.poller, sock, tls, context, make())

    async def _step(self, tls: TlsSocket) -> int:
        """Continue a handshake in a thread. A step that is cancelled has ended, so that its socket can be closed."""
        step = self._threads.submit(tls.handshake)
        ended = asyncio.wrap_future(step)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            if not step.cancel():  # else it has not begun
                while not ended.done():  # which takes some ms; nothing blocks in it
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.wait([ended])
                ended.exception()  # nobody else asks for it
            raise

    async def _ready(self, fd: int, wanted: int) -> None:
        """Wait until the socket is ready for `wanted`, READABLE or WRITABLE."""
        ready = asyncio.Event()
        self.poller.watch(fd, wanted, ready.set)
        try:
            await ready.wait()
        finally:
            self.poller.forget(fd)
