# SPDX-License-Identifier: Apache-2.0
"""What managers are told of transfers, and that they are told once."""

from typing import Any

import pytest

from imageio_daemon.storage.running import Kind
from imageio_daemon.transfers.notices import FAILED_INTERVAL, STALL, Notices
from imageio_daemon.transfers.store import TransferStore
from imageio_daemon.transfers.ticket import Access
from imageio_daemon.transfers.transfer import Transfer
from tests.transfers.test_transfer import Clock, Opener, ticket


class Told(list[dict[str, Any]]):
    """The notices, in order."""

    def __call__(self, event: str, **details: object) -> None:
        self.append({"event": event, **details})

    @property
    def events(self) -> list[str]:
        return [notice["event"] for notice in self]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def notices(told: Told, clock: Clock) -> Notices:
    return Notices(told, clock, wanted=True)


@pytest.fixture
def store(notices: Notices, clock: Clock) -> TransferStore:
    opener = Opener()
    return TransferStore(opener, opener.identify, most_tickets=3, most_connections=2, clock=clock, notices=notices)


@pytest.fixture
def transfer(store: TransferStore) -> Transfer:
    return store.add(ticket(timeout=10_000))


def write(transfer: Transfer, length: int) -> None:
    with transfer.track(Access.WRITE, 0, length, kind=Kind.WRITE) as op:
        op.advance(length)


def test_transfer_that_moves_is_not_told(transfer: Transfer, notices: Notices, clock: Clock, told: Told) -> None:
    for _ in range(10):
        write(transfer, 7)
        notices.look()
        clock.now += STALL - 1
    assert told == []


def test_transfer_that_has_not_begun_is_not_told(
    transfer: Transfer, notices: Notices, clock: Clock, told: Told
) -> None:
    clock.now += 10 * STALL
    notices.look()
    assert told == []
    assert transfer.running == 0


def test_stall_is_told_once_and_again_after_something_has_moved(
    transfer: Transfer, notices: Notices, clock: Clock, told: Told
) -> None:
    transfer.connections.add("a", service="remote", client="[::1]:1")
    for _ in range(2):
        write(transfer, 7)
        for _ in range(5):
            notices.look()
            clock.now += STALL
    assert told.events == ["transfer stalled", "transfer stalled"]
    assert told[1] == {
        "event": "transfer stalled",
        "transfer": transfer.ticket.log_name,
        "url": "file:///disk",
        "size": 100,
        "ops": "write",
        "read": 0,
        "written": 14,
        "zeroed": 0,
        "connections": 1,
        "storage_wait": 0,
    }


def test_transfer_whose_clients_have_left_is_idle(
    transfer: Transfer, notices: Notices, clock: Clock, told: Told
) -> None:
    write(transfer, 7)
    notices.look()
    clock.now += STALL
    notices.look()
    assert told.events == ["transfer idle"]


def test_expiry_is_told_once_and_again_after_an_extension(
    transfer: Transfer, notices: Notices, clock: Clock, told: Told
) -> None:
    for _ in range(2):
        transfer.permission.extend(5)
        notices.look()
        clock.now += 6
        notices.look()
        notices.look()
    assert told.events == ["ticket expired"] * 2


def test_failures_of_storage_are_told_with_their_number_at_most_once_a_minute(
    transfer: Transfer, notices: Notices, clock: Clock, told: Told
) -> None:
    for _ in range(3):
        transfer.failed(Kind.WRITE)
        notices.look()
    clock.now += FAILED_INTERVAL
    notices.look()
    clock.now += FAILED_INTERVAL
    notices.look()
    assert [(notice["event"], notice["failures"]) for notice in told] == [("storage failed", 1), ("storage failed", 2)]


def test_finalized_image_is_told_once(transfer: Transfer, notices: Notices, told: Told) -> None:
    transfer.permission.seal.close()
    notices.look()
    notices.look()
    assert told.events == ["transfer finalized"]


async def test_end_is_told_and_nothing_after_it(
    transfer: Transfer, store: TransferStore, notices: Notices, clock: Clock, told: Told
) -> None:
    write(transfer, 7)
    await store.remove("secret", 1)
    clock.now += 10 * STALL
    notices.look()
    assert told.events == ["transfer ended"]
    assert told[0]["written"] == 7


async def test_transfer_that_goes_on_in_the_next_process_has_not_ended(
    transfer: Transfer, store: TransferStore, told: Told
) -> None:
    assert not transfer.goes_on
    await store.close()
    assert told == []


def test_nothing_is_followed_for_nobody(clock: Clock, told: Told) -> None:
    opener = Opener()
    notices = Notices(told, clock, wanted=False)
    store = TransferStore(opener, most_tickets=3, most_connections=2, clock=clock, notices=notices)
    store.add(ticket(timeout=1))
    clock.now += 5
    notices.look()
    assert told == []
