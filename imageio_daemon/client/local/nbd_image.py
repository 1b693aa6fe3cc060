# SPDX-License-Identifier: Apache-2.0
"""An image of an NBD server on a unix socket, on blocking connections: one for each concurrent request."""

import contextlib
import os
import socket
from collections.abc import Iterator

from ...image.extents import Extent
from ...nbdproto.client.negotiation import Agreed, ClientNegotiation, Refused, Violation
from ...nbdproto.client.replies import ClientReplies
from ...nbdproto.client.request import ClientRequest
from ...nbdproto.constants import BASE_ALLOCATION, Command, ExportFlag, Status
from ...nbdproto.messages import BadMagic, unpack_extents
from ...units import GiB, KiB, MiB
from ..errors import LocalError
from ..stopping import Stop

#: Seconds to wait for a server on this host: a flush of gigabytes to a slow disk takes long.
TIMEOUT = 600.0
#: Longest requests, in bytes. Lengths have 32 bits, and shorter requests are answered sooner.
MAX_DATA = 8 * MiB
MAX_RANGE = 1 * GiB
_NEGOTIATION = 16 * KiB


class NbdImage:
    """An export. Thread-safe; methods block, and raise LocalError.

    name: of the image, in messages. stop: shuts down the connections; what waits for the server fails then.
    """

    def __init__(self, name: str, address: str, stop: Stop) -> None:
        self._name = name
        self._address = address
        self._stop = stop
        self._idle: list[_Connection] = []
        with self._connection() as connection:
            self._agreed = connection.agreed

    @property
    def size(self) -> int:
        """Return the size, in bytes."""
        return self._agreed.size

    def close(self) -> None:
        """Close all connections; no other call may run."""
        while self._idle:
            self._idle.pop().close()

    def read(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer."""
        for start in range(0, len(buffer), MAX_DATA):
            piece = buffer[start : start + MAX_DATA]
            self._call(ClientRequest(Command.READ, offset + start, len(piece), view=piece))

    def write(self, offset: int, data: memoryview) -> None:
        """Write all of the data."""
        for start in range(0, len(data), MAX_DATA):
            piece = data[start : start + MAX_DATA]
            self._call(ClientRequest(Command.WRITE, offset + start, len(piece)), piece)

    def zero(self, offset: int, length: int) -> None:
        """Make a range read as zeros."""
        for start in range(offset, offset + length, MAX_RANGE):
            self._call(ClientRequest(Command.WRITE_ZEROES, start, min(MAX_RANGE, offset + length - start)))

    def flush(self) -> None:
        """Return when all that was written is on stable storage."""
        if self._agreed.can(ExportFlag.SEND_FLUSH):
            self._call(ClientRequest(Command.FLUSH))

    def extents(self) -> Iterator[Extent]:
        """Yield all extents, in order and without gaps."""
        context = next((number for number, name in self._agreed.contexts.items() if name == BASE_ALLOCATION), None)
        if context is None:
            if self.size:
                yield Extent(0, self.size)
            return
        offset = 0
        while offset < self.size:
            request = ClientRequest(Command.BLOCK_STATUS, offset, min(MAX_RANGE, self.size - offset))
            self._call(request)
            _, found = unpack_extents(request.statuses.get(context, b""), extended=self._agreed.extended)
            for length, flags in found:
                end = min(offset + length, self.size)
                yield Extent(offset, end - offset, zero=bool(flags & Status.ZERO))
                offset = end

    def _call(self, request: ClientRequest, payload: memoryview | None = None) -> None:
        with self._connection() as connection:
            connection.call(request, payload)
        if request.error:
            what = f"{request.command.name.lower()} at byte {request.offset}"
            raise LocalError(f"{self._name}: {what}: {request.text or os.strerror(request.error)}")

    @contextlib.contextmanager
    def _connection(self) -> Iterator["_Connection"]:
        """Return an idle or a new connection for the block. It is closed after an error, and else idle again."""
        try:
            connection = self._taken() or _Connection(self._address, self._stop)
            with connection.closed_on_error():
                yield connection
            self._idle.append(connection)
        except (OSError, Refused, Violation, BadMagic, ValueError) as e:
            raise LocalError(f"the server of {self._name} failed: {e}") from e

    def _taken(self) -> "_Connection | None":
        """Take an idle connection; None: there is none, perhaps because another thread has just taken the last one."""
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        return None


class _Connection:
    """A connection for one request at a time. Raises OSError, Refused, Violation, BadMagic; a new one Stopped, too."""

    def __init__(self, address: str, stop: Stop) -> None:
        self._stop = stop
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with self.closed_on_error():
            self._socket.settimeout(TIMEOUT)
            self._socket.connect(address)
            stop.add(self._socket)
            self.agreed = self._negotiate(ClientNegotiation(""))
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

    def _negotiate(self, negotiation: ClientNegotiation) -> Agreed:
        memory = memoryview(bytearray(_NEGOTIATION))
        while negotiation.agreed is None:
            self._socket.sendall(negotiation.take_output())
            negotiation.feed(memory[: self._receive(memory)])
        return negotiation.agreed

    def _receive(self, buffer: memoryview) -> int:
        count = self._socket.recv_into(buffer)
        if not count:
            raise ConnectionResetError("it closed the connection")
        return count
