# SPDX-License-Identifier: Apache-2.0
"""TLS in the place of a socket: docs/adr/0006, "The client's transport"."""

import errno
import os
import select
import socket
from typing import Any

from ..tlssocket import WANTS_INPUT, TlsContext


class SecureSocket(socket.socket):
    """A connected socket that encrypts what is sent and decrypts what comes. For one thread.

    It takes over the plain socket and its time-out. A call encrypts all that it is given, or decrypts all that is
    there, where ssl.SSLSocket handles a record of 16 KiB. Flags are ignored. host: the server's name; None: we are the
    server. Methods raise OSError, TimeoutError among them; EKEYREJECTED when the peer is not to be trusted.
    """

    def __init__(self, plain: socket.socket, context: TlsContext, host: str | None = None) -> None:
        #: Does what is asked as far as it can be done without waiting.
        self.tls = context.wrap(plain, host)  # if that fails the plain socket stays its owner's
        timeout = plain.gettimeout()
        super().__init__(plain.family, plain.type, plain.proto, fileno=plain.detach())
        self.settimeout(timeout)
        self._poll = select.poll()

    def settimeout(self, value: float | None) -> None:
        """Wait no longer than so many seconds for the peer; None: as long as it takes."""
        super().settimeout(value)
        os.set_blocking(self.fileno(), False)  # it is never the descriptor that waits

    def shake_hands(self) -> None:
        """Agree on keys, and verify the peer."""
        while wanted := self.tls.handshake():
            self._wait(wanted)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all of it."""
        left = memoryview(data)
        self._check()
        while left:
            count = self.tls.write(left)
            if count < 0:
                self._wait(count)
            else:
                left = left[count:]

    def send(self, data: Any, flags: int = 0) -> int:
        """Send all of it, and return how many bytes that are."""
        self.sendall(data)
        return len(data)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Return how many bytes came, at least one, and no less than are there; 0: the end."""
        view = memoryview(buffer)[: nbytes or None]
        self._check()
        while (count := self.tls.readinto(view)) < 0:
            self._wait(count)
        return count

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """Return at most bufsize bytes, as recv_into() gets them."""
        buffer = bytearray(bufsize)
        return bytes(buffer[: self.recv_into(buffer)])

    def _real_close(self) -> None:
        """Say farewell, so that the peer knows this end for one (RFC 8446 6.1); what reads from us is closed by now."""
        if self.fileno() >= 0:
            self.tls.end()
        super()._real_close()  # type: ignore[misc]

    def _check(self) -> None:
        """C knows the descriptor by its number, which may be another's after close()."""
        if self.fileno() < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def _wait(self, wanted: int) -> None:
        timeout = self.gettimeout()
        self._poll.register(self, select.POLLIN if wanted == WANTS_INPUT else select.POLLOUT)
        if not self._poll.poll(None if timeout is None else timeout * 1000):
            raise TimeoutError("timed out")
