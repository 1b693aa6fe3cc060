# SPDX-License-Identifier: Apache-2.0
"""asyncio's transport on TLS of our own: bytes are received where they are wanted, and sent from where they lie.

Writing is paused as soon as the transport holds a byte, and resumed when it holds none: set_write_buffer_limits() can
say nothing else.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import cast

from .poller import READABLE, WRITABLE, Poller
from .tlssocket import WANTS_INPUT, WANTS_ROOM, TlsContext, TlsSocket
from .transports import send_at_once
from .units import KiB

#: Reads of one connection in one turn of the loop: others wait meanwhile.
MOST_READS = 4
#: Pieces of this length are not copied to be sent with others: they fill records by themselves.
LONG = 16 * KiB
#: Handshakes that go on in one turn of the loop: each takes up to 2 ms of it, for a key of RSA, and others wait.
MOST_HANDSHAKES = 4


class Pollers:
    """The sockets of one loop's connections with TLS. Those in their handshake wait for their turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.connections = Poller(loop)
        self.handshakes = Poller(loop, MOST_HANDSHAKES)

    def close(self) -> None:
        """Watch nothing any more."""
        self.connections.close()
        self.handshakes.close()


async def shake_hands(
    pollers: Pollers,
    sock: socket.socket,
    context: TlsContext,
    make: Callable[[], asyncio.BaseProtocol],
) -> None:
    """Let a protocol serve a connection that was accepted, when it has proved to speak TLS.

    sock: it is the transport's when this succeeds. Raises OSError. When it is cancelled, nothing of the connection is
    left but the socket.
    """
    poller, fd = pollers.handshakes, sock.fileno()
    send_at_once(sock)
    tls = context.wrap(sock)
    while result := tls.handshake():
        await _ready(poller, fd, READABLE if result == WANTS_INPUT else WRITABLE)
    TlsTransport(pollers.connections, sock, tls, context, make())


async def _ready(poller: Poller, fd: int, wanted: int) -> None:
    """Wait until the socket is readable or writable."""
    ready = asyncio.Event()
    poller.watch(fd, wanted, ready.set)
    try:
        await ready.wait()
    finally:
        poller.forget(fd)


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
        """Begin to serve. protocol: a BufferedProtocol."""
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
            self._read_soon()  # what came with the handshake is in no socket any more
            self._watch()
        except OSError as e:  # the protocol has counted it, and must hear of its end
            self._fail(e)

    # What asyncio wants to know

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Take another one, which must be a BufferedProtocol."""
        self._protocol = cast(asyncio.BufferedProtocol, protocol)

    def is_closing(self) -> bool:
        """Tell whether nothing can be written any more."""
        return self._closing

    def is_reading(self) -> bool:
        """Tell whether bytes are received."""
        return not (self._paused or self._closing)

    def can_write_eof(self) -> bool:
        """Say no: TLS can, HTTP's peers do not expect it."""
        return False

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait for the socket."""
        return sum(map(len, self._unsent))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Change nothing: see above."""

    # Reading

    def pause_reading(self) -> None:
        """Receive nothing more."""
        self._paused = True
        self._watch()

    def resume_reading(self) -> None:
        """Receive again."""
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
        if count > 0:  # the end may have come with it, and the socket does not tell that again
            self._read_soon()

    def _ended(self) -> None:
        """The peer sends no more: as all transports of TLS, this one closes unless it has something to send."""
        self._protocol.eof_received()
        self.close()

    # Writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send; a memoryview must stay as it is until writing is not paused."""
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
        """Send several pieces, short ones together, and long ones from where they lie, as write() does."""
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
        """Send what can be sent."""
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
        """Send what waits, and tell the protocol when nothing does any more."""
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

    # The end

    def close(self) -> None:
        """Send what waits, say farewell and close."""
        if self._closing:
            return
        self._closing = True
        if self._unsent:
            self._watch()
        else:
            self._end(None, whole=True)

    def abort(self) -> None:
        """Close now, without a farewell: the peer sees that this is not the end."""
        self._closing = True
        self._end(None)

    def _fail(self, error: Exception) -> None:
        self._closing = True
        self._end(error)

    def _end(self, error: Exception | None, *, whole: bool = False) -> None:
        """Let go of everything; the protocol is told in the next turn of the loop. whole: all was sent."""
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

    # The socket

    def _watch(self) -> None:
        """Watch the socket for what is wanted of it now."""
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
        except Exception as e:  # noqa: BLE001 - a bug of the protocol: it is logged, and costs this connection only
            self._loop.call_exception_handler({"message": "a connection failed", "exception": e, "transport": self})
            self._fail(e)
