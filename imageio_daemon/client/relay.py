# SPDX-License-Identifier: Apache-2.0
"""Pass bytes between two connected sockets, in both directions at the same time, in one thread."""

import select
import socket

from ..net.tls_socket import WANTS_INPUT, WANTS_ROOM, TlsSocket
from ..units import KiB
from .server.secure_socket import SecureSocket

#: Most bytes of one direction that are held at a time. A request of nbdcopy has 256 KiB.
PIECE = 512 * KiB
_EVENTS = {WANTS_INPUT: select.POLLIN, WANTS_ROOM: select.POLLOUT}


class _End:
    """A non-blocking socket, with or without TLS."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(0)
        self._socket = sock
        self._tls: TlsSocket | None = sock.tls if isinstance(sock, SecureSocket) else None

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self, view: memoryview) -> int:
        """Receive bytes. Return their number, 0 at the end, or WANTS_INPUT or WANTS_ROOM if there are none now."""
        if self._tls is not None:
            return self._tls.readinto(view)
        try:
            return self._socket.recv_into(view)
        except BlockingIOError:
            return WANTS_INPUT

    def send(self, view: memoryview) -> int:
        """Send bytes. Return their number, or WANTS_INPUT or WANTS_ROOM if none can be sent now."""
        if self._tls is not None:
            return self._tls.write(view)
        try:
            return self._socket.send(view)
        except BlockingIOError:
            return WANTS_ROOM


class _Flow:
    """One direction. `received` has bytes of the source that were received before."""

    def __init__(self, source: _End, sink: _End, received: bytes = b"") -> None:
        self._source = source
        self._sink = sink
        self._memory = memoryview(bytearray(PIECE))
        self._unsent = memoryview(received)
        #: Whether the source has ended, and all of it was sent.
        self.ended = False
        #: The descriptor and the events for which the flow waits after its last step.
        self.waits = (source.fileno(), 0)

    def step(self) -> bool:
        """Receive bytes, or send received ones. Return whether any were moved."""
        if self._unsent:
            end, count = self._sink, self._sink.send(self._unsent)
        else:
            end, count = self._source, self._source.receive(self._memory)
        if count < 0:
            self.waits = (end.fileno(), _EVENTS[count])
            return False
        if self._unsent:
            self._unsent = self._unsent[count:]
        else:
            self._unsent = self._memory[:count]
            self.ended = count == 0
        return not self.ended


def relay(one: socket.socket, other: socket.socket, received: bytes = b"") -> None:
    """Pass bytes on until one side ends. `received` has earlier bytes of the other side. Raises OSError.

    Bytes that a side has sent before its end are passed on. The caller closes both sockets. Another thread can end this
    by a shutdown of one of them.
    """
    ends = _End(one), _End(other)
    flows = _Flow(ends[0], ends[1]), _Flow(ends[1], ends[0], received)
    while not any(flow.ended for flow in flows):
        moved = [flow.step() for flow in flows]  # always both, so that neither waits for the other
        if not any(moved) and not any(flow.ended for flow in flows):
            _wait(flows)


def _wait(flows: tuple[_Flow, _Flow]) -> None:
    """Wait until one of the flows can go on."""
    poll = select.poll()
    wanted: dict[int, int] = {}
    for descriptor, events in (flow.waits for flow in flows):
        wanted[descriptor] = wanted.get(descriptor, 0) | events
    for descriptor, events in wanted.items():
        poll.register(descriptor, events)
    poll.poll()
