# SPDX-License-Identifier: Apache-2.0
"""Stopping of threads that wait for a peer, by shutdown(2) of their sockets."""

import contextlib
import socket
import threading
from collections.abc import Callable

from .errors import Stopped


class Stop:
    """A request to all threads of a transfer to end. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._calls: list[Callable[[], None]] = []

    def stop(self) -> None:
        """Wake all threads that wait on a socket or in sleep(). Later waits raise Stopped."""
        with self._lock:
            self._event.set()
            for sock in self._sockets:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        for call in self._calls:
            call()

    def call(self, function: Callable[[], None]) -> None:
        """Add a function that stop() calls. Call this before threads start."""
        self._calls.append(function)

    @property
    def is_set(self) -> bool:
        """Return whether stop() was called."""
        return self._event.is_set()

    def check(self) -> None:
        """Raise Stopped after stop()."""
        if self._event.is_set():
            raise Stopped("stopped")

    def sleep(self, seconds: float) -> None:
        """Wait for some seconds. Raises Stopped at stop()."""
        self._event.wait(seconds)
        self.check()

    def add(self, sock: socket.socket) -> None:
        """Add a socket that stop() shuts down. Raises Stopped after stop()."""
        with self._lock:
            self.check()
            self._sockets.add(sock)

    def discard(self, sock: socket.socket) -> None:
        """Remove a socket before it is closed."""
        with self._lock:
            self._sockets.discard(sock)
