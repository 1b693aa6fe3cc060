# SPDX-License-Identifier: Apache-2.0
"""What every connection needs of its socket and transport."""

import asyncio
import socket

#: A peer that vanished without a word is noticed after 30 s of silence and 3 probes, one each 10 s: in 60 s.
KEEPALIVE_IDLE = 30
KEEPALIVE_INTERVAL = 10
KEEPALIVE_PROBES = 3


def keep_alive(sock: socket.socket) -> None:
    """Let a TCP connection end when its peer has vanished, though nothing is sent; by default that takes 2 hours."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


def send_at_once(sock: socket.socket) -> None:
    """Let a TCP connection send what is short though the peer has not confirmed what came before (RFC 9293 3.7.4).

    An answer in two pieces waited 40 ms for its second one. The transports of loops do this by themselves.
    """
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def pause_when_anything_waits(transport: asyncio.WriteTransport) -> None:
    """Let the transport pause writing as soon as it holds a byte, and resume when it holds none.

    A plain transport pauses above `high`, one of TLS at `high`, where 0 would never resume (uvloop 0.23, asyncio).
    """
    tls = transport.get_extra_info("sslcontext") is not None
    transport.set_write_buffer_limits(high=1 if tls else 0, low=0)
