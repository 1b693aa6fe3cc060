# SPDX-License-Identifier: Apache-2.0
"""The transport of a connection: why reading is paused, which bytes are not sent yet, and the close."""

import asyncio
import select
import socket
import struct

from ....net.admission import client_of
from ....net.connection_limit import LOCAL
from ....net.tls_socket import TlsSocket
from ....runtime.audit_log import Caller

#: struct ucred: pid, uid, gid.
_CREDENTIALS = struct.Struct("iII")


class _Gone(asyncio.Transport):
    """The transport of a connection that is lost.

    It replaces asyncio's transport, which refers to the connection. Otherwise the reference cycle would keep both until
    the garbage collector runs.
    """

    def is_closing(self) -> bool:
        """Return True."""
        return True

    def abort(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


_GONE = _Gone()


class ClientTransport:
    """The transport of one client. It pauses reading while there is a reason to, and counts the bytes it sends."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.asyncio_transport = transport
        self.peer, self.address = client_of(transport)
        self.tls = transport.get_extra_info("sslcontext") is not None
        #: Whether asyncio's transport holds bytes that the socket did not take.
        self.writing_paused = False
        self.sent = 0
        self._holds: set[str] = set()

    @property
    def caller(self) -> Caller:
        """Return who the client is, for events: its address, or the user and process on a unix socket (unix(7))."""
        if self.address != LOCAL:
            return {"client": self.peer}
        borrowed = socket.socket(fileno=self.fileno)  # no copy: there may be no descriptor left for one
        try:
            found = borrowed.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        finally:
            borrowed.detach()
        pid, uid, _ = _CREDENTIALS.unpack(found)
        return {"uid": uid, "pid": pid}

    @property
    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return int(self.asyncio_transport.get_extra_info("socket").fileno())

    @property
    def tls_socket(self) -> TlsSocket | None:
        """Return the connection's TLS, if it has any."""
        found: TlsSocket | None = self.asyncio_transport.get_extra_info("tls_socket")
        return found

    @property
    def unsent(self) -> bool:
        """Return whether the transport holds bytes that the socket did not take."""
        return self.asyncio_transport.get_write_buffer_size() > 0

    @property
    def is_closing(self) -> bool:
        """Return whether no more bytes can be sent."""
        return self.asyncio_transport.is_closing()

    # Reading

    @property
    def held(self) -> bool:
        """Return whether reading is paused."""
        return bool(self._holds)

    def hold(self, why: str) -> None:
        """Pause reading until this and all other reasons are released. A repeated reason has no effect."""
        if not self._holds and not self.asyncio_transport.is_closing():
            self.asyncio_transport.pause_reading()
        self._holds.add(why)

    def release(self, why: str) -> None:
        """Remove one reason, and resume reading if it was the last."""
        if why in self._holds:
            self._holds.discard(why)
            if not self._holds and not self.asyncio_transport.is_closing():
                self.asyncio_transport.resume_reading()

    def release_all(self) -> None:
        """Remove all reasons, and resume reading."""
        for why in list(self._holds):
            self.release(why)

    @property
    def hung_up(self) -> bool:
        """Return whether the client cannot receive, after a reset or the close of a unix socket (POLLHUP, poll(2)).

        Over TCP, only the next write finds out that a client has closed in order.
        """
        poller = select.poll()
        poller.register(self.fileno, 0)
        return bool(poller.poll(0))

    # Writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, unless the transport is closing. The transport may keep a reference to them."""
        if not self.is_closing:
            self.sent += len(data)
            self.asyncio_transport.write(data)

    # The end

    def end_sending(self) -> None:
        """Close the writing side of the socket (RFC 9112 9.6). Under TLS this does nothing."""
        if self.asyncio_transport.can_write_eof():
            self.asyncio_transport.write_eof()

    def close(self) -> None:
        """Close as soon as all written bytes are sent."""
        self.asyncio_transport.close()

    def abort(self) -> None:
        """Close the connection now, without sending the bytes that are left."""
        self.asyncio_transport.abort()

    def lost(self) -> None:
        """Drop the reference to asyncio's transport, because the connection is lost."""
        self.asyncio_transport = _GONE
