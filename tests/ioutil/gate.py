# SPDX-License-Identifier: Apache-2.0
"""Operations held up by a system call that waits for the test."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ioutil_ext import lib

from .engine_driver import DEADLINE, Control, Engine, Queue, running_engine
from .syscall_table import real_pread, replaced


class Gate:
    """Hold up reads of chosen files until the test lets them go."""

    def __init__(self) -> None:
        self.held: set[int] = set()  # device numbers
        self._open = threading.Event()
        self._waiting = threading.Semaphore(0)

    def pread(self, fd: int, buffer: memoryview, offset: int) -> int:
        if os.fstat(fd).st_dev in self.held and not self._open.is_set():
            self._waiting.release()
            assert self._open.wait(DEADLINE)
        return real_pread(fd, buffer, offset)

    def hold(self, path: Path) -> None:
        self.held.add(path.stat().st_dev)

    def wait_for(self, readers: int) -> None:
        """Wait until so many more operations hang."""
        for _ in range(readers):
            assert self._waiting.acquire(timeout=DEADLINE)

    def nobody_more(self) -> bool:
        return not self._waiting.acquire(timeout=0.05)

    def release(self) -> None:
        self._open.set()


@contextmanager
def installed_gate() -> Iterator[Gate]:
    """Let reads pass a gate, which opens at the end."""
    gate = Gate()
    with replaced(pread=gate.pread):
        yield gate
        gate.release()


@contextmanager
def gated_engine(gate: Gate, max_threads: int = 8) -> Iterator[Engine]:
    """Run an engine; whatever becomes of the test, the gate opens before the engine is stopped."""
    with running_engine(max_threads) as engine:
        try:
            yield engine
        finally:
            gate.release()


def submit_reads(queue: Queue, handle: Any, count: int, control: Control | None = None) -> list[int]:
    return [
        queue.submit(lib.IOU_READ, handle, 4096 * i, 4096, buffer=bytearray(4096), control=control)
        for i in range(count)
    ]
