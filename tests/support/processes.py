# SPDX-License-Identifier: Apache-2.0
"""Information from /proc about other processes, which may change while it is read."""

import contextlib
import os
from pathlib import Path


def open_files(pid: int) -> dict[int, str]:
    """Return the targets of a process's descriptors. Descriptors that it closes during this are left out."""
    found = {}
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[int(descriptor)] = os.readlink(f"/proc/{pid}/fd/{descriptor}")
    return found


def thread_names(pid: int) -> list[str]:
    """Return the names of the threads of a process. Threads that end during this are left out."""
    found = []
    for name in Path(f"/proc/{pid}/task").glob("*/comm"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.append(name.read_text().strip())
    return found


def times_slept(pid: int, name: str) -> int:
    """Return how often the threads of a process with this name have slept."""
    count = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (task / "comm").read_text().strip() == name:
                fields = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
                count += int(fields["voluntary_ctxt_switches"])
    return count
