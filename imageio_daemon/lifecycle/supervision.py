# SPDX-License-Identifier: Apache-2.0
"""Messages to the service manager: the daemon's state, a status text, and signs of life."""

import asyncio
import contextlib
import faulthandler
import time
from collections.abc import Iterator

from ..commands.amounts import human
from ..runtime import systemd
from ..runtime.degraded import Degraded
from ..runtime.sums import Served
from ..transfers.store import TransferStore
from .health import Liveness

#: Seconds between two updates of the status.
STATUS_INTERVAL = 10.0
#: Signs of life in the time after which the manager ends a silent daemon. Two of three may be late or missing.
SIGNS = 3
#: Services whose bytes are not those of transfers.
_OTHERS = ("control", "metrics")


class Supervision:
    """Send messages to the service manager by sd_notify(3), if they are `wanted`. Use this on the event loop.

    The status begins with the features of `degraded` that are not in force.
    """

    def __init__(self, degraded: Degraded, *, wanted: bool) -> None:
        self._degraded = degraded
        self._wanted = wanted
        self._listening = self._status = ""
        self._failed = False

    def why_not(self) -> str:
        """Return why messages do not reach the service manager, or "" if they do, or if there is no manager."""
        return "it cannot be told how the daemon is" if self._failed else ""

    def ready(self, listening: str) -> None:
        """Report that the services listen. `listening` says where, for people."""
        self._listening = listening
        self._status = self._whole(listening)
        self._notify(f"READY=1\nSTATUS={self._status}")

    def status(self, text: str) -> None:
        """Show a text as the status, after the features that are not in force. Send nothing if nothing has changed."""
        text = self._whole(text)
        if text != self._status or self._failed:
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
        """Report that the daemon begins to stop, and needs at most `seconds`, even if the unit allows less."""
        self._notify(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    async def watch_status(self, store: TransferStore, served: Served) -> None:
        """Show transfers and rates in the status, until the task is cancelled."""
        before, then = _moved(served), time.monotonic()
        while True:
            await asyncio.sleep(STATUS_INTERVAL)
            moved, now = _moved(served), time.monotonic()
            received, sent = ((after - past) / (now - then) for after, past in zip(moved, before, strict=True))
            before, then = moved, now
            if store.drain is None:
                self.status(f"{self._listening}; {_activity(store, received, sent)}")

    async def watch_life(self, liveness: Liveness) -> None:
        """Give signs of life until the task is cancelled, each if the lanes have answered since the one before.

        Does nothing if the manager wants no signs (WatchdogSec= in systemd.service(5)). If the manager ends the
        process, the stacks of all threads are written to standard error.
        """
        timeout = systemd.take_watchdog()
        if not self._wanted or not timeout:
            return
        faulthandler.enable()
        while True:
            if liveness.ask():
                self._notify("WATCHDOG=1")
            await asyncio.sleep(timeout / SIGNS)

    def _notify(self, state: str) -> None:
        if self._wanted:
            self._failed = not systemd.notify(state) and systemd.is_there()

    def _whole(self, text: str) -> str:
        lacking = self._degraded.summary()
        return f"degraded: {lacking}; {text}" if lacking else text


def _moved(served: Served) -> tuple[int, int]:
    """Return the bytes that all transfers have received and sent."""
    counts = [count for (service, _), count in served.sums().items() if service not in _OTHERS]
    return sum(count.received for count in counts), sum(count.sent for count in counts)


def _activity(store: TransferStore, received: float, sent: float) -> str:
    used = [transfer for transfer in store.all() if transfer.in_use]
    wait = int(max((wait for transfer in used for wait in transfer.traffic.storage_waits()), default=0))
    rates = f"{human(received)}/s in, {human(sent)}/s out"
    return f"{len(used)} transfers, {rates}{f', storage waits {wait} s' if wait else ''}"
