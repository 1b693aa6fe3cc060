# SPDX-License-Identifier: Apache-2.0
"""A bridge for programs that know TLS and no NBD: it asks an NBD server for STARTTLS, and passes on what follows."""

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Self

#: proto.md, newstyle negotiation and NBD_OPT_STARTTLS.
_GREETING = struct.Struct(">QQH")
_OPTION = struct.Struct(">QII")
_REPLY = struct.Struct(">QIII")
_MAGIC, _OPTIONS = 0x4E42444D41474943, 0x49484156454F5054
_FIXED, _NO_ZEROES, _STARTTLS, _ACK = 1, 2, 5, 1


class Bridge:
    """Listen on `port` of loopback until the end of the block. server: port of the NBD server there."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._server), 10) as server:
            try:
                start_tls(server)
                server.settimeout(None)
                back = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
                back.start()
                _pass_on(client, server)
                back.join(30)
            except OSError:
                return  # either side has ended


def start_tls(server: socket.socket) -> None:
    """Negotiate up to the reply after which TLS begins. Raises OSError: the server refuses."""
    magic, options, flags = _GREETING.unpack(server.recv(_GREETING.size, socket.MSG_WAITALL))
    if (magic, options) != (_MAGIC, _OPTIONS) or not flags & _FIXED:
        raise OSError("not an NBD server")
    server.sendall(struct.pack(">I", _FIXED | flags & _NO_ZEROES) + _OPTION.pack(_OPTIONS, _STARTTLS, 0))
    _, _, kind, length = _REPLY.unpack(server.recv(_REPLY.size, socket.MSG_WAITALL))
    if (kind, length) != (_ACK, 0):
        raise OSError(f"STARTTLS is answered {kind:#x}")


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
