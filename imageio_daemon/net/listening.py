# SPDX-License-Identifier: Apache-2.0
"""Listening sockets: TCP for both IP versions, unix paths and abstract names.

All are non-blocking. Python makes them close-on-exec by itself (PEP 446).
"""

import contextlib
import errno
import os
import socket
import stat

from ..errors import ConfigError

#: Most connections that wait for accept(2). The kernel's own limit is net.core.somaxconn (4096 since Linux 5.4;
#: listen(2)).
BACKLOG = 1024
#: Most bytes of a unix address. sun_path has 108, with the NUL at the end of a path (unix(7)).
MAX_UNIX_ADDRESS = 107


def listen_tcp(host: str, port: int) -> socket.socket:
    """Return a socket that listens on host:port. `::` includes IPv4. Port 0 is any free port. Raises ConfigError."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV)
    except (OSError, UnicodeError) as e:
        raise ConfigError(f"cannot resolve {host!r}: {e}") from None
    family, kind, protocol, _, address = infos[0]
    try:
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(socket.socket(family, kind, protocol))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind(address)
            _listening(sock)
            stack.pop_all()
            return sock
    except OSError as e:
        raise ConfigError(f"cannot listen on {host}:{port}: {e.strerror}") from e


def listen_localhost(port: int) -> list[socket.socket]:
    """Return sockets on the same port of 127.0.0.1 and, if the host has IPv6, of ::1. Raises ConfigError."""
    first = listen_tcp("127.0.0.1", port)
    try:
        return [first, listen_tcp("::1", first.getsockname()[1])]
    except ConfigError as e:
        if not isinstance(e.__cause__, OSError) or e.__cause__.errno != errno.EADDRNOTAVAIL:
            first.close()
            raise
        return [first]


def listen_unix(address: str, mode: int) -> socket.socket:
    """Return a socket that listens on a path, created with this mode, or on an abstract name (leading NUL).

    Replaces a socket at the path if no process listens on it. Raises ConfigError, also if one does.
    """
    shown = address.replace("\0", "@", 1)
    if len(os.fsencode(address)) > MAX_UNIX_ADDRESS:
        raise ConfigError(f"socket address {shown!r} is longer than {MAX_UNIX_ADDRESS} bytes")
    try:
        if not address.startswith("\0"):
            _remove_stale(address)
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            _bind_unix(sock, address, mode)
            _listening(sock)
            stack.pop_all()
            return sock
    except OSError as e:
        raise ConfigError(f"cannot listen on {shown}: {e.strerror}") from None


def address_of(sock: socket.socket) -> dict[str, object]:
    """Return the address for the log: address and port of TCP, or the address of a unix socket with "@" for a NUL."""
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return {"address": os.fsdecode(name).replace("\0", "@", 1)}
    return {"address": name[0], "port": name[1]}


def remove_unix(address: str) -> None:
    """Remove the path of a socket. An abstract name needs no removal: it ends with its socket (unix(7))."""
    if not address.startswith("\0"):
        with contextlib.suppress(OSError):
            os.unlink(address)


def _bind_unix(sock: socket.socket, address: str, mode: int) -> None:
    if address.startswith("\0"):
        sock.bind(address)
        return
    # bind(2) creates the path with this mode (unix(7)), so nobody can connect with another one. A chmod(2) afterwards
    # would resolve the path again, which could be a symbolic link by then.
    before = os.umask(0o777 & ~mode)
    try:
        sock.bind(address)
    finally:
        os.umask(before)


def _listening(sock: socket.socket) -> None:
    sock.listen(BACKLOG)
    sock.setblocking(False)


def _remove_stale(path: str) -> None:
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise ConfigError(f"cannot listen on {path}: it exists and is not a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise ConfigError(f"cannot listen on {path}: another process listens there")


def why_no_listener(address: str) -> int:
    """Return the errno that a connection to a path, or to an abstract name (@NAME), would get, or 0.

    Does not block. As a connection does, this finds abstract names of the process's network namespace only.
    """
    if address.startswith("@"):
        # Num RefCount Protocol Flags Type St Inode Path (proc_net_unix(5)). listen(2) sets the flag.
        with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as f:
            rows = [line.rstrip("\n").split(maxsplit=7) for line in f]
        found = any(len(row) == 8 and (row[3], row[7]) == ("00010000", address) for row in rows)
        return 0 if found else errno.ECONNREFUSED
    # A socket of another type gets EPROTOTYPE, but only if there is a listener (connect(2)).
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(address)
        except OSError as e:
            return 0 if e.errno == errno.EPROTOTYPE else e.errno or errno.EINVAL
    return errno.EPROTOTYPE
