# SPDX-License-Identifier: Apache-2.0
"""Ports for daemons that a test restarts."""

import contextlib
import random
import socket


def unused_port() -> int:
    """Return a port that no daemon has, and below those that connections get: a daemon can have it twice.

    A port of those that the kernel gives may become that of a connection of another test while the daemon restarts.
    """
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket(socket.AF_INET6) as sock, contextlib.suppress(OSError):
            sock.bind(("::", port))
            return port
