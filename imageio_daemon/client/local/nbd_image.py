# SPDX-License-Identifier: Apache-2.0
"""An image of an NBD server. It uses blocking connections, one for each concurrent request."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

from ...image.extents import Extent
from ...image.ranges import RangeSet
from ...nbdproto.client_negotiation import Agreed, ClientNegotiation, ExportRefused, ServerViolation
from ...nbdproto.client_replies import ClientReplies, ClientRequest
from ...nbdproto.constants import (
    BASE_ALLOCATION,
    DIRTY,
    DIRTY_BITMAP,
    Command,
    CommandFlag,
    ExportFlag,
    Status,
)
from ...nbdproto.messages import BadMagic, unpack_extents
from ...units import GiB, KiB, MiB
from ...urls.nbd import NbdAddress
from ..connecting import closed_on_error, unix_connected
from ..errors import LocalError
from ..stopping import Stop

#: Seconds to wait for a server. They are many because a flush of gigabytes to a slow disk takes long.
TIMEOUT = 600.0
#: Seconds to wait for a connection.
CONNECT_TIMEOUT = 15.0
#: Most connections to a server that allows several.
MOST = 64
#: Most bytes of a request with data, and of one without. Lengths have 32 bits, and the answer to a shorter request
#: comes sooner.
MAX_DATA = 8 * MiB
MAX_RANGE = 1 * GiB
#: Bytes of each read that searches for an unreadable place, as of a cluster of most images.
LEAST_DATA = 64 * KiB
_NEGOTIATION = 16 * KiB
_ZEROS = bytes(1 * MiB)

#: A function that takes over a connected socket, which a Stop shuts down, and returns one with TLS. The server's
#: certificate is for the name.
Secure = Callable[[socket.socket, str, Stop], socket.socket]


class NbdImage:
    """An export. Thread-safe. Methods block, and raise LocalError.

    `name` is the image's name in messages. An address with TLS needs `secure`. `is_ours` tells that the server allows
    any number of connections. changed() needs `dirty`.
    """

    def __init__(
        self,
        name: str,
        address: NbdAddress,
        secure: Secure | None = None,
        *,
        is_ours: bool = True,
        dirty: bool = False,
    ) -> None:
        self._name = name
        self._address = address
        self._stop = Stop()
        self._secure = secure
        self._dirty = dirty
        self._idle: list[_ImageConnection] = []
        self._places = threading.Semaphore(1)
        with self._connection() as connection:
            self._agreed = connection.agreed
        if is_ours or self.can(ExportFlag.CAN_MULTI_CONN):
            self._places = threading.Semaphore(MOST)

    @property
    def size(self) -> int:
        """Return the size, in bytes."""
        return self._agreed.size

    def can(self, flag: int) -> bool:
        """Return whether the export has a transmission flag."""
        return self._agreed.can(flag)

    def finish(self) -> None:
        """Flush and close."""
        self.flush()
        self.close()

    def stop(self) -> None:
        """Shut down the connections. Waiting calls and later ones raise Stopped."""
        self._stop.stop()

    def close(self) -> None:
        """Close all connections. Call this when no other call runs."""
        while self._idle:
            self._idle.pop().close()

    def read(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer."""
        for start in range(0, len(buffer), MAX_DATA):
            piece = buffer[start : start + MAX_DATA]
            request = self._request(offset + start, piece)
            try:
                self._call(request)
            except LocalError:
                if request.error:
                    self._find_damage(offset + start, piece)
                raise

    def _request(self, offset: int, buffer: memoryview) -> ClientRequest:
        """Return a READ with an answer in one part: with several, qemu-nbd disconnects instead of sending an error."""
        flags = CommandFlag.DF if self._agreed.can(ExportFlag.SEND_DF) else 0
        return ClientRequest(Command.READ, offset, len(buffer), flags, buffer)

    def _find_damage(self, offset: int, buffer: memoryview) -> None:
        """Read in small pieces, to find the first one that fails. Raises LocalError for it."""
        for start in range(0, len(buffer), LEAST_DATA):
            self._call(self._request(offset + start, buffer[start : start + LEAST_DATA]))

    def write(self, offset: int, data: memoryview) -> None:
        """Write all of the data."""
        for start in range(0, len(data), MAX_DATA):
            piece = data[start : start + MAX_DATA]
            self._call(ClientRequest(Command.WRITE, offset + start, len(piece)), piece)

    def zero(self, offset: int, length: int) -> None:
        """Make a range read as zeros. If the server has no request for that, write zeros."""
        if not self.can(ExportFlag.SEND_WRITE_ZEROES):
            for start in range(0, length, len(_ZEROS)):
                self.write(offset + start, memoryview(_ZEROS)[: length - start])
            return
        for start in range(offset, offset + length, MAX_RANGE):
            self._call(ClientRequest(Command.WRITE_ZEROES, start, min(MAX_RANGE, offset + length - start)))

    def flush(self) -> None:
        """Put all that was written on stable storage."""
        if self._agreed.can(ExportFlag.SEND_FLUSH):
            self._call(ClientRequest(Command.FLUSH))

    def extents(self) -> Iterator[Extent]:
        """Yield all extents, in order and without gaps."""
        context = self._context(BASE_ALLOCATION)
        if context is not None:
            for start, end, flags in self._statuses(context):
                yield Extent(start, end - start, zero=bool(flags & Status.ZERO))
        elif self.size:
            yield Extent(0, self.size)

    def changed(self, bitmap: str) -> RangeSet | None:
        """Return the ranges that the dirty bitmap of this name marks, or larger ones, or None without that bitmap."""
        context = self._context(DIRTY_BITMAP + bitmap)
        if context is None:
            return None
        marked = RangeSet()
        for start, end, flags in self._statuses(context):
            if flags & DIRTY:
                marked.add(start, end)
        return marked

    def _context(self, name: str) -> int | None:
        return next((number for number, told in self._agreed.contexts.items() if told == name), None)

    def _statuses(self, context: int) -> Iterator[tuple[int, int, int]]:
        """Yield start, end and flags of the extents in a metadata context, in order and without gaps."""
        offset = 0
        while offset < self.size:
            request = ClientRequest(Command.BLOCK_STATUS, offset, min(MAX_RANGE, self.size - offset))
            self._call(request)
            try:
                _, found = unpack_extents(request.statuses.get(context, b""), extended=self._agreed.extended)
            except ValueError as e:
                raise self._failed(e) from e
            for length, flags in found:
                end = min(offset + length, self.size)
                yield offset, end, flags
                offset = end

    def _call(self, request: ClientRequest, payload: memoryview | None = None) -> None:
        with self._connection() as connection:
            connection.call(request, payload)
        if request.error:
            what = request.command.name.lower()
            # qemu's text, such as "writing to file failed", does not have the reason.
            more = f" ({request.text})" if request.text else ""
            damaged = ": it is damaged there, or its storage is" if request.command is Command.READ else ""
            why = f"{os.strerror(request.error)}{more}{damaged}"
            raise LocalError(f"can't {what} {self._name} at byte {request.offset}: {why}")

    @contextlib.contextmanager
    def _connection(self) -> Iterator["_ImageConnection"]:
        """Provide an idle or new connection for the block. Then it is idle again, or closed after an error."""
        self._stop.check()
        try:
            with self._places:
                connection = self._taken() or _ImageConnection(
                    self._address, self._stop, self._secure, dirty=self._dirty
                )
                with connection.closed_on_error():
                    yield connection
                self._idle.append(connection)
        except (OSError, ExportRefused, ServerViolation, BadMagic, ValueError) as e:
            self._stop.check()  # a stop shuts sockets down, which is no failure of the server
            raise self._failed(e) from e

    def _failed(self, error: Exception) -> LocalError:
        reason = getattr(error, "strerror", None) or error  # without the number of an errno
        return LocalError(f"the server of {self._name} failed: {reason}")

    def _taken(self) -> "_ImageConnection | None":
        """Take an idle connection, if there is one. Another thread may just have taken the last one."""
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        return None


