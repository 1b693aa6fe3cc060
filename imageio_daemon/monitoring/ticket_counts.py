# SPDX-License-Identifier: Apache-2.0
"""What metrics tell of tickets, found by a look at each."""

import asyncio
from collections import Counter

from ..runtime.sums import Sums
from ..storage.totals import Totals
from ..transfers.ticket import STORAGE
from ..transfers.transfer import Transfer

#: States of tickets, as metrics tell them. ending: cancelled, and the image is not closed yet.
TICKETS = ("active", "idle", "expired", "ending")
#: States of records of what is durable. failed: its journal cannot be kept. closed: for good, after a failed flush.
RECORDS = ("kept", "closed", "failed")
#: Tickets that are looked at before others have their turn on the event loop. A look takes 15 us.
BATCH = 100


class TicketCounts:
    """What a look at all tickets has found.

    `totals` has what storage has done, by the kind of storage; these never decrease. `states` counts tickets, `waits`
    has the seconds for which requests wait for storage now, by its kind, `records` counts records of what is durable by
    state, and `durable` their bytes.
    """

    def __init__(self, totals: dict[str, Totals]) -> None:
        self.totals = totals
        self.states: Counter[str] = Counter()
        self.waits: dict[str, list[float]] = {storage: [] for storage in STORAGE}
        self.records: Counter[str] = Counter()
        self.durable = 0

    @classmethod
    async def look(cls, sums: Sums[str, Transfer, Totals]) -> "TicketCounts":
        """Look at all tickets that there are now. One that ends meanwhile keeps its totals."""
        found = cls(sums.ended())
        for number, (transfer, storage) in enumerate(sums.sources().items(), 1):
            found._add(transfer, storage)
            if not number % BATCH:
                await asyncio.sleep(0)
        return found

    def _add(self, transfer: Transfer, storage: str) -> None:
        self.totals[storage] = self.totals.get(storage, Totals()).plus(transfer.totals())
        self.states[_state(transfer)] += 1
        self.waits[storage] += transfer.storage_waits()
        if transfer.opened is None or (record := transfer.record) is None:
            return
        state = record.state()
        self.records["failed" if state.error else "closed" if state.closed else "kept"] += 1
        self.durable += state.bytes


def _state(transfer: Transfer) -> str:
    if transfer.permission.canceled:
        return "ending"
    if transfer.running:
        return "active"
    return "expired" if transfer.permission.expired else "idle"
