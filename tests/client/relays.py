# SPDX-License-Identifier: Apache-2.0
"""Programs that pass bytes on and see them all, and a network namespace for the daemon behind them."""

import contextlib
import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.support.polling import SOON

CLONE_NEWNET = 0x40000000
PIECE = 64 * 1024


class Namespace:
    """A network namespace with its own loopback device. `inside` is what comes before a command that runs there."""

    def __init__(self) -> None:
        self._name = f"imageio-{os.getpid()}-there"
        self.inside = ("ip", "netns", "exec", self._name)

    def __enter__(self) -> Self:
        subprocess.run(["ip", "netns", "add", self._name], check=True)
        subprocess.run(["ip", "-netns", self._name, "link", "set", "lo", "up"], check=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        subprocess.run(["ip", "netns", "del", self._name], check=True)

    def connect(self, family: socket.AddressFamily, address: tuple[str, int] | str) -> socket.socket:
        """Return a socket of the namespace, connected there. It can be used from anywhere."""
        made: list[socket.socket] = []
        thread = threading.Thread(target=self._enter, args=(lambda: made.append(_connected(family, address)),))
        thread.start()
        thread.join()
        if not made:
            raise ConnectionRefusedError
        return made[0]

    def _enter(self, function: Callable[[], None]) -> None:
        """Call a function in the namespace. Only this thread is there (setns(2))."""
        namespace = os.open(f"/run/netns/{self._name}", os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(namespace)
        with contextlib.suppress(ConnectionRefusedError):
            function()


class Relay:
    """Pass on what comes to a listening socket. target: connects to where it goes.

    count: of connections. captured: what clients have sent.
    """

    def __init__(self, listener: socket.socket, target: Callable[[], socket.socket]) -> None:
        self.count = 0
        self.captured = bytearray()
        self._listener = listener
        self._target = target
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(self._listener)
        self._threads[0].join(SOON)
        for sock in self._sockets:
            self._end(sock)
        for thread in self._threads:
            thread.join(SOON)
        for sock in (self._listener, *self._sockets):
            sock.close()

    def _end(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was shut down
            while True:
                client, _ = self._listener.accept()
                self.count += 1
                server = self._target()
                self._sockets += [client, server]
                self._start(client, server, self.captured.extend)
                self._start(server, client, lambda _: None)

    def _start(self, source: socket.socket, target: socket.socket, see: Callable[[bytes], None]) -> None:
        self._threads.append(threading.Thread(target=_copy, args=(source, target, see)))
        self._threads[-1].start()


def _copy(source: socket.socket, target: socket.socket, see: Callable[[bytes], None]) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(PIECE):
            see(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def listening(address: tuple[str, int] | str) -> socket.socket:
    """Return a socket that listens on an address of TCP, or a unix socket's."""
    if isinstance(address, tuple):
        return socket.create_server(address)
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(address)
    sock.listen()
    return sock


def _connected(family: socket.AddressFamily, address: tuple[str, int] | str) -> socket.socket:
    sock = socket.socket(family)
    try:
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock
