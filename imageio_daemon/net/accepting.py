# SPDX-License-Identifier: Apache-2.0
"""Accept connections on listening sockets, and pass them on."""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from . import tls_contexts
from .connection_limit import LOCAL
from .serving import Server, Serving

log = logging.getLogger(__name__)

#: Errors of accept(2) that are temporary, and the seconds until the next try: after a connection was closed to make
#: room, and if none was. New clients wait in the kernel's queue.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
RELIEVED_PAUSE = 0.02
ACCEPT_PAUSE = 1.0
#: Seconds between two lines in the log about such an error.
WARNING_INTERVAL = 60.0
#: Most connections that are accepted in one step of the loop, so that others are served in between. 64 take 4 ms.
MOST_ACCEPTED = 64


class Acceptor:
    """Accept connections for a server.

    `secure` has the TLS context, if there is TLS. A connection gets the context that is current when its handshake
    begins. `relieve` is called when there are no descriptors left. It closes a connection without a ticket, and tells
    whether it did. (uvloop's own server would reset new connections.) At most `burst` connections are accepted at once.
    """

    def __init__(
        self,
        sock: socket.socket,
        serving: Serving,
        server: Server,
        secure: tls_contexts.ServerTls | None,
        relieve: Callable[[], bool] = bool,
        burst: int = MOST_ACCEPTED,
    ) -> None:
        self._socket = sock
        self._serving = serving
        self._server = server
        self._secure = secure
        self._relieve = relieve
        self._burst = min(burst, MOST_ACCEPTED)
        self._loop = asyncio.get_running_loop()
        self._paused: asyncio.TimerHandle | None = None
        self._warned = -WARNING_INTERVAL
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
        for _ in range(self._burst):
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as e:
                if e.errno not in _EXHAUSTED:
                    raise
                self._pause(e)
                return
            sock.setblocking(False)
            client = address[0] if isinstance(address, tuple) else LOCAL
            self._serving.connect(sock, client, self._server, self._secure)

    def _pause(self, error: OSError) -> None:
        """Accept no connections for a while, because there are no descriptors."""
        self._loop.remove_reader(self._socket)
        self._paused = self._loop.call_later(RELIEVED_PAUSE if self._relieve() else ACCEPT_PAUSE, self._listen)
        now = self._loop.time()
        if now - self._warned >= WARNING_INTERVAL:
            self._warned = now
            log.error("cannot accept connections: %s", error.strerror)
