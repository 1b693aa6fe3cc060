# SPDX-License-Identifier: Apache-2.0
"""Ports for daemons that a test restarts."""

import contextlib
import random
import socket


def unused_port() -> int:
    """Return an unused port below those that connections get, so that a daemon can have it again after a restart.

    While the daemon restarts, a connection of another test could get a port that the kernel chooses.
    """
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket(socket.AF_INET6) as sock, contextlib.suppress(OSError):
            sock.bind(("::", port))
            return port
