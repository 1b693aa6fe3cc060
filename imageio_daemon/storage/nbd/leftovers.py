# SPDX-License-Identifier: Apache-2.0
"""Servers that a killed daemon has left. They write their cached changes and end by themselves, which takes time.

The command line identifies such a server: it has the name of a private directory, which only a daemon with the same run
directory makes. A process id from a pid file is not enough, because another process may have it by now.
"""

import asyncio
import json
import logging
import os
import select
import shutil
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

from ...errors import Unavailable
from ...runtime.background import in_thread
from .process import DIRECTORY, JSON, STOP_TIMEOUT

log = logging.getLogger(__name__)

#: Seconds between two checks whether they have ended.
POLL = 0.05


def remove_directories(run_dir: str) -> None:
    """Remove the directories of a killed daemon's servers from the run directory. Blocks."""
    for name in os.listdir(run_dir):
        if name.startswith(DIRECTORY):
            shutil.rmtree(os.path.join(run_dir, name), ignore_errors=True)


async def ended(run_dir: str, node: dict[str, Any]) -> None:
    """Wait until no server of a killed daemon has a file of an image.

    `node` is the image's block node. Each server gets a SIGTERM. The kernel has sent one when the daemon was killed,
    but not if that was between fork and exec. Raises Unavailable if one takes longer than STOP_TIMEOUT.
    """
    deadline = time.monotonic() + STOP_TIMEOUT
    with ExitStack() as held:
        left = await in_thread(lambda: _find(run_dir, set(_files(node))), _close)
        for pidfd in left:
            held.callback(os.close, pidfd)
        if left:
            log.warning("an image is still used by %d qemu-nbd of a daemon that was killed", len(left))
        for pidfd in left:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        while not all(map(_has_ended, left)):
            if time.monotonic() > deadline:
                raise Unavailable("The image is still being closed after a crash of the server")
            await asyncio.sleep(POLL)


def _find(run_dir: str, files: set[str]) -> list[int]:
    """Return pidfds (pidfd_open(2)) of the servers that have one of the files. The caller closes the pidfds. Blocks."""
    found = []
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        with ExitStack() as held, suppress(OSError):  # it has ended, or is another user's and hidden
            pidfd = os.pidfd_open(pid)  # first, so that the process that is checked is the one that is waited for
            held.callback(os.close, pidfd)
            if _is_left(pid, os.path.join(run_dir, DIRECTORY), files):
                held.pop_all()
                found.append(pidfd)
    return found


def _is_left(pid: int, beginning: str, files: set[str]) -> bool:
    """Return whether a process is a server whose daemon is gone, and has one of the files open. Raises OSError."""
    proc = f"/proc/{pid}"
    with open(f"{proc}/cmdline", "rb") as file:
        words = os.fsdecode(file.read()).split("\0")
    if not any(word.startswith(f"--socket={beginning}") for word in words) or os.stat(proc).st_uid != os.geteuid():
        return False
    with open(f"{proc}/stat") as file:
        parent = int(file.read().rpartition(")")[2].split()[1])  # proc_pid_stat(5)
    image = next((word.removeprefix(JSON) for word in words if word.startswith(JSON)), "null")
    if parent == os.getpid():
        return False
    with suppress(ValueError):
        return not files.isdisjoint({*_files(json.loads(image)), *_open_files(proc)})
    return False


def _open_files(proc: str) -> Iterator[str]:
    """Yield the paths of a process's open files, because its command may name an image by a link (process.py)."""
    for descriptor in os.listdir(f"{proc}/fd"):
        with suppress(OSError):
            yield os.readlink(f"{proc}/fd/{descriptor}")


def _files(node: object) -> Iterator[str]:
    """Yield the names of the files of a block node."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "filename" and isinstance(value, str):
                yield value
            yield from _files(value)


def _has_ended(pidfd: int) -> bool:
    """Return whether a process has ended, which makes its pidfd readable."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _close(pidfds: Iterable[int]) -> None:
    for pidfd in pidfds:
        os.close(pidfd)
