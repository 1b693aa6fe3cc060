# SPDX-License-Identifier: Apache-2.0
"""Tell the service manager how we are: the protocol of sd_notify(3)."""

import logging
import os
import socket

log = logging.getLogger(__name__)

#: The manager reads at once, unless it hangs itself; then it must not hang us. In seconds.
SEND_TIMEOUT = 1.0


def notify(state: str) -> None:
    """Send a state like READY=1 to the socket that NOTIFY_SOCKET names; do nothing when there is none.

    A manager that cannot be reached is logged: it is no reason to stop serving.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if not address.startswith(("/", "@")):
        log.warning("cannot tell the service manager %s: unsupported address %s", state, address)
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(SEND_TIMEOUT)
            sock.connect(address)
            sock.sendall(state.encode())
    except OSError as e:
        log.warning("cannot tell the service manager %s: %s", state, e)
