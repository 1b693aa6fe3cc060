# SPDX-License-Identifier: Apache-2.0
"""Stop threads that wait for a peer: their sockets are shut down under them."""

import contextlib
import socket
import threading
from collections.abc import Callable

from .errors import Stopped


class Stop:
    """Tell all threads of a transfer to end. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._calls: list[Callable[[], None]] = []

    def stop(self) -> None:
        """Wake whoever waits, for a socket or for time; further waits raise Stopped."""
        with self._lock:
            self._event.set()
            for sock in self._sockets:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        for call in self._calls:
            call()

    def call(self, function: Callable[[], None]) -> None:
        """Call this, too, when it is time to end. Before threads start."""
        self._calls.append(function)

    def check(self) -> None:
        """Raise Stopped if it is time to end."""
        if self._event.is_set():
            raise Stopped("stopped")

    def sleep(self, seconds: float) -> None:
        """Let time pass. Raises Stopped as soon as it is time to end."""
        self._event.wait(seconds)
        self.check()

    def add(self, sock: socket.socket) -> None:
        """Shut this socket down when it is time to end. Raises Stopped if that is now."""
        with self._lock:
            self.check()
            self._sockets.add(sock)

    def discard(self, sock: socket.socket) -> None:
        """Forget a socket that is about to be closed."""
        with self._lock:
            self._sockets.discard(sock)
