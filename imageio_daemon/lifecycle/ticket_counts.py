# SPDX-License-Identifier: Apache-2.0
"""The numbers on tickets in the metrics, from a look at each ticket."""

import asyncio
from collections import Counter

from ..runtime.sums import Sums
from ..storage.operation import Totals
from ..transfers.ticket import STORAGE
from ..transfers.transfer import Transfer

#: States of tickets in metrics. A ticket is `ending` from its cancellation until its image is closed.
TICKETS = ("active", "idle", "expired", "ending")
#: States of records of durable ranges. The journal of a `failed` one cannot be kept. A `closed` one has ended for
#: good, after a failed flush.
RECORDS = ("kept", "closed", "failed")
#: Tickets to look at before other tasks have their turn on the event loop. Each takes 15 us.
BATCH = 100


class TicketCounts:
    """The results of a look at all tickets.

    `totals` has the totals of storage, by the kind of storage. These numbers never decrease. `states` counts tickets by
    state. `waits` has, by the kind of storage, the seconds for which requests have waited for it now. `records` counts
    records of durable ranges by state, and `durable` is the sum of their bytes.
    """

    def __init__(self, totals: dict[str, Totals]) -> None:
        self.totals = totals
        self.states: Counter[str] = Counter()
        self.waits: dict[str, list[float]] = {storage: [] for storage in STORAGE}
        self.records: Counter[str] = Counter()
        self.durable = 0

    @classmethod
    async def look(cls, sums: Sums[str, Transfer, Totals]) -> "TicketCounts":
        """Look at all tickets of this moment. A ticket that ends during the look still counts with its totals."""
        found = cls(sums.ended())
        for number, (transfer, storage) in enumerate(sums.sources().items(), 1):
            found._add(transfer, storage)
            if not number % BATCH:
                await asyncio.sleep(0)
        return found

    def _add(self, transfer: Transfer, storage: str) -> None:
        self.totals[storage] = self.totals.get(storage, Totals()).plus(transfer.totals())
        self.states[_state(transfer)] += 1
        self.waits[storage] += transfer.traffic.storage_waits()
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
