# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that breaks or holds connections after a number of bytes."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

PIECE = 64 * 1024


class Proxy:
    """Forward connections to a port of this host. `budget` tells how many bytes the next connection may carry.

    host: the loopback address to listen on. hold: a connection that has carried them is not broken, but stays as it is;
    `held` is released for each.
    """

    def __init__(self, port: int, budget: Callable[[], int], *, hold: bool = False, host: str = "127.0.0.1") -> None:
        self.broken = 0
        self.held = threading.Semaphore(0)
        self._hold = hold
        self._ended = threading.Event()
        self._target = port
        self._budget = budget
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self._thread = threading.Thread(target=self._accept)
        self._links: list[_Link] = []

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def carried(self) -> int:
        """The bytes of all connections so far, in both directions."""
        return sum(link.carried for link in self._links)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self._ended.set()
        for link in self._links:
            link.end()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was shut down
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except ConnectionRefusedError:
                    client.close()
                else:
                    self._links.append(_Link(client, server, self._budget(), self._used_up))

    def _used_up(self) -> None:
        if self._hold:
            self.held.release()
            self._ended.wait()
        else:
            self.broken += 1


class _Link:
    """One connection on both sides, and a thread for each direction."""

    def __init__(self, client: socket.socket, server: socket.socket, budget: int, used_up: Callable[[], None]) -> None:
        self._sockets = (client, server)
        self.carried = 0
        self._left = budget
        self._used_up = used_up
        self._lock = threading.Lock()
        pairs = ((client, server), (server, client))
        self._threads = [threading.Thread(target=self._copy, args=pair) for pair in pairs]
        for thread in self._threads:
            thread.start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE):
                allowed = self._take(len(data))
                target.sendall(data[:allowed])
                if allowed < len(data):
                    self._used_up()
                    break
        self._shut()

    def _take(self, wanted: int) -> int:
        with self._lock:
            allowed = min(wanted, self._left)
            self._left -= allowed
            self.carried += allowed
            return allowed

    def _shut(self) -> None:
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                # A reset when the socket is closed, as of a peer that vanished.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        self._shut()
        for thread in self._threads:
            thread.join()
        for sock in self._sockets:
            sock.close()
