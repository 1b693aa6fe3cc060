# SPDX-License-Identifier: Apache-2.0
"""What the program that manages the host is told of transfers, so that it need not ask again and again."""

from collections.abc import Callable
from dataclasses import dataclass

from .permission import Clock
from .transfer import Transfer

#: Seconds without a byte after which a transfer that has begun is told as stalled, or as idle if nobody is connected.
STALL = 60.0
#: Seconds between two notices of failed storage of one transfer: clients try again, several times a second.
FAILED_INTERVAL = 60.0


@dataclass
class _Seen:
    """What the last look has found. since: when a byte has moved last. quiet, expired, finalized: it was told."""

    since: float
    moved: int = 0
    quiet: bool = False
    expired: bool = False
    finalized: bool = False
    failures: int = 0
    failed_at: float = float("-inf")


class Notices:
    """Look at transfers at regular times, and tell what has happened. Nothing is done on the way of requests.

    tell: takes the event and its details. wanted: false: there is nobody to tell. follow() and the ends of transfers
    are thread-safe; look() is for one loop.
    """

    def __init__(self, tell: Callable[..., None], clock: Clock, *, wanted: bool) -> None:
        self._tell = tell
        self._clock = clock
        self._wanted = wanted
        self._seen: dict[Transfer, _Seen] = {}

    def follow(self, transfer: Transfer) -> None:
        """Look at a transfer until it has ended, and tell its end, unless it goes on in the next process."""
        if self._wanted:
            self._seen[transfer] = _Seen(self._clock())
            transfer.end.when_left(lambda _: self._ended(transfer))

    def look(self) -> None:
        """Tell what is new."""
        for transfer, seen in list(self._seen.items()):
            if not transfer.permission.canceled:
                self._look(transfer, seen, self._clock())

    def _look(self, transfer: Transfer, seen: _Seen, now: float) -> None:
        totals = transfer.totals()
        failures = totals.failed.total()
        if failures > seen.failures and now - seen.failed_at >= FAILED_INTERVAL:
            self._about("storage failed", transfer, failures=failures - seen.failures)
            seen.failures, seen.failed_at = failures, now
        if transfer.permission.seal.closed and not seen.finalized:
            seen.finalized = True
            self._about("transfer finalized", transfer)
        expired = transfer.permission.expired and not transfer.running
        if expired and not seen.expired:
            self._about("ticket expired", transfer)
        seen.expired = expired
        moved = totals.moved + totals.zeroed.total()
        if moved != seen.moved:
            seen.moved, seen.since, seen.quiet = moved, now, False
        elif moved and not (seen.quiet or expired or seen.finalized) and now - seen.since >= STALL:
            seen.quiet = True
            self._about("transfer stalled" if transfer.in_use else "transfer idle", transfer)

    def _ended(self, transfer: Transfer) -> None:
        self._seen.pop(transfer, None)
        if not transfer.goes_on:
            self._about("transfer ended", transfer)

    def _about(self, event: str, transfer: Transfer, **details: object) -> None:
        totals = transfer.totals()
        done = {"read": totals.read, "written": totals.written, "zeroed": totals.zeroed.total()}
        waits = max(transfer.storage_waits(), default=0)
        state = {"connections": len(transfer.connections), "storage_wait": int(waits)}
        self._tell(event, **transfer.ticket.fields(), **done, **state, **details)
