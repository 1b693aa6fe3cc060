# SPDX-License-Identifier: Apache-2.0
"""Readiness of sockets on a loop, by epoll(7), also after a socket error.

uvloop's add_reader() does not report a reset by the peer: it stops watching a socket that has an error (uvloop 0.23,
libuv's uv_poll_t).
"""

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable

from ..units import KiB

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
#: Most events that are handled in one step of the loop.
MOST_EVENTS = 64
#: A lingering socket is closed after LINGER seconds, or earlier if it is the oldest of more than MOST_LINGERING.
LINGER = 1.0
MOST_LINGERING = 256


class Poller:
    """Call back in the loop's thread while a socket is ready (level-triggered)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._lingering: dict[socket.socket, asyncio.TimerHandle] = {}
        loop.add_reader(self._epoll.fileno(), self._look)

    def watch(self, fd: int, wanted: int, callback: Callable[[], None]) -> None:
        """Watch a socket for READABLE, WRITABLE or both. This replaces an earlier watch of the socket.

        `callback` is also called at the end of the stream, and after an error of the socket. Raises OSError.
        """
        change = self._epoll.modify if fd in self._callbacks else self._epoll.register
        change(fd, wanted)
        self._callbacks[fd] = callback

    def forget(self, fd: int) -> None:
        """Stop watching a socket, if it is watched. Call this before the socket is closed."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def linger(self, sock: socket.socket) -> None:
        """Close a connected socket in stages (RFC 9112 9.6): end writing, wait for the peer's end or LINGER, close.

        Discards what the peer still sends. With unread data, close(2) would reset the connection, and the peer could
        lose the last bytes that were sent to it.
        """
        lingers = False
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
            if not self._epoll.closed:
                self.watch(sock.fileno(), READABLE, lambda: self._discard(sock))
                lingers = True
        if not lingers:
            sock.close()
            return
        if len(self._lingering) >= MOST_LINGERING:
            self._end(next(iter(self._lingering)))
        self._lingering[sock] = self.loop.call_later(LINGER, self._end, sock)

    def _discard(self, sock: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = sock.recv(64 * KiB)
        if not data:
            self._end(sock)

    def _end(self, sock: socket.socket) -> None:
        self._lingering.pop(sock).cancel()
        self.forget(sock.fileno())
        sock.close()

    def close(self) -> None:
        """Close the lingering sockets and the epoll descriptor. Later calls do nothing."""
        if self._epoll.closed:
            return
        for sock in list(self._lingering):
            self._end(sock)
        self.loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _look(self) -> None:
        for fd, _ in self._epoll.poll(0, MOST_EVENTS):
            callback = self._callbacks.get(fd)  # None if an earlier callback of this step has called forget()
            if callback is not None:
                callback()
