# SPDX-License-Identifier: Apache-2.0
"""The service manager: notifications, stored descriptors and watchdog (sd_notify(3)), sockets (sd_listen_fds(3))."""

import array
import logging
import os
import select
import socket
from collections.abc import Sequence
from typing import NamedTuple

log = logging.getLogger(__name__)

#: Seconds to wait for a manager that does not read. Usually it reads at once.
SEND_TIMEOUT = 1.0
#: Seconds that the manager has to close stored descriptors.
BARRIER_TIMEOUT = 5.0
#: Most descriptors that a manager passes. systemd stores at most this many for a service by its own limit.
MAX_PASSED = 512
#: The first passed descriptor.
FIRST_PASSED = 3


class Passed(NamedTuple):
    """A descriptor that the manager has passed: from a socket unit, or stored by the process before.

    The name may be "". The caller of take_passed() owns the descriptor.
    """

    name: str
    fd: int


def is_there() -> bool:
    """Return whether a service manager wants to be notified."""
    return bool(os.environ.get("NOTIFY_SOCKET"))


def notify(state: str, fds: Sequence[int] = ()) -> bool:
    """Send a state like READY=1, with descriptors, to the socket that NOTIFY_SOCKET names. Return whether it was sent.

    Without NOTIFY_SOCKET, send nothing. Errors are logged and not raised, as the daemon can serve without a manager.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    if not address.startswith(("/", "@")):
        log.warning("cannot notify the service manager of %s: unsupported address %s", state, address)
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(SEND_TIMEOUT)
            sock.connect(address)
            sock.sendmsg([state.encode()], rights)
    except OSError as e:
        log.warning("cannot notify the service manager of %s: %s", state, e)
        return False
    return True


def store(name: str, fd: int) -> bool:
    """Give the manager a copy of a descriptor for the next process, under a name. Return whether it was sent."""
    return notify(f"FDSTORE=1\nFDNAME={name}", [fd])


def forget(names: Sequence[str]) -> None:
    """Have the manager close the descriptors that it stores under these names, and wait until it has."""
    sent = [notify(f"FDSTOREREMOVE=1\nFDNAME={name}") for name in names]
    if any(sent):
        _wait_for_manager()


def take_passed() -> list[Passed]:
    """Return the descriptors that the manager has passed to this process, and make them close-on-exec.

    Unsets the environment variables of sd_listen_fds(3).
    """
    pid, count, names = (os.environ.pop(f"LISTEN_{name}", "") for name in ("PID", "FDS", "FDNAMES"))
    if pid != str(os.getpid()) or not count.isdecimal() or not 0 < int(count) <= MAX_PASSED:
        return []
    known = names.split(":") + [""] * int(count)
    passed = [Passed(known[number], FIRST_PASSED + number) for number in range(int(count))]
    for _, fd in passed:
        os.set_inheritable(fd, False)
    return passed


def take_watchdog() -> float:
    """Return the seconds without a sign of life after which the manager ends this process, or 0 for never.

    Unsets the variables of sd_watchdog_enabled(3), because the manager does not watch children.
    """
    usec, pid = (os.environ.pop(f"WATCHDOG_{name}", "") for name in ("USEC", "PID"))
    if pid not in ("", str(os.getpid())) or not usec.isdecimal():
        return 0.0
    return int(usec) / 1e6


def _wait_for_manager() -> None:
    """Wait until the manager has handled all earlier messages and closes a pipe (BARRIER=1 in sd_notify(3))."""
    ours, theirs = os.pipe()
    try:
        try:
            sent = notify("BARRIER=1", [theirs])
        finally:
            os.close(theirs)
        poll = select.poll()
        poll.register(ours, 0)
        if sent and not poll.poll(BARRIER_TIMEOUT * 1000):
            log.warning("the service manager does not answer")
    finally:
        os.close(ours)
