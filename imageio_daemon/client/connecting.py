# SPDX-License-Identifier: Apache-2.0
"""Sockets that are closed if connecting, or what follows, fails."""

import contextlib
import socket
from collections.abc import Iterator


def unix_connected(address: str, timeout: float) -> socket.socket:
    """Return a socket that is connected to a unix socket. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with closed_on_error(sock):
        sock.settimeout(timeout)
        sock.connect(address)
    return sock


@contextlib.contextmanager
def closed_on_error(sock: socket.socket) -> Iterator[None]:
    """Close a socket if the block raises."""
    try:
        yield
    except BaseException:
        sock.close()
        raise
