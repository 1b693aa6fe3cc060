# SPDX-License-Identifier: Apache-2.0
"""Lists of many tickets."""

import asyncio
import json
from dataclasses import replace

from aiohttp.test_utils import make_mocked_request

from imageio_daemon.frontends.http.resources.tickets import BATCH, Tickets
from imageio_daemon.transfers.store import TransferStore
from tests.transfers.test_transfer import Opener, ticket


async def test_others_have_their_turn_while_many_tickets_are_listed() -> None:
    most = 3 * BATCH
    store = TransferStore(Opener(), most_tickets=most, most_connections=1)
    for number in range(most):
        store.add(replace(ticket(), ticket_id=f"{number}"))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count())
    answer = await Tickets(store, inactivity_timeout=60, remove_timeout=60).list_all(
        make_mocked_request("GET", "/tickets/")
    )
    other.cancel()
    assert turns == 3
    assert isinstance(answer.body, bytes)
    assert [state["uuid"] for state in json.loads(answer.body)] == [str(number) for number in range(most)]
    await store.close()
