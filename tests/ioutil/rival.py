# SPDX-License-Identifier: Apache-2.0
"""A second writer that starts inside a system call of the first: the order that goes wrong, forced."""

import threading
from collections.abc import Callable

import pytest

from .engine_driver import DEADLINE, Failed
from .syscall_table import (
    real_fallocate,
    real_ftruncate,
    real_pread,
    real_pwrite,
    real_size,
    replaced,
)

KiB = 1024
BLOCK = 4096
BIG = 64 * KiB

#: How long the second writer gets to do wrong. Right code spends all of it, so it is short.
CHANCE = 0.15


class Rival:
    """A second writer, started from inside a system call of the first."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.started = False
        self.overtook = False
        self.wrote = threading.Event()
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def provoke(self) -> None:
        """Start it, once, and give it the chance to write."""
        if not self.started:
            self.started = True
            self._thread.start()
            self.overtook = self.wrote.wait(CHANCE)

    def is_me(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def join(self) -> None:
        assert self.started
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive(), "the second writer hangs"
        if self._error:
            raise self._error

    def _run(self) -> None:
        try:
            self._work()
        except Failed as error:
            self._error = error


def race(first: Callable[[], object], second: Callable[[], object], *, inside: str) -> bool:
    """Run `first`; start `second` when the first one is `inside` a system call: after a pread, before any other.

    Return whether the second one wrote before the first one went on.
    """
    rival = Rival(second)

    def pread(fd: int, buffer: memoryview, offset: int) -> int:
        count = real_pread(fd, buffer, offset)
        if inside == "pread" and not rival.is_me():
            rival.provoke()
        return count

    def pwrite(fd: int, buffer: memoryview, offset: int) -> int:
        if rival.is_me():
            count = real_pwrite(fd, buffer, offset)
            rival.wrote.set()
            return count
        if inside == "pwrite":
            rival.provoke()
        return real_pwrite(fd, buffer, offset)

    def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
        if inside == "fallocate" and not rival.is_me():
            rival.provoke()
        real_fallocate(fd, mode, offset, length)
        if rival.is_me():
            rival.wrote.set()

    def ftruncate(fd: int, size: int) -> None:
        if inside == "ftruncate" and not rival.is_me():
            rival.provoke()
        real_ftruncate(fd, size)

    def size(fd: int) -> int:
        result = real_size(fd)
        if inside == "size" and not rival.is_me():
            rival.provoke()
        return result

    with replaced(pread=pread, pwrite=pwrite, fallocate=fallocate, ftruncate=ftruncate, size=size):
        first()
        if not rival.started:
            rival.provoke()
            rival.join()
            pytest.skip(f"no {inside} in the first operation")
        rival.join()
        return rival.overtook
