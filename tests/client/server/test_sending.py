# SPDX-License-Identifier: Apache-2.0
"""The kernel takes little of what a slow link has not sent."""

import socket

from imageio_daemon.client.server.sending import FAST, UNSENT, Unsent
from imageio_daemon.units import MiB


def limit(sock: socket.socket) -> int:
    """Return the limit of a socket; 0: it has none of its own."""
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)


def test_unsent_bytes_are_limited_until_the_link_is_fast() -> None:
    with socket.socket() as sock:
        unsent = Unsent(sock)
        limits = [limit(sock)]
        for rate in (FAST - 1, FAST, FAST - 1):
            unsent.learn(rate, 1.0)
            limits.append(limit(sock))
    assert limits == [UNSENT, UNSENT, 0, UNSENT]


def test_unix_sockets_have_no_such_limit() -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        unsent = Unsent(sock)  # raises nothing
        unsent.learn(MiB, 100.0)
