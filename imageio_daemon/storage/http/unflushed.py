# SPDX-License-Identifier: Apache-2.0
"""Changes that another server of the images API has answered and not flushed, and which of its processes has them."""

import threading
import time
from collections.abc import Awaitable, Callable

from ..backend import Operation

#: Seconds for which the name of the server's process need not be asked for again: no daemon starts in less. A write of
#: 4 KiB and its flush take 1.4 ms, 2.0 with one question, 2.7 with one before and one after.
KNOWN_FOR = 0.1

#: Asks the server for the name of its process; None: it tells none.
Ask = Callable[[Operation], Awaitable[str | None]]


class Unflushed:
    """Tell whether one process had all changes since the last flush, and that flush, too. Thread-safe.

    A process tells its name, the `instance`, in OPTIONS; another one has another name. What changes something names an
    instance that was told before it; a flush, one that was told after it. If both are equal, no other process was there
    in between. A server that tells no names at first is trusted, and not asked.
    """

    def __init__(self, ask: Ask, instance: str | None) -> None:
        self._ask = ask
        self._told = (instance, time.monotonic())
        self._lock = threading.Lock()
        self._changes = 0
        self._flushed = 0  # of the changes
        self._instances: set[str | None] = set()  # that were named by changes since the last flush

    @property
    def pending(self) -> int:
        """Return a number that stands for all changes up to now; 0 if each was flushed."""
        with self._lock:
            return self._changes if self._changes > self._flushed else 0

    async def instance(self, op: Operation) -> str | None:
        """Return an instance that was told before a change which begins now.

        The first change after a flush asks: between them the server may start anew and nothing is lost. For those after
        it that name is good enough, because each of them is lost, or none. An old name can only fail a flush in vain.
        """
        with self._lock:
            if self._changes > self._flushed:
                return next(iter(self._instances))
        instance, told = self._told
        return instance if time.monotonic() - told < KNOWN_FOR else await self._asked(op)

    def changed(self, instance: str | None) -> None:
        """Note a change that was answered."""
        with self._lock:
            if self._changes == self._flushed:
                self._instances.clear()
            self._changes += 1
            self._instances.add(instance)

    async def flushed(self, op: Operation, pending: int) -> bool:
        """Note that a flush was answered: tell whether it has covered what was pending when it began."""
        if not pending:
            return True
        instance = await self._asked(op)
        with self._lock:
            if self._instances != {instance}:
                return False
            self._flushed = max(self._flushed, pending)
            return True

    async def _asked(self, op: Operation) -> str | None:
        if self._told[0] is None:
            return None
        instance = await self._ask(op)
        self._told = (instance, time.monotonic())
        return instance
