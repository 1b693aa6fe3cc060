# SPDX-License-Identifier: Apache-2.0
"""What the service manager is told while the daemon runs: its state, what it does, and that it is alive."""

import asyncio
import contextlib
import faulthandler
import time
from collections.abc import Iterator

from .amounts import human
from .monitoring.liveness import Liveness
from .service import systemd
from .service.served import Served
from .transfers.store import TransferStore

#: Seconds between two looks at what the daemon does.
STATUS_INTERVAL = 10.0
#: Signs of life in the time after which the manager ends a silent daemon: a loop may be busy for two of three.
SIGNS = 3
#: Services whose bytes are not those of transfers.
_OTHERS = ("control", "metrics")


class Supervision:
    """Tell the service manager what sd_notify(3) has. Used on the first loop. wanted: False: it is told nothing."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._listening = self._status = ""

    def ready(self, listening: str) -> None:
        """The services listen. listening: where, for people."""
        self._listening = self._status = listening
        self._notify(f"READY=1\nSTATUS={listening}")

    def status(self, text: str) -> None:
        """Show a text as the status, if it is another one than before."""
        if text != self._status:
            self._status = text
            self._notify(f"STATUS={text}")

    @contextlib.contextmanager
    def reloading(self) -> Iterator[None]:
        """Run the block as a reload."""
        self._notify(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")
        try:
            yield
        finally:
            self._notify("READY=1")

    def stopping(self, seconds: float) -> None:
        """The daemon begins to stop. It needs at most so many seconds, also if the unit allows it less."""
        self._notify(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    async def watch_status(self, store: TransferStore, served: Served) -> None:
        """Show what moves, until the task is cancelled."""
        before, then = _moved(served), time.monotonic()
        while True:
            await asyncio.sleep(STATUS_INTERVAL)
            moved, now = _moved(served), time.monotonic()
            received, sent = ((after - past) / (now - then) for after, past in zip(moved, before, strict=True))
            before, then = moved, now
            if store.drain is None:
                self.status(f"{self._listening}; {_activity(store, received, sent)}")

    async def watch_life(self, liveness: Liveness) -> None:
        """Give signs of life, until the task is cancelled, while each loop and the lanes have answered since the last.

        Nothing happens if the manager wants no signs (WatchdogSec= in systemd.service(5)). If it ends the process, the
        threads and where they are come to standard error.
        """
        timeout = systemd.take_watchdog()
        if not self._wanted or not timeout:
            return
        faulthandler.enable()
        while True:
            if not liveness.ask():
                self._notify("WATCHDOG=1")
            await asyncio.sleep(timeout / SIGNS)

    def _notify(self, state: str) -> None:
        if self._wanted:
            systemd.notify(state)


def _moved(served: Served) -> tuple[int, int]:
    """Return the bytes that all transfers have received and sent."""
    counts = [count for (service, _), count in served.sums().items() if service not in _OTHERS]
    return sum(count.received for count in counts), sum(count.sent for count in counts)


def _activity(store: TransferStore, received: float, sent: float) -> str:
    used = [transfer for transfer in store.all() if transfer.in_use]
    wait = int(max((wait for transfer in used for wait in transfer.storage_waits()), default=0))
    rates = f"{human(received)}/s in, {human(sent)}/s out"
    return f"{len(used)} transfers, {rates}{f', storage waits {wait} s' if wait else ''}"
