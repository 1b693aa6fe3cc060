# SPDX-License-Identifier: Apache-2.0
"""Options of a connection's socket and transport: keep-alive, no delay, flow control."""

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

#: The first probe of keep-alive comes after 30 s of silence, then 3 probes, 10 s apart (tcp(7)). So the kernel detects
#: a vanished peer after 60 s.
KEEPALIVE_IDLE = 30
KEEPALIVE_INTERVAL = 10
KEEPALIVE_PROBES = 3


def keep_alive(sock: socket.socket) -> None:
    """Enable TCP keep-alive, so that a vanished peer is detected in 60 s instead of 2 h. Raises OSError."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


def send_at_once(sock: socket.socket) -> None:
    """Disable Nagle's algorithm on a TCP connection (RFC 9293 3.7.4). Raises OSError.

    With it, the second of two short writes waited 40 ms for an acknowledgement. The loop's own transports disable it
    by themselves.
    """
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def pause_when_anything_waits(transport: "asyncio.WriteTransport") -> None:
    """Make the transport pause writing as soon as it holds a byte, and resume when it holds none.

    A TlsTransport does so in any case.
    """
    transport.set_write_buffer_limits(high=0, low=0)
