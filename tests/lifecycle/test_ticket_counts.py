# SPDX-License-Identifier: Apache-2.0
"""The look at all tickets, in which others have their turns."""

import asyncio
from types import SimpleNamespace
from typing import Any

from imageio_daemon.lifecycle.ticket_counts import BATCH, TicketCounts
from imageio_daemon.runtime.sums import Sums
from imageio_daemon.storage.operation import Totals


class Transfer:
    """A ticket that nobody uses, of which 1 byte was read."""

    permission = SimpleNamespace(canceled=False, expired=False)
    running = 0
    opened = None
    traffic = SimpleNamespace(storage_waits=list)

    def totals(self) -> Totals:
        return Totals(read=1)


async def test_totals_do_not_decrease_while_tickets_end() -> None:
    sums: Any = Sums(Totals(), Transfer.totals)
    transfers = [Transfer() for _ in range(2 * BATCH + 1)]
    for transfer in transfers:
        sums.begin("file", transfer)
    sums.end(transfers.pop())
    looking = asyncio.create_task(TicketCounts.look(sums))
    await asyncio.sleep(0)
    assert not looking.done()
    for transfer in transfers:
        sums.end(transfer)
    found = await looking
    assert found.totals == {"file": Totals(read=2 * BATCH + 1)} == sums.sums()
    assert found.states == {"idle": 2 * BATCH}
