# SPDX-License-Identifier: Apache-2.0
"""An asyncio transport over TlsSocket. It receives into the protocol's buffer, and sends from the caller's.

It pauses writing as soon as it holds a byte, and resumes it when it holds none. set_write_buffer_limits() does not
change that.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Iterable
from typing import cast

from ..units import KiB
from .poller import READABLE, WRITABLE, Poller
from .tls_socket import WANTS_INPUT, WANTS_ROOM, TlsContext, TlsSocket

#: Most reads of one connection in one step of the loop, so that other connections are served in between.
MOST_READS = 4
#: A piece of this many bytes or more is sent without a copy, because it fills TLS records by itself.
LONG = 16 * KiB


def detached(transport: asyncio.Transport) -> tuple[socket.socket, TlsSocket | None]:
    """Take the socket from a transport that has nothing to send, with its TLS if it is a TlsTransport.

    A transport of the loop keeps its socket, so this closes the transport and returns a duplicate. Raises OSError.
    """
    if isinstance(transport, TlsTransport):
        return transport.detach()
    copy = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
    copy.setblocking(False)
    transport.set_protocol(asyncio.Protocol())
    transport.close()
    return copy, None


class TlsTransport(asyncio.Transport):
    """A connection after its handshake."""

    def __init__(
        self,
        poller: Poller,
        sock: socket.socket,
        tls: TlsSocket,
        context: TlsContext,
        protocol: asyncio.BaseProtocol,
    ) -> None:
        """Connect the protocol, a BufferedProtocol, to the socket. It learns of the connection's end in any case."""
        extra = {"socket": sock, "peername": sock.getpeername(), "sslcontext": context.rules, "tls_socket": tls}
        super().__init__(extra)
        self._poller = poller
        self._loop = poller.loop
        self._socket = sock
        self._tls: TlsSocket | None = tls
        self._protocol = cast(asyncio.BufferedProtocol, protocol)
        self._unsent: deque[bytes | memoryview] = deque()
        self._watched = 0
        self._paused = self._closing = False
        self._read_wants_room = self._write_wants_input = False
        protocol.connection_made(self)
        try:
            self._read_soon()  # OpenSSL may hold data that came with the handshake, which epoll does not report
            self._watch()
        except OSError as e:  # connection_made() was called, so connection_lost() must be
            self._fail(e)

    # Queries of asyncio

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol by another BufferedProtocol."""
        self._protocol = cast(asyncio.BufferedProtocol, protocol)

    def is_closing(self) -> bool:
        """Return whether the transport is closing or closed, so that write() does nothing."""
        return self._closing

    def is_reading(self) -> bool:
        """Return whether the transport reads from the socket."""
        return not (self._paused or self._closing)

    def can_write_eof(self) -> bool:
        """Return False. TLS can end one direction (RFC 8446 6.1), but peers of HTTP do not expect it."""
        return False

    def get_write_buffer_size(self) -> int:
        """Return how many bytes the transport holds because the socket did not take them."""
        return sum(map(len, self._unsent))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: writing always pauses at one byte."""

    # Reading

    def pause_reading(self) -> None:
        """Stop reading from the socket."""
        self._paused = True
        self._watch()

    def resume_reading(self) -> None:
        """Read from the socket again."""
        if self._paused:
            self._paused = False
            self._read_soon()
            self._watch()

    def _read_soon(self) -> None:
        if self._tls is not None and self.is_reading() and self._tls.pending:
            self._loop.call_soon(self._ready)

    def _read(self) -> None:
        count = 0
        for _ in range(MOST_READS):
            if self._tls is None or not self.is_reading():
                return
            view = cast(memoryview, self._protocol.get_buffer(-1))
            count = self._tls.readinto(view)
            self._read_wants_room = count == WANTS_ROOM
            if count == 0:
                self._ended()
            elif count > 0:
                self._protocol.buffer_updated(count)
            if count < len(view):
                break
        if count > 0:  # OpenSSL may hold more data, or the end, which epoll does not report
            self._read_soon()

    def _ended(self) -> None:
        """Close after the peer's close_notify, when all held bytes are sent. asyncio's TLS transport does the same."""
        self._protocol.eof_received()
        self.close()

    # Writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data. The memory of a memoryview must not change while writing is paused."""
        if self._closing or not data:
            return
        if isinstance(data, bytearray):
            data = bytes(data)
        held = bool(self._unsent)
        self._unsent.append(data)
        if held:
            return
        try:
            self._send()
        except OSError as e:
            self._fail(e)
        if self._unsent:
            self._watch()
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send several pieces. Join those that are shorter than LONG, and send the others as write() does."""
        short: list[bytes | bytearray | memoryview] = []
        for data in list_of_data:
            if len(data) < LONG:
                short.append(data)
                continue
            self.write(b"".join(short))
            short.clear()
            self.write(data)
        self.write(b"".join(short))

    def _send(self) -> None:
        """Send as many held bytes as the socket takes."""
        while self._unsent and self._tls is not None:
            data = self._unsent[0]
            count = self._tls.write(data)
            self._write_wants_input = count == WANTS_INPUT
            if count < 0:
                return
            if count == len(data):
                self._unsent.popleft()
            else:
                self._unsent[0] = memoryview(data)[count:]

    def _flush(self) -> None:
        """Send held bytes, and resume the protocol's writing when none are left."""
        if not self._unsent:
            return
        self._send()
        if self._unsent:
            return
        if self._closing:
            self._end(None, whole=True)
        else:
            self._watch()
            self._protocol.resume_writing()

    # End

    def close(self) -> None:
        """Send all held bytes, then close_notify, and close."""
        if self._closing:
            return
        self._closing = True
        if self._unsent:
            self._watch()
        else:
            self._end(None, whole=True)

    def abort(self) -> None:
        """Close at once, without close_notify, so that the peer knows that data may be missing (RFC 8446 6.1)."""
        self._closing = True
        self._end(None)

    def _fail(self, error: Exception) -> None:
        self._closing = True
        self._end(error)

    def _end(self, error: Exception | None, *, whole: bool = False) -> None:
        """Release TLS and data, and call connection_lost() in the loop's next step. `whole` tells that all was sent."""
        if self._tls is None:
            return
        if whole:
            self._tls.end()
        self._tls = None
        self._unsent.clear()
        self._watch()
        self._loop.call_soon(self._lost, error, whole)

    def _lost(self, error: Exception | None, whole: bool) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            if whole:
                self._poller.linger(self._socket)
            else:
                self._socket.close()

    def detach(self) -> tuple[socket.socket, TlsSocket]:
        """Return the socket and its TLS, with the data that OpenSSL has received, and forget them.

        Call this when no bytes wait to be sent. It sends no close_notify, and does not call connection_lost(). Raises
        ConnectionError if the connection has ended.
        """
        if self._tls is None:
            raise ConnectionAbortedError("the connection has ended")
        if self._unsent:
            raise RuntimeError("a connection is given away that holds something")
        tls, self._tls = self._tls, None
        self._closing = True
        self._watch()
        return self._socket, tls

    # Socket

    def _watch(self) -> None:
        """Watch the socket for the events that reading and writing need now."""
        wanted = 0
        if self._tls is not None:
            if self.is_reading():
                wanted |= WRITABLE if self._read_wants_room else READABLE
            if self._unsent:
                wanted |= READABLE if self._write_wants_input else WRITABLE
        if wanted == self._watched:
            return
        if wanted:
            self._poller.watch(self._socket.fileno(), wanted, self._ready)
        else:
            self._poller.forget(self._socket.fileno())
        self._watched = wanted

    def _ready(self) -> None:
        try:
            self._flush()
            self._read()
            self._watch()
        except OSError as e:
            self._fail(e)
        except Exception as e:  # noqa: BLE001 - a bug of the protocol is logged, and ends only this connection
            self._loop.call_exception_handler({"message": "a connection failed", "exception": e, "transport": self})
            self._fail(e)
