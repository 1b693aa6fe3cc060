# SPDX-License-Identifier: Apache-2.0
"""The system calls of lanes under a test's control: they fail, or wait, as it says."""

import os
import threading
from collections.abc import Callable
from typing import Any

from tests.ioutil.syscall_table import real_fallocate, real_fdatasync, real_pread, real_pwrite
from tests.support.polling import SOON

REAL: dict[str, Callable[..., Any]] = {
    "pread": real_pread,
    "pwrite": real_pwrite,
    "fallocate": real_fallocate,
    "fdatasync": real_fdatasync,
}


class Hold:
    """Calls that wait until they are released, at most so many. `count`: how many do."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0
        self._released = threading.Event()
        self._lock = threading.Lock()

    @property
    def full(self) -> bool:
        """Tell whether as many calls wait as should."""
        return self.count == self.most

    def release(self) -> None:
        """Let them go on, and later ones not wait."""
        self._released.set()

    def take(self) -> None:
        """Wait, unless as many as should wait already do."""
        with self._lock:
            if self._released.is_set() or self.full:
                return
            self.count += 1
        assert self._released.wait(10 * SOON), "a call was never released"


class Calls:
    """What becomes of system calls. `made`: those that were done; `failed`: how many were not."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.failed = 0
        self._errors: dict[str, tuple[int, int]] = {}
        self._holds: dict[str, Hold] = {}

    def fail(self, name: str, error: int, *, after: int = 0) -> None:
        """Let calls of this name fail, but for as many as `after` says."""
        self._errors[name] = (error, self.made.count(name) + after)

    def hold(self, name: str, most: int = 1) -> Hold:
        """Let the next calls of this name wait."""
        hold = self._holds[name] = Hold(most)
        return hold

    def mend(self) -> None:
        """Let everything work again."""
        self._errors.clear()
        for hold in self._holds.values():
            hold.release()

    def table(self) -> dict[str, Callable[..., Any]]:
        """Return the replacements, for syscall_table.replaced()."""
        return {name: self._replacement(name, real) for name, real in REAL.items()}

    def _replacement(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if name in self._holds:
                self._holds[name].take()
            error, after = self._errors.get(name, (0, 0))
            if error and self.made.count(name) >= after:
                self.failed += 1
                raise OSError(error, os.strerror(error))
            self.made.append(name)
            return real(*arguments)

        return call
