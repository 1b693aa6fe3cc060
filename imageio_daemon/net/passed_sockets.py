# SPDX-License-Identifier: Apache-2.0
"""Listening sockets that the service manager has passed: those of socket units, and those of the previous process.

Each has the name of its service, and is used if it is what the configuration asks for.
"""

import contextlib
import errno
import logging
import os
import socket
import stat
from collections.abc import Callable, Iterable
from typing import Any

from ..runtime import systemd
from .listening import BACKLOG, address_of, why_no_listener

log = logging.getLogger(__name__)

#: A function that tells whether a listening socket is as configured.
Fits = Callable[[socket.socket], bool]


class PassedSockets:
    """Sockets by the names of their services, each until it is taken or dropped."""

    def __init__(self, passed: Iterable[systemd.Passed]) -> None:
        self._sockets: list[tuple[str, socket.socket]] = []
        #: Names of sockets that socket units pass and the daemon does not serve. Clients wait there for ever.
        self.unserved: list[str] = []
        for name, fd in passed:
            # This takes a socket of any family, type and protocol.
            try:
                self._sockets.append((name, socket.socket(fileno=fd)))
            except OSError as e:
                log.warning("the service manager has passed what is no socket: %s: %s", name, e.strerror)
                self.unserved.append(name)
                with contextlib.suppress(OSError):
                    os.close(fd)

    def take(self, service: str, fits: Fits) -> socket.socket | None:
        """Return the socket of a service that fits, non-blocking and listening, if there is one."""
        for number, (name, sock) in enumerate(self._sockets):
            if name == service and _listens(sock) and fits(sock):
                del self._sockets[number]
                sock.setblocking(False)
                sock.listen(BACKLOG)
                return sock
        return None

    def drop_rest(self) -> None:
        """Close the sockets that nobody has taken, here and in the manager's store, and log them.

        Afterwards, new sockets may have their addresses, unless a socket unit still listens there. Such sockets are
        `unserved`.
        """
        addresses = [
            (name, sock.family, sock.getsockname() if _listens(sock) else None) for name, sock in self._sockets
        ]
        for name, sock in self._sockets:
            where = " port ".join(map(str, address_of(sock).values())) if _listens(sock) else "something else"
            log.warning("a socket that the service manager has passed is not as configured: %s, %s", name, where)
            sock.close()
        if self._sockets:
            systemd.forget(sorted({name for name, _ in self._sockets if name}))
        self._sockets.clear()
        # The sockets that the previous process has stored are gone now. It has stored only listening ones.
        self.unserved += [name for name, family, at in addresses if at is None or _is_listened_on(family, at)]


def is_tcp(host: str, port: int) -> Fits:
    """Return a function that tells whether a socket listens on host:port. Port 0 is any port."""

    def fits(sock: socket.socket) -> bool:
        if sock.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError):
            return False
        wanted, found = infos[0][4], sock.getsockname()
        return found[0] == wanted[0] and port in (0, found[1])

    return fits


def is_unix(address: str, mode: int) -> Fits:
    """Return a function that tells whether a socket listens on a path of this mode, or on an abstract name.

    An abstract name has its leading NUL. A socket does not fit if its path was removed.
    """

    def fits(sock: socket.socket) -> bool:
        if sock.family != socket.AF_UNIX or os.fsdecode(sock.getsockname()) != address:
            return False
        if address.startswith("\0"):
            return True
        try:
            found = os.lstat(address).st_mode
        except OSError:
            return False
        return stat.S_ISSOCK(found) and stat.S_IMODE(found) == mode

    return fits


def is_abstract(prefix: str) -> Fits:
    """Return a function that tells whether a socket listens on an abstract name with this prefix (leading NUL)."""

    def fits(sock: socket.socket) -> bool:
        return sock.family == socket.AF_UNIX and os.fsdecode(sock.getsockname()).startswith(prefix)

    return fits


def _is_listened_on(family: int, address: Any) -> bool:
    """Return whether a process still listens on an address. Does not connect, as a connection would wait for ever."""
    if family == socket.AF_UNIX:
        return not why_no_listener(os.fsdecode(address).replace("\0", "@", 1))
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # then only a listener prevents bind() (socket(7))
        try:
            probe.bind(address)
        except OSError as e:
            return e.errno == errno.EADDRINUSE
    return False


def _listens(sock: socket.socket) -> bool:
    return sock.type == socket.SOCK_STREAM and bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
