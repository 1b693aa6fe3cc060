# SPDX-License-Identifier: Apache-2.0
"""Which transfers go on while the store drains, and when a limit is set."""

import pytest

from imageio_daemon.errors import Forbidden, TooManyTransfers, Unavailable
from imageio_daemon.storage.backend import Backend
from imageio_daemon.transfers.active import PAUSE
from imageio_daemon.transfers.store import TransferStore
from imageio_daemon.transfers.ticket import Access, Ticket
from tests.support.backends import MemoryBackend


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def open_backend(_: Ticket) -> Backend:
    return MemoryBackend(bytes(100))


def ticket(ticket_id: str, timeout: int = 300) -> Ticket:
    ops = (Access.WRITE,)
    return Ticket(ticket_id=ticket_id, url="file:///disk", size=100, ops=ops, timeout=timeout, inactivity_timeout=60)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> TransferStore:
    return TransferStore(open_backend, most_tickets=9, most_connections=9, clock=clock)


def left(store: TransferStore) -> int:
    assert store.drain is not None
    return store.drain.left()


async def test_transfer_with_a_connection_goes_on(store: TransferStore, clock: Clock) -> None:
    transfer = store.add(ticket("a"))
    transfer.connections.add(self := object())
    clock.now += PAUSE
    store.begin_drain()
    assert store.authorize("a", Access.READ) is transfer
    assert left(store) == 1
    transfer.connections.remove(self)
    assert left(store) == 0


async def test_transfer_with_a_request_goes_on(store: TransferStore, clock: Clock) -> None:
    transfer = store.add(ticket("a"))
    with transfer.track(Access.WRITE):
        clock.now += 2 * PAUSE
        store.begin_drain()
        assert left(store) == 1


async def test_cancelled_transfer_goes_on_until_its_requests_have_ended(store: TransferStore) -> None:
    transfer = store.add(ticket("a"))
    transfer.connections.add(object())  # stays: the client may use another ticket next
    with transfer.track(Access.WRITE):
        store.begin_drain()
        transfer.cancel()
        assert left(store) == 1
    assert left(store) == 0


async def test_transfer_between_two_connections_goes_on(store: TransferStore, clock: Clock) -> None:
    transfer = store.add(ticket("a"))
    clock.now += 100
    with transfer.track(Access.WRITE):
        pass
    clock.now += PAUSE - 1
    store.begin_drain()
    assert store.authorize("a", Access.READ) is transfer
    clock.now += 1
    assert left(store) == 0
    with pytest.raises(Unavailable):
        store.authorize("a", Access.READ)


async def test_transfer_that_was_not_in_use_is_refused(store: TransferStore, clock: Clock) -> None:
    store.add(ticket("a"))
    clock.now += PAUSE
    store.begin_drain()
    with pytest.raises(Unavailable):
        store.authorize("a", Access.READ)


async def test_unknown_ticket_is_forbidden_as_ever(store: TransferStore) -> None:
    store.begin_drain()
    with pytest.raises(Forbidden):
        store.authorize("a", Access.READ)


async def test_expired_ticket_does_not_go_on(store: TransferStore, clock: Clock) -> None:
    store.add(ticket("a", timeout=1))
    clock.now += 1
    store.begin_drain()
    assert left(store) == 0
    with pytest.raises(Forbidden):
        store.authorize("a", Access.READ)


async def test_no_ticket_is_installed(store: TransferStore) -> None:
    store.begin_drain()
    with pytest.raises(Unavailable):
        await store.install(ticket("a"))


async def test_transfers_that_are_active_when_a_limit_is_set_go_on_and_count(
    store: TransferStore, clock: Clock
) -> None:
    for name in ("a", "b"):
        with store.add(ticket(name)).track(Access.WRITE):
            clock.now += 1
    store.add(ticket("c"))
    store.at_work.most = 1
    for name in ("b", "a"):
        store.authorize(name, Access.READ)
    with pytest.raises(TooManyTransfers):
        store.authorize("c", Access.READ)


async def test_ticket_that_nobody_has_used_is_not_active_when_a_limit_is_set(store: TransferStore) -> None:
    for name in ("a", "b"):
        store.add(ticket(name))
    store.at_work.most = 1
    store.authorize("b", Access.READ)
    with pytest.raises(TooManyTransfers):
        store.authorize("a", Access.READ)


async def test_cancelled_transfer_gives_its_place_to_another_one(store: TransferStore, clock: Clock) -> None:
    store.at_work.most = 1
    for name in ("a", "b"):
        store.add(ticket(name))
    transfer = store.authorize("a", Access.READ)
    transfer.connections.add(object())
    clock.now += PAUSE
    with pytest.raises(TooManyTransfers):
        store.authorize("b", Access.READ)
    await store.remove("a", 1)
    store.authorize("b", Access.READ)
