# SPDX-License-Identifier: Apache-2.0
"""The server's TLS handshake on an accepted socket. At its end a TlsTransport serves the connection."""

import asyncio
import socket
from collections.abc import Callable

from .poller import READABLE, WRITABLE, Poller
from .tls_socket import WANTS_INPUT, TlsContext
from .tls_transport import TlsTransport
from .transports import send_at_once

#: Handshakes that are continued in one iteration of the loop. With an RSA key each takes up to 2 ms.
MOST_HANDSHAKES = 4


class Pollers:
    """The pollers of one loop: one for established TLS connections, one that limits handshakes per iteration."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.connections = Poller(loop)
        self.handshakes = Poller(loop, MOST_HANDSHAKES)

    def close(self) -> None:
        """Close both pollers."""
        self.connections.close()
        self.handshakes.close()


async def shake_hands(
    pollers: Pollers,
    sock: socket.socket,
    context: TlsContext,
    make: Callable[[], asyncio.BaseProtocol],
) -> None:
    """Complete the server's handshake, then connect a new protocol to the socket by a TlsTransport.

    sock: non-blocking; the transport owns it on success, the caller after an error or cancellation. make: called after
    the handshake. Raises OSError.
    """
    poller, fd = pollers.handshakes, sock.fileno()
    send_at_once(sock)
    tls = context.wrap(sock)
    while result := tls.handshake():
        await _ready(poller, fd, READABLE if result == WANTS_INPUT else WRITABLE)
    TlsTransport(pollers.connections, sock, tls, context, make())


async def _ready(poller: Poller, fd: int, wanted: int) -> None:
    """Wait until the socket is ready for `wanted`, READABLE or WRITABLE."""
    ready = asyncio.Event()
    poller.watch(fd, wanted, ready.set)
    try:
        await ready.wait()
    finally:
        poller.forget(fd)
