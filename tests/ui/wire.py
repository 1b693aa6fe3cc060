# SPDX-License-Identifier: Apache-2.0
"""A network between a browser and a daemon that can be cut. The daemon behind it may change its port by a restart."""

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

PIECE = 256 * 1024


class Wire:
    """Pass on the bytes of each connection to a port of this host. target: returns the port that a new one leads to."""

    def __init__(self, target: Callable[[], int]) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_cut = False
        self._silent = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def cut(self) -> None:
        """Break all connections, and each new one."""
        with self._lock:
            self._is_cut = True
            for one in self._connections:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def silence(self) -> None:
        """Drop what is sent from now on, on connections that seem to stay."""
        self._silent.set()

    def mend(self) -> None:
        """Let new connections through again. Those that were silent lack bytes, and stay silent."""
        with self._lock:
            self._is_cut = False
            self._silent = threading.Event()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                browser, _ = self._listening.accept()
                threading.Thread(target=self._pass_on, args=(browser,), daemon=True).start()

    def _pass_on(self, browser: socket.socket) -> None:
        with browser, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._target())) as daemon:
            with self._lock:
                if self._is_cut:
                    return
                self._connections |= {browser, daemon}
            try:
                self._until_one_ends(browser, daemon)
            finally:
                with self._lock:
                    self._connections -= {browser, daemon}

    def _until_one_ends(self, browser: socket.socket, daemon: socket.socket) -> None:
        peers = {browser: daemon, daemon: browser}
        silent = self._silent
        while True:
            for ready in select.select(list(peers), [], [])[0]:
                data = ready.recv(PIECE)
                if not data:
                    return
                if not silent.is_set():
                    peers[ready].sendall(data)
