# SPDX-License-Identifier: Apache-2.0
"""Listening sockets: each connection goes to the loop that has the fewest."""

import asyncio
import errno
import logging
import socket
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from . import tls_contexts
from .connection_limit import LOCAL
from .listening import BACKLOG
from .loops import Server, ServingLoop

log = logging.getLogger(__name__)

#: Errors of accept(2) that pass, and the seconds until it is tried again.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
ACCEPT_PAUSE = 1.0
#: Connections that are accepted in one iteration of the loop, so that others are served in between: 64 take 4 ms.
MOST_ACCEPTED = 64


class Endpoint(NamedTuple):
    """A loop, and the server on it of one listening socket's connections."""

    loop: ServingLoop
    server: Server


class Listener(Protocol):
    """The acceptor of a listening socket's connections."""

    def is_serving(self) -> bool:
        """Tell whether connections are accepted."""
        ...

    def close(self) -> None:
        """Close the listening socket."""
        ...


async def listen(sock: socket.socket, endpoints: Sequence[Endpoint], secure: tls_contexts.ServerTls | None) -> Listener:
    """Accept connections of a listening socket on the running loop, which is the first one's.

    With one endpoint and no TLS, uvloop accepts by itself: that takes 0.05 ms of processor time for each connection,
    an Acceptor 0.075.
    """
    if len(endpoints) > 1 or secure is not None:
        return Acceptor(sock, endpoints, secure)
    server = endpoints[0].server
    # create_server() calls listen(2) again, with a backlog of 100 by default.
    return await asyncio.get_running_loop().create_server(server.connection, sock=sock, backlog=BACKLOG)


class Acceptor:
    """Accept connections, each for the endpoint whose loop has the fewest; of equal ones, for the first.

    secure: a connection gets the context that is current when its handshake begins; None without TLS.
    """

    def __init__(
        self, sock: socket.socket, endpoints: Sequence[Endpoint], secure: tls_contexts.ServerTls | None
    ) -> None:
        self._socket = sock
        self._endpoints = endpoints
        self._secure = secure
        self._loop = asyncio.get_running_loop()
        self._paused: asyncio.TimerHandle | None = None
        self._listen()

    def is_serving(self) -> bool:
        """Tell whether connections are accepted: not after close(), and not while there are no descriptors."""
        return self._paused is None and self._socket.fileno() != -1

    def close(self) -> None:
        """Close the listening socket."""
        if self._paused is not None:
            self._paused.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _listen(self) -> None:
        self._paused = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(MOST_ACCEPTED):
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as e:
                if e.errno not in _EXHAUSTED:
                    raise
                log.error("cannot accept connections: %s", e.strerror)
                self._loop.remove_reader(self._socket)
                self._paused = self._loop.call_later(ACCEPT_PAUSE, self._listen)
                return
            sock.setblocking(False)
            loop, server = min(self._endpoints, key=lambda endpoint: endpoint.loop.connections)
            loop.hand_over(sock, address[0] if isinstance(address, tuple) else LOCAL, server, self._secure)
