# SPDX-License-Identifier: Apache-2.0
"""An HTTP proxy on this host that makes tunnels, or answers as a test says."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from tests.support.polling import SOON

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n"


class TunnelProxy:
    """Answer each CONNECT; with a 2xx, forward to a port of this host, whatever host was asked for.

    answers: for the first connections, in their order; later ones get ESTABLISHED. requests: the heads that came.
    """

    def __init__(self, port: int, *answers: bytes, address: str = "127.0.0.1") -> None:
        self.requests: list[str] = []
        self._port = port
        self._answers = list(answers)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family)
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sock in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(SOON)
        for sock in (self._listener, *self._sockets):
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was shut down
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                self._start(self._serve, client)

    def _start(self, function: object, *arguments: socket.socket) -> None:
        thread = threading.Thread(target=function, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                if not (piece := client.recv(4096)):
                    return
                head += piece
            self.requests.append(head.decode())
            answer = self._answers.pop(0) if self._answers else ESTABLISHED
            client.sendall(answer)
            if answer.startswith(b"HTTP/1.1 2"):
                server = socket.create_connection(("127.0.0.1", self._port))
                self._sockets.append(server)
                self._start(_copy, server, client)
                _copy(client, server)
            else:
                client.shutdown(socket.SHUT_RDWR)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
