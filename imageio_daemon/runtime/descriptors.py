# SPDX-License-Identifier: Apache-2.0
"""The limit on open files (RLIMIT_NOFILE in getrlimit(2)): raised for the daemon, unchanged for its children.

The soft limit is 1024 by default because select(2) knows no higher descriptors (systemd.exec(5), LimitNOFILE=). The
daemon does not use select(2), so it raises the limit as far as it may. The programs that it starts may use select(2).
"""

import logging
import resource

log = logging.getLogger(__name__)

#: The soft limit at the start of this process, if another one is in force now.
_inherited: int | None = None


def raise_limit() -> None:
    """Raise the soft limit to the hard one."""
    global _inherited  # noqa: PLW0603 - the limit is the process's, too
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except OSError as e:  # a filter of system calls
        log.warning("the limit of open files stays %d: %s", soft, e.strerror)
        return
    _inherited = soft


def limit() -> int:
    """Return how many descriptors this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def restore_limit(pid: int) -> None:
    """Give a child process the soft limit from the start of this process. Does nothing if the child has ended."""
    if _inherited is None:
        return
    try:
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (_inherited, hard))
    except OSError as e:
        log.debug("the limit of open files of process %d stays as it is: %s", pid, e.strerror)
