# SPDX-License-Identifier: Apache-2.0
"""Notifications of the service manager, by the protocol of sd_notify(3)."""

import logging
import os
import socket

log = logging.getLogger(__name__)

#: Seconds. The manager reads at once; if it hangs, the daemon must not wait for it.
SEND_TIMEOUT = 1.0


def notify(state: str) -> None:
    """Send a state like READY=1 to the socket that NOTIFY_SOCKET names; do nothing if it is not set.

    Errors are logged, not raised: the daemon can serve without a service manager.
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
