# SPDX-License-Identifier: Apache-2.0
"""TLS with the methods of a blocking socket, for http.client (docs/adr/0006)."""

import errno
import os
import select
import socket
from typing import Any

from ...net.tls_socket import WANTS_INPUT, TlsContext


class SecureSocket(socket.socket):
    """A connected socket with TLS, for one thread.

    It takes over the descriptor and the timeout of the plain socket. A call encrypts all of its data, or decrypts all
    that has arrived, where ssl.SSLSocket handles one record of 16 KiB. Flags are ignored. `host` is the server's name,
    or None if this side is the server. Methods raise OSError: TimeoutError, and EKEYREJECTED if the peer cannot be
    verified.
    """

    def __init__(self, plain: socket.socket, context: TlsContext, host: str | None = None) -> None:
        #: TLS on the descriptor; it never blocks.
        self.tls = context.wrap(plain, host)  # if it raises, the caller still owns the plain socket
        timeout = plain.gettimeout()
        super().__init__(plain.family, plain.type, plain.proto, fileno=plain.detach())
        self.settimeout(timeout)

    def settimeout(self, value: float | None) -> None:
        """Set the longest wait for the peer, in seconds. None is no limit."""
        super().settimeout(value)
        os.set_blocking(self.fileno(), False)  # waits are in _wait(), not in the descriptor

    def shake_hands(self) -> None:
        """Complete the TLS handshake, which verifies the peer."""
        while wanted := self.tls.handshake():
            self._wait(wanted)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all of the data."""
        left = memoryview(data)
        while left:
            left = left[self.send(left) :]

    def send(self, data: Any, flags: int = 0) -> int:
        """Send as many bytes as the kernel takes, at least one, and return their number. Send the rest next."""
        view = memoryview(data)
        self._check()
        while (count := self.tls.write(view)) < 0:
            self._wait(count)
        return count

    def has_ended(self) -> bool:
        """Return whether the peer has closed the connection, or has sent bytes without a request."""
        return self.tls.readinto(memoryview(bytearray(1))) >= 0

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive at least one byte, and as many as have arrived and fit. Return their number, 0 at the end."""
        view = memoryview(buffer)[: nbytes or None]
        self._check()
        while (count := self.tls.readinto(view)) < 0:
            self._wait(count)
        return count

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """Return at most bufsize bytes, as recv_into() receives them."""
        buffer = bytearray(bufsize)
        return bytes(buffer[: self.recv_into(buffer)])

    def _real_close(self) -> None:
        """Send close_notify (RFC 8446 6.1) and close. All file objects of the socket were closed before."""
        if self.fileno() >= 0:
            self.tls.end()
        super()._real_close()  # type: ignore[misc]

    def _check(self) -> None:
        """Raise OSError after close(): C still has the descriptor's number, which another file may have by then."""
        if self.fileno() < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def _wait(self, wanted: int) -> None:
        if wanted != WANTS_INPUT:
            until_writable(self)
        elif not _poll(self, select.POLLIN):
            raise TimeoutError("timed out")


def until_writable(sock: socket.socket) -> None:
    """Wait until a socket takes data, at most for its timeout. Raises TimeoutError.

    Raises ConnectionResetError if the peer takes none and has ended its side. Its answer is then complete, and the rest
    of the data is of no use.
    """
    events = _poll(sock, select.POLLOUT | select.POLLRDHUP)
    if not events:
        raise TimeoutError("timed out")
    if not events & ~select.POLLRDHUP:
        raise ConnectionResetError(errno.ECONNRESET, "the peer has ended it")


def _poll(sock: socket.socket, events: int) -> int:
    """Return which of the events have come, 0 after the timeout of the socket."""
    poll = select.poll()
    poll.register(sock, events)
    timeout = sock.gettimeout()
    ready = poll.poll(None if timeout is None else timeout * 1000)
    return ready[0][1] if ready else 0
