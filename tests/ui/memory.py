# SPDX-License-Identifier: Apache-2.0
"""The memory of tabs: of the processes in which a browser runs pages."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

#: Seconds between two looks.
INTERVAL = 0.1


class Watch:
    """Look at the largest tab below a process. most: bytes that were its own (the proportional set size, proc(5))."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.most = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ends.wait(INTERVAL):
            self.most = max(self.most, *(_memory(pid) for pid in below(self._pid) if _is_tab(pid)), 0)


def below(pid: int) -> Iterator[int]:
    """Yield the processes below one, the first child first."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in _text(path).split():
            yield int(child)
            yield from below(int(child))


def _is_tab(pid: int) -> bool:
    return "--type=renderer" in _text(Path(f"/proc/{pid}/cmdline"))


def _memory(pid: int) -> int:
    match = re.search(r"^Pss:\s+(\d+) kB$", _text(Path(f"/proc/{pid}/smaps_rollup")), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # it has ended