class _ImageConnection:
    """A connection for one request at a time.

    Methods raise OSError, ExportRefused, ServerViolation and BadMagic. The constructor may also raise Stopped.
    """

    def __init__(self, address: NbdAddress, stop: Stop, secure: Secure | None, *, dirty: bool) -> None:
        self._stop = stop
        self._secure = secure
        self._socket = _connected(address)
        with self.closed_on_error():
            stop.add(self._socket)
            negotiation = ClientNegotiation(address.export, tls=address.tls, dirty=dirty)
            self.agreed = self._negotiate(negotiation, address.tls_hostname)
            self._socket.settimeout(TIMEOUT)
        self._replies = ClientReplies(self.agreed, lambda request: None)

    @contextlib.contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Close the socket if the block raises."""
        try:
            yield
        except BaseException:
            self._close()
            raise

    def call(self, request: ClientRequest, payload: memoryview | None) -> None:
        """Send a request and receive its reply."""
        self._socket.sendall(self._replies.begin(request))
        if payload is not None:
            self._socket.sendall(payload)
        while self._replies.waiting:
            self._replies.received(self._receive(self._replies.get_buffer()))

    def close(self) -> None:
        """Send DISC (proto.md, "Terminating the transmission phase") and close."""
        with contextlib.suppress(OSError):
            self._socket.sendall(self._replies.begin(ClientRequest(Command.DISC)))
        self._close()

    def _close(self) -> None:
        self._stop.discard(self._socket)
        self._socket.close()

    def _negotiate(self, negotiation: ClientNegotiation, host: str) -> Agreed:
        memory = memoryview(bytearray(_NEGOTIATION))
        while negotiation.agreed is None:
            self._socket.sendall(negotiation.take_output())
            if negotiation.wants_tls:
                self._start_tls(host)
                negotiation.tls_started()
                continue
            negotiation.feed(memory[: self._receive(memory)])
        return negotiation.agreed

    def _start_tls(self, host: str) -> None:
        if self._secure is None:
            raise ExportRefused("no rules for TLS were given")
        self._socket = self._secure(self._socket, host, self._stop)

    def _receive(self, buffer: memoryview) -> int:
        count = self._socket.recv_into(buffer)
        if not count:
            raise ConnectionResetError("it closed the connection")
        return count


def _connected(address: NbdAddress) -> socket.socket:
    """Return a socket connected to a server. Raises OSError."""
    if address.socket:
        return unix_connected(address.socket, CONNECT_TIMEOUT)
    sock = socket.create_connection((address.host, address.port), timeout=CONNECT_TIMEOUT)
    with closed_on_error(sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
