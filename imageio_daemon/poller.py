# SPDX-License-Identifier: Apache-2.0
"""Watch sockets on a loop, those with an error too.

A loop's own add_reader() is not told of a peer that resets the connection: uvloop stops to watch a socket with an error
(uvloop 0.23, libuv's uv_poll_t).
"""

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable

from .units import KiB

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
#: Sockets that are looked at in one turn of the loop, if the owner says no other number.
MOST_EVENTS = 64
#: How long a socket that we closed is read, in seconds, and how many are at a time.
LINGER = 1.0
MOST_LINGERING = 256


class Poller:
    """Call back in a loop's thread, again and again, as long as a socket is ready for what its owner wants."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most_events: int = MOST_EVENTS) -> None:
        self.loop = loop
        self._most_events = most_events
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._lingering: dict[socket.socket, asyncio.TimerHandle] = {}
        loop.add_reader(self._epoll.fileno(), self._look)

    def watch(self, fd: int, wanted: int, callback: Callable[[], None]) -> None:
        """Watch a socket for READABLE, WRITABLE or both, from now on; an end or an error is told too."""
        change = self._epoll.modify if fd in self._callbacks else self._epoll.register
        self._callbacks[fd] = callback
        change(fd, wanted)

    def forget(self, fd: int) -> None:
        """Watch a socket no more, if it was watched. Before it is closed."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def linger(self, sock: socket.socket) -> None:
        """Close a connected socket that has nothing to send, when its peer has, or after a while (RFC 9112 9.6).

        What the peer still sends is thrown away: if it were there at the end, the kernel would send a reset, which can
        overtake our last bytes.
        """
        try:
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            sock.close()
            return
        if len(self._lingering) >= MOST_LINGERING:
            self._end(next(iter(self._lingering)))
        self._lingering[sock] = self.loop.call_later(LINGER, self._end, sock)
        self.watch(sock.fileno(), READABLE, lambda: self._discard(sock))

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
        """Watch nothing any more."""
        for sock in list(self._lingering):
            self._end(sock)
        self.loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _look(self) -> None:
        for fd, _ in self._epoll.poll(0, self._most_events):
            callback = self._callbacks.get(fd)  # one before may have ended it
            if callback is not None:
                callback()
