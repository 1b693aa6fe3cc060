# SPDX-License-Identifier: Apache-2.0
"""Sending of requests: short ones together, with a count of bytes while they are sent."""

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from ...units import KiB, MiB
from ..file_part import FilePart
from .pace import Paced
from .secure_socket import SecureSocket, until_writable

#: Most bytes of heads and short bodies that are joined and sent at once, and of a body that is copied for this.
JOINED = 64 * KiB
SHORT = 16 * KiB
#: Most bytes of a request that the kernel takes and has not sent yet (tcp(7)), while the link is slow. Without a limit
#: it takes 233 KiB on each of 4 connections: 4 s of a link of 2 Mbit/s, in which the progress would not move. poll(2)
#: reports room when half of them are sent. This half is more than a packet of the loopback device, 64 KiB: TCP_CORK
#: holds back less than a packet, for 200 ms.
UNSENT = 160 * KiB
#: Bytes per second from which a link is not slow. It sends 4 MiB, the most that the kernel takes, in half a second.
#: With the limit, the client wakes more often: 1.2 GiB on one host took 2.1 s of its processor time, and 1.5 s without.
FAST = 8 * MiB

#: A function that is called with numbers of bytes of a body, while they are sent or received. A negative number takes
#: back bytes that have to be sent again.
Moved: TypeAlias = Callable[[int], None]


def not_counted(count: int) -> None:
    """Do nothing, where bytes are not counted."""


class Request(NamedTuple):
    """A request: its head, its body, and the number of bytes of data in the body, before compression."""

    head: bytes
    body: bytes | memoryview | FilePart = b""
    length: int = 0


class Unsent:
    """The limit on unsent bytes of requests in the kernel. It is in force until the link is known to be fast."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._limited = False
        self._limit(limited=True)

    def learn(self, length: int, seconds: float) -> None:
        """Set the limit by the time of the last requests up to their answers, with `length` bytes of data."""
        self._limit(limited=length < FAST * seconds)

    def _limit(self, *, limited: bool) -> None:
        if limited != self._limited and self._socket.family != socket.AF_UNIX:
            no_limit = 0  # except the host's, net.ipv4.tcp_notsent_lowat
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT if limited else no_limit)
            self._limited = limited


class Scaled:
    """Count bytes of an encoded body as bytes of its data. All of its `encoded` bytes count as `length`."""

    def __init__(self, moved: Moved, length: int, encoded: int) -> None:
        self._moved = moved
        self._length = length
        self._encoded = encoded
        self._count = 0

    def __call__(self, count: int) -> None:
        """Count encoded bytes. The reported numbers add up to `length`."""
        before = self._count * self._length // self._encoded
        self._count += count
        self._moved(self._count * self._length // self._encoded - before)


def send_all(sock: socket.socket, requests: Sequence[Request], moved: Moved, paced: Paced) -> None:
    """Send requests. Join heads and short bodies, because a call of OpenSSL and the kernel costs more than a copy."""
    with _full_packets(sock):
        _send_joined(sock, requests, moved, paced)


def _send_joined(sock: socket.socket, requests: Sequence[Request], moved: Moved, paced: Paced) -> None:
    joined: list[bytes | memoryview] = []
    size = data = 0
    for head, body, length in requests:
        is_short = len(body) <= SHORT
        joined.append(head)
        if is_short:
            joined.append(body.read() if isinstance(body, FilePart) else body)
        size += len(head) + len(body)
        data += length if is_short else 0
        if size >= JOINED or not is_short:
            _send(sock, b"".join(joined), not_counted, paced)
            moved(data)
            joined, size, data = [], 0, 0
        if not is_short:
            _send(sock, body, Scaled(moved, length, len(body)), paced)
    _send(sock, b"".join(joined), not_counted, paced)
    moved(data)


def _send(sock: socket.socket, data: bytes | memoryview | FilePart, moved: Moved, paced: Paced) -> None:
    """Send data. The timeout of the socket is for each call, not for all, because the link may be slow."""
    has_tls = isinstance(sock, SecureSocket)
    if isinstance(data, FilePart) and has_tls:  # the connection has changed from the unix socket to TLS
        data = data.read()
    left = data if isinstance(data, FilePart) else memoryview(data)
    granted = 0
    while left:
        granted = granted or paced.send(len(left))
        if not has_tls:  # with TLS, send() waits
            until_writable(sock)
        step = left[:granted]
        count = step.send(sock) if isinstance(step, FilePart) else sock.send(step)
        moved(count)
        granted -= count
        left = left[count:]


@contextlib.contextmanager
def counted(moved: Moved) -> Iterator[Moved]:
    """Count bytes that move in the block, and take the count back if the block raises."""
    total = 0

    def count(number: int) -> None:
        nonlocal total
        total += number
        moved(number)

    try:
        yield count
    except BaseException:
        moved(-total)
        raise


@contextlib.contextmanager
def _full_packets(sock: socket.socket) -> Iterator[None]:
    """Have the kernel send full packets only (TCP_CORK, tcp(7)), because OpenSSL writes each record of 16 KiB alone.

    Processor seconds of client and server for 1 GiB over TLS on one host: 1.75 + 1.77, and without this 1.85 + 1.97.
    """
    if not isinstance(sock, SecureSocket):
        yield
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    yield
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
