# SPDX-License-Identifier: Apache-2.0
"""TLS of ours: contexts, and connections driven by a thread that waits."""

import select
import socket
import ssl

from imageio_daemon.tlssocket import WANTS_INPUT, WANTS_ROOM, TlsContext, TlsSocket

from .daemon import Certificates
from .polling import SOON


def server_context(certificates: Certificates, rules: ssl.SSLContext | None = None) -> TlsContext:
    """Return a server's context, by other rules than the usual ones."""
    rules = rules or ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    return TlsContext(rules, cert_file=str(certificates.certfile), key_file=str(certificates.keyfile))


class Patient:
    """Do what a TlsSocket does, whole."""

    def __init__(self, sock: socket.socket, tls: TlsSocket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self.tls = tls

    def handshake(self) -> None:
        while result := self.tls.handshake():
            self._wait(result)

    def read(self, size: int) -> bytes:
        """Return as many bytes, or fewer at the end."""
        memory = memoryview(bytearray(size))
        got = 0
        while got < size:
            count = self.tls.readinto(memory[got:])
            if count == 0:
                break
            if count < 0:
                self._wait(count)
            else:
                got += count
        return bytes(memory[:got])

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            count = self.tls.write(left)
            if count < 0:
                self._wait(count)
            else:
                left = left[count:]

    def _wait(self, wanted: int) -> None:
        event = {WANTS_INPUT: select.POLLIN, WANTS_ROOM: select.POLLOUT}[wanted]
        poller = select.poll()
        poller.register(self._socket, event)
        if not poller.poll(SOON * 1000):
            raise TimeoutError
