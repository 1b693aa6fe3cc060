# SPDX-License-Identifier: Apache-2.0
"""Lists and removals of many tickets."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace

from aiohttp.test_utils import make_mocked_request

from imageio_daemon.frontends.http.resources.tickets import BATCH, Tickets
from imageio_daemon.transfers.store import BATCH as REMOVED
from imageio_daemon.transfers.store import TransferStore
from tests.transfers.test_transfer import Opener, ticket


def store_of(count: int) -> TransferStore:
    """Return a store with `count` tickets, whose ids are numbers from 0 on."""
    store = TransferStore(Opener(), most_tickets=count, most_connections=1)
    for number in range(count):
        store.add(replace(ticket(), ticket_id=f"{number}"))
    return store


@contextlib.contextmanager
def counted_turns() -> Iterator[list[int]]:
    """Yield a list with the number of turns that another task has had in the block so far."""
    turns = [0]

    async def count() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count())
    yield turns
    other.cancel()


async def test_others_have_their_turn_while_many_tickets_are_listed() -> None:
    store = store_of(3 * BATCH)
    with counted_turns() as turns:
        answer = await Tickets(store, inactivity_timeout=60, remove_timeout=60).list_all(
            make_mocked_request("GET", "/tickets/")
        )
    assert turns == [3]
    assert isinstance(answer.body, bytes)
    assert [state["uuid"] for state in json.loads(answer.body)] == [str(number) for number in range(3 * BATCH)]
    await store.close()


async def test_others_have_their_turn_while_all_of_many_tickets_are_removed() -> None:
    store = store_of(3 * REMOVED)
    transfers = store.all()
    with counted_turns() as turns:
        await store.clear()
    assert turns == [2], "between three batches"
    assert store.all() == []
    assert all(transfer.permission.canceled for transfer in transfers)
    await store.close()


async def test_tickets_stay_valid_until_they_are_removed_with_the_others() -> None:
    store = store_of(2 * REMOVED)
    removal = asyncio.create_task(store.clear())
    await asyncio.sleep(0)
    removal.cancel()
    await asyncio.wait([removal])
    assert [transfer.ticket.ticket_id for transfer in store.all()] == [f"{n}" for n in range(REMOVED, 2 * REMOVED)]
    assert all(transfer.permission.valid for transfer in store.all())
    await store.close()
