# SPDX-License-Identifier: Apache-2.0
"""Watch sockets on a loop, those with an error too.

A loop's own add_reader() is not told of a peer that resets the connection: uvloop stops to watch a socket with an error
(uvloop 0.23, libuv's uv_poll_t).
"""

import asyncio
import select
from collections.abc import Callable

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT
#: Sockets that are looked at in one turn of the loop.
MOST_EVENTS = 64


class Poller:
    """Call back in a loop's thread, again and again, as long as a socket is ready for what its owner wants."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        loop.add_reader(self._epoll.fileno(), self._look)

    def watch(self, fd: int, wanted: int, callback: Callable[[], None]) -> None:
        """Watch a socket for READABLE, WRITABLE or both, from now on; an end or an error is told too. 0: not at all."""
        known = fd in self._callbacks
        if not wanted:
            if known:
                del self._callbacks[fd]
                self._epoll.unregister(fd)
            return
        self._callbacks[fd] = callback
        if known:
            self._epoll.modify(fd, wanted)
        else:
            self._epoll.register(fd, wanted)

    def close(self) -> None:
        """Watch nothing any more."""
        self.loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _look(self) -> None:
        for fd, _ in self._epoll.poll(0, MOST_EVENTS):
            callback = self._callbacks.get(fd)  # one before may have ended it
            if callback is not None:
                callback()
