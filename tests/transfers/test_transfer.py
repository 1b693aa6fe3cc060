# SPDX-License-Identifier: Apache-2.0
import asyncio
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from imageio_daemon.errors import (
    Canceled,
    Forbidden,
    InUse,
    OutOfRange,
    StorageError,
    TooManyConnections,
    TooManyTickets,
)
from imageio_daemon.lanes.lane import Lane
from imageio_daemon.lifecycle.watching import release_expired
from imageio_daemon.runtime import request_activity
from imageio_daemon.runtime.background import NoThread
from imageio_daemon.storage.backend import Backend
from imageio_daemon.storage.operation import Kind, Operation, Totals, ZeroMethod
from imageio_daemon.transfers.permission import Permission
from imageio_daemon.transfers.store import TransferStore
from imageio_daemon.transfers.ticket import Access, Ticket
from imageio_daemon.transfers.transfer import Transfer
from imageio_daemon.units import MiB
from tests.support.backends import FaultyBackend, MemoryBackend


class Clock:
    """Time that moves when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Opener:
    """Open one backend, count how often, fail or wait on demand."""

    def __init__(self) -> None:
        self.memory = MemoryBackend(bytes(100))
        self.backend = FaultyBackend(self.memory)
        self.opened = 0
        self.error: Exception | None = None
        self.request: request_activity.RequestActivity | None = None  # in whose context it was called
        self.gate = asyncio.Event()
        self.gate.set()
        self.images: dict[str, object] = {}  # by url

    async def identify(self, ticket: Ticket) -> object:
        return self.images.get(ticket.url)

    async def __call__(self, ticket: Ticket) -> Backend:
        self.opened += 1
        self.request = request_activity.current()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.backend  # type: ignore[return-value]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opener() -> Opener:
    return Opener()


@pytest.fixture
def store(clock: Clock, opener: Opener) -> TransferStore:
    return TransferStore(opener, opener.identify, most_tickets=3, most_connections=2, clock=clock)


def ticket(ticket_id: str = "secret", ops: tuple[Access, ...] = (Access.WRITE,), timeout: int = 300) -> Ticket:
    return Ticket(ticket_id=ticket_id, url="file:///disk", size=100, ops=ops, timeout=timeout, inactivity_timeout=60)


@pytest.fixture
def transfer(store: TransferStore) -> Transfer:
    return store.add(ticket())


async def test_unknown_ticket_is_forbidden(store: TransferStore) -> None:
    with pytest.raises(Forbidden):
        store.authorize("unknown", Access.READ)


async def test_operation_that_is_not_allowed_is_forbidden(store: TransferStore) -> None:
    store.add(ticket(ops=(Access.READ,)))
    with pytest.raises(Forbidden):
        store.authorize("secret", Access.WRITE)


async def test_expired_ticket_is_forbidden(store: TransferStore, transfer: Transfer, clock: Clock) -> None:
    clock.now += 300
    with pytest.raises(Forbidden):
        store.authorize("secret", Access.READ)


async def test_extended_ticket_lives_on(store: TransferStore, transfer: Transfer, clock: Clock) -> None:
    clock.now += 300
    transfer.permission.extend(10)
    assert store.authorize("secret", Access.READ) is transfer


async def test_completed_request_renews_the_ticket(store: TransferStore, transfer: Transfer, clock: Clock) -> None:
    with transfer.track(Access.WRITE):
        clock.now += 400
    assert store.authorize("secret", Access.READ) is transfer


async def test_completed_request_does_not_renew_a_ticket_that_was_ended(
    store: TransferStore, transfer: Transfer, clock: Clock
) -> None:
    with transfer.track(Access.WRITE):
        transfer.permission.extend(0)
        clock.now += 1
    with pytest.raises(Forbidden):
        store.authorize("secret", Access.READ)
    assert transfer.status()["expires"] == 1000


async def test_extended_ticket_is_renewed_again_after_it_was_ended(
    store: TransferStore, transfer: Transfer, clock: Clock
) -> None:
    transfer.permission.extend(0)
    transfer.permission.extend(10)
    with transfer.track(Access.WRITE):
        pass
    assert transfer.status()["expires"] == 1300


async def test_range_outside_of_the_ticket_tells_its_size(transfer: Transfer) -> None:
    with pytest.raises(OutOfRange) as e:
        transfer.ticket.require_range(50, 51)
    assert e.value.size == 100


async def test_more_connections_than_the_limit_are_refused(transfer: Transfer) -> None:
    transfer.connections.add("a")
    transfer.connections.add("b")
    with pytest.raises(TooManyConnections):
        transfer.connections.add("c")


async def test_connection_counts_once(transfer: Transfer) -> None:
    transfer.connections.add("a")
    transfer.connections.add("a")
    assert transfer.status()["connections"] == 1


async def test_connection_that_left_makes_room(transfer: Transfer) -> None:
    for name in ("a", "b"):
        transfer.connections.add(name)
    transfer.connections.remove("a")
    transfer.connections.add("c")
    assert transfer.status()["connections"] == 2


async def test_more_tickets_than_the_limit_are_refused(store: TransferStore) -> None:
    for name in ("a", "b", "c"):
        store.add(ticket(name))
    with pytest.raises(TooManyTickets):
        store.add(ticket("d"))


async def test_image_is_opened_once_for_all(transfer: Transfer, opener: Opener) -> None:
    opener.gate.clear()
    waiting = [asyncio.create_task(transfer.backend()) for _ in range(3)]
    await asyncio.sleep(0)
    opener.gate.set()
    backends = await asyncio.gather(*waiting)
    assert opener.opened == 1
    assert backends[0] is backends[1] is backends[2]


async def test_open_that_failed_is_tried_again(transfer: Transfer, opener: Opener) -> None:
    opener.error = StorageError(2, "open", "open")
    with pytest.raises(StorageError):
        await transfer.backend()
    opener.error = None
    await transfer.backend()
    assert opener.opened == 2


async def test_request_that_asks_again_gets_the_failure_and_the_next_one_tries(
    store: TransferStore, transfer: Transfer, opener: Opener
) -> None:
    opener.error = StorageError(2, "open", "open")
    request_activity.begin()
    for _ in range(2):
        with pytest.raises(StorageError):
            await transfer.backend()
    assert opener.opened == 1
    opener.error = None
    await store.add(ticket("other")).backend()
    request_activity.begin()
    await transfer.backend()


async def test_request_gets_the_image_that_another_one_has_opened_after_its_failure(
    transfer: Transfer, opener: Opener
) -> None:
    opener.error = StorageError(2, "open", "open")
    request = request_activity.begin()
    with pytest.raises(StorageError):
        await transfer.backend()
    opener.error = None
    request_activity.begin()
    opened = await transfer.backend()
    request_activity.begin(request)
    assert await transfer.backend() is opened


async def test_image_is_opened_outside_of_the_first_request(transfer: Transfer, opener: Opener) -> None:
    """What the backend begins then serves all requests."""
    request_activity.begin()
    await transfer.backend()
    assert opener.request is None


async def test_waiter_that_gives_up_does_not_stop_the_open(transfer: Transfer, opener: Opener) -> None:
    opener.gate.clear()
    waiting = [asyncio.create_task(transfer.backend()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    opener.gate.set()
    await waiting[1]
    assert opener.opened == 1


async def test_removed_ticket_has_let_go_of_its_image(store: TransferStore, transfer: Transfer, opener: Opener) -> None:
    await transfer.backend()
    await store.remove("secret", 60)
    assert opener.memory.closed
    assert store.get("secret") is None


async def test_removing_an_unknown_ticket_is_no_error(store: TransferStore) -> None:
    await store.remove("unknown", 60)


async def test_removal_waits_for_running_requests(store: TransferStore, transfer: Transfer) -> None:
    with transfer.track(Access.WRITE) as op:
        removing = asyncio.create_task(store.remove("secret", 60))
        await asyncio.sleep(0)
        assert op.canceled
        assert not removing.done()
    await removing
    assert store.get("secret") is None


async def test_removal_waits_for_storage_that_outlives_its_request(store: TransferStore, transfer: Transfer) -> None:
    with transfer.track(Access.WRITE) as op:
        op.retain()
    removing = asyncio.create_task(store.remove("secret", 60))
    await asyncio.sleep(0)
    assert not removing.done()
    op.release()
    await removing


async def test_removal_in_use_times_out_and_the_ticket_stays_cancelled(
    store: TransferStore, transfer: Transfer
) -> None:
    with transfer.track(Access.WRITE):
        with pytest.raises(InUse):
            await store.remove("secret", 0.001)
        assert transfer.status()["canceled"]
        assert store.get("secret") is transfer
    await store.remove("secret", 60)


async def test_removal_without_timeout_does_not_wait(store: TransferStore, transfer: Transfer) -> None:
    with transfer.track(Access.WRITE) as op:
        with pytest.raises(InUse):
            await store.remove("secret", 0)
        assert op.canceled
    await store.remove("secret", 60)


async def test_removal_without_timeout_does_not_hang_with_the_close(
    store: TransferStore, transfer: Transfer, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imageio_daemon.transfers.store.CLOSE_TIMEOUT", 0.001)
    closing = opener.backend.hold("close")
    await transfer.backend()
    with pytest.raises(InUse):
        await asyncio.wait_for(store.remove("secret", 0), 10)
    closing.release()
    await store.remove("secret", 60)


async def test_removal_ends_the_opening_of_the_image(store: TransferStore, transfer: Transfer, opener: Opener) -> None:
    opener.gate.clear()
    opening = asyncio.create_task(transfer.backend())
    await turns()
    await store.remove("secret", 60)
    with pytest.raises(Canceled):
        await opening


async def test_cancelled_transfer_starts_no_request(store: TransferStore, transfer: Transfer) -> None:
    await store.remove("secret", 60)
    with pytest.raises(Forbidden), transfer.track(Access.READ):
        pass
    with pytest.raises(Forbidden):
        transfer.permission.require(None)
    with pytest.raises(Canceled):
        await transfer.backend()


async def test_image_that_fails_to_close_is_let_go(store: TransferStore, transfer: Transfer, opener: Opener) -> None:
    await transfer.backend()
    opener.backend.fail("close", StorageError(5, "close", "close"))
    await store.remove("secret", 60)
    assert store.get("secret") is None


async def test_replacing_a_ticket_cancels_the_requests_of_the_old_one(store: TransferStore, transfer: Transfer) -> None:
    with transfer.track(Access.WRITE) as op:
        new = store.add(ticket())
        assert op.canceled
        assert store.authorize("secret", Access.WRITE) is new
    await store.close()


@pytest.fixture
async def unfinished(store: TransferStore, transfer: Transfer) -> Operation:
    """An operation of a replaced ticket that the storage has not let go of."""
    await transfer.backend()
    with transfer.track(Access.WRITE) as op:
        op.retain()
    return op


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_last_write_of_a_replaced_ticket_comes_before_the_first_of_the_new_one(
    store: TransferStore, unfinished: Operation, opener: Opener
) -> None:
    for _ in range(2):  # replaced once more before it was used
        new = store.add(ticket())
    opening = asyncio.create_task(new.backend())
    await turns()
    assert opener.opened == 1
    unfinished.release()
    await opening
    assert opener.opened == 2
    await store.close()


@pytest.fixture
def known_image(opener: Opener) -> None:
    """Let the backend say which image it is."""
    opener.memory.identity = (65024, 17)


def open_by_another_name(store: TransferStore) -> asyncio.Task[Backend]:
    return asyncio.create_task(store.add(replace(ticket(), url="file:///link")).backend())


async def test_new_ticket_waits_for_the_same_image_by_another_name(
    known_image: None, store: TransferStore, unfinished: Operation, opener: Opener
) -> None:
    await store.clear()
    opening = open_by_another_name(store)
    await turns()
    assert opener.opened == 2
    assert not opening.done()
    unfinished.release()
    await opening
    await store.close()


async def test_new_ticket_waits_until_the_same_image_by_another_name_is_closed(
    known_image: None, store: TransferStore, transfer: Transfer, opener: Opener
) -> None:
    await transfer.backend()
    held = opener.backend.hold("close")
    await store.clear()
    await held.reached.wait()
    opening = open_by_another_name(store)
    await turns()
    assert opener.opened == 2
    assert not opening.done()
    held.release()
    await opening
    await store.close()


async def test_removal_while_another_ticket_has_the_image_closes_it_and_waits_for_the_other(
    known_image: None, store: TransferStore, unfinished: Operation, opener: Opener
) -> None:
    await store.clear()
    opening = open_by_another_name(store)
    await turns()
    with pytest.raises(InUse):
        await store.remove("secret", 0.01)
    with pytest.raises(Canceled):
        await opening
    assert opener.memory.closed
    unfinished.release()
    await store.remove("secret", 60)


async def test_new_ticket_of_another_image_does_not_wait(store: TransferStore, unfinished: Operation) -> None:
    await store.add(replace(ticket(), url="file:///other")).backend()
    unfinished.release()
    await store.close()


async def test_removal_waits_for_the_requests_of_a_replaced_ticket(store: TransferStore, unfinished: Operation) -> None:
    store.add(ticket())
    for timeout in (0, 0.001):
        with pytest.raises(InUse):
            await store.remove("secret", timeout)
    unfinished.release()
    await store.remove("secret", 60)


async def require_in_use(store: TransferStore, ticket_id: str = "secret") -> None:
    """Fail unless the removal of a ticket waits, or does not wait, in vain."""
    for timeout in (0, 0.001):
        with pytest.raises(InUse):
            await store.remove(ticket_id, timeout)


async def test_removal_waits_for_the_requests_of_a_ticket_that_was_cleared(
    store: TransferStore, unfinished: Operation
) -> None:
    await store.clear()
    await require_in_use(store)
    unfinished.release()
    await store.remove("secret", 60)


async def test_removal_waits_for_the_requests_of_a_ticket_that_was_replaced_by_others_of_other_images(
    store: TransferStore, unfinished: Operation
) -> None:
    for name in ("one", "two"):
        store.add(replace(ticket(), url=f"file:///{name}"))
    await require_in_use(store)
    unfinished.release()
    await store.remove("secret", 60)


async def test_each_of_several_removals_waits(store: TransferStore, transfer: Transfer, unfinished: Operation) -> None:
    removing = [asyncio.create_task(store.remove("secret", 60)) for _ in range(3)]
    await turns()
    assert not any(task.done() for task in removing)
    unfinished.release()
    await asyncio.gather(*removing)
    assert store.get("secret") is None


async def test_removal_waits_for_another_removed_ticket_of_the_same_image_by_another_name(
    known_image: None, store: TransferStore, unfinished: Operation
) -> None:
    await store.add(replace(ticket("other"), url="file:///link")).backend()
    with pytest.raises(InUse):
        await store.remove("secret", 0)
    await require_in_use(store, "other")
    unfinished.release()
    await store.remove("other", 60)


async def test_removal_waits_for_the_same_image_by_another_name_when_its_own_was_never_open(
    known_image: None, store: TransferStore, unfinished: Operation, opener: Opener
) -> None:
    for name in ("link", "another"):
        store.add(replace(ticket(name), url=f"file:///{name}"))
    opener.images["file:///link"] = opener.memory.identity
    await store.clear()
    await store.remove("another", 60)
    with pytest.raises(InUse):
        await store.remove("link", 0.01)
    unfinished.release()
    await store.remove("link", 60)


async def test_removal_does_not_wait_for_a_living_ticket_of_the_same_image(
    known_image: None, store: TransferStore, transfer: Transfer
) -> None:
    other = store.add(replace(ticket("other"), url="file:///link"))
    await other.backend()
    with other.track(Access.WRITE):
        await transfer.backend()
        await store.remove("secret", 60)


async def test_transfers_that_have_ended_are_forgotten(
    known_image: None, store: TransferStore, unfinished: Operation
) -> None:
    for _ in range(2):
        store.add(replace(ticket(), url="file:///other"))
    await store.clear()
    assert len(store._canceled) == 3
    unfinished.release()
    await store.close()
    assert (len(store._canceled), store._canceled._tickets, store._canceled._users) == (0, {}, {})
    assert not store._canceled.any_identified


async def test_thousands_of_tickets_of_one_image_end_in_the_time_of_as_many_images(opener: Opener) -> None:
    async def end(*, images: int) -> float:
        store = TransferStore(opener, most_tickets=2000, most_connections=8)
        for i in range(2000):
            store.add(replace(ticket(f"ticket {i}"), url=f"file:///image {i % images}"))
        started = time.process_time()
        await store.close()
        return time.process_time() - started

    assert await end(images=1) < 3 * await end(images=2000) + 0.5


async def test_tickets_that_do_not_end_are_limited(store: TransferStore, unfinished: Operation) -> None:
    for _ in range(5):
        store.add(ticket())
    with pytest.raises(TooManyTickets, match="have not ended"):
        store.add(ticket())
    await store.clear()
    with pytest.raises(TooManyTickets, match="have not ended"):
        store.add(ticket("another"))
    unfinished.release()
    await store.close()
    store.add(ticket())


async def test_new_ticket_waits_for_the_requests_of_cleared_ones(
    store: TransferStore, unfinished: Operation, opener: Opener
) -> None:
    await store.clear()
    opening = asyncio.create_task(store.add(ticket("another")).backend())
    await turns()
    assert opener.opened == 1
    unfinished.release()
    await opening
    await store.close()


async def test_clear_removes_all_at_once_and_close_waits(store: TransferStore, opener: Opener) -> None:
    transfer = store.add(ticket())
    await transfer.backend()
    await store.clear()
    assert store.all() == []
    await store.close()
    assert opener.memory.closed


def test_status_tells_the_ticket_and_its_state(transfer_status: dict[str, object]) -> None:
    assert transfer_status == {
        "uuid": "secret",
        "url": "file:///disk",
        "size": 100,
        "ops": ["write"],
        "timeout": 300,
        "inactivity_timeout": 60,
        "expires": 1300,
        "expired": False,
        "active": False,
        "canceled": False,
        "connections": 0,
        "clients": [],
        "idle_time": 0,
        "storage_wait": 0,
        "bytes_per_second": 0,
        "limited": 0.0,
        "read": 0,
        "written": 0,
        "zeroed": {},
        "sparse": False,
        "dirty": False,
        "transferred": 0,
        "transfer": "f13af9c4c25d",
        "transfer_id": "f13af9c4c25d",
    }


@pytest.fixture
def transfer_status(transfer: Transfer) -> dict[str, object]:
    return transfer.status()


async def test_status_tells_clients_oldest_first(transfer: Transfer, clock: Clock) -> None:
    transfer.connections.add("a", service="remote", client="[::1]:1")
    clock.now += 5
    transfer.connections.add("b", service="local", client="unix")
    transfer.connections.add("a", service="remote", client="[::1]:1")
    assert transfer.status()["clients"] == [
        {"service": "remote", "client": "[::1]:1", "seconds": 5},
        {"service": "local", "client": "unix", "seconds": 0},
    ]


async def test_idle_time_is_since_the_last_request(transfer: Transfer, clock: Clock) -> None:
    with transfer.track(Access.WRITE):
        clock.now += 5
        assert transfer.status()["idle_time"] == 0
        assert transfer.status()["active"]
    clock.now += 7
    assert transfer.status()["idle_time"] == 7


async def test_storage_that_owes_an_answer_is_seen(transfer: Transfer, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 50.0
    monkeypatch.setattr("imageio_daemon.storage.operation.time.monotonic", lambda: now)
    with transfer.track(Access.WRITE) as op:
        op.retain()
        now += 90
        assert transfer.status()["storage_wait"] == 90
        op.release()
        assert transfer.status()["storage_wait"] == 0


async def test_slowest_operation_in_storage_is_told(transfer: Transfer, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 50.0
    monkeypatch.setattr("imageio_daemon.storage.operation.time.monotonic", lambda: now)
    with transfer.track(Access.WRITE, 10, 20, kind=Kind.ZERO) as slow, transfer.track(Access.READ, 0, 5) as quick:
        assert "slowest_operation" not in transfer.status()
        slow.retain()
        now += 1.5
        quick.retain()
        now += 0.25
        told = {"seconds": 1.75, "kind": "zero", "offset": 10, "length": 20}
        assert transfer.status()["slowest_operation"] == told
        slow.release()
        told = {"seconds": 0.25, "kind": "read", "offset": 0, "length": 5}
        assert transfer.status()["slowest_operation"] == told
        quick.release()


async def test_zeroed_bytes_are_told_by_method(transfer: Transfer, opener: Opener) -> None:
    transfer.traffic.zeroed(ZeroMethod.PUNCH_HOLE, 10)
    lane = IdleLane()
    lane.did = Totals(zeroed=Counter({ZeroMethod.PUNCH_HOLE: 5, ZeroMethod.WRITE: 7}))
    transfer.add_lane(cast(Lane, lane), await transfer.backend(), changes=True)
    expected = {"punch_hole": 15, "write": 7}
    assert transfer.status()["zeroed"] == expected
    transfer.remove_lane(cast(Lane, lane))
    assert transfer.status()["zeroed"] == expected


async def test_rate_counts_what_is_read_and_written(transfer: Transfer, opener: Opener, clock: Clock) -> None:
    with transfer.track(Access.WRITE, 0, 50) as op:
        op.advance(30)
        clock.now += 1
        transfer.sample()
        assert transfer.status()["bytes_per_second"] == 30
        op.advance(20)
    lane = IdleLane()
    lane.did = Totals(read=30, written=40)
    transfer.add_lane(cast(Lane, lane), await transfer.backend(), changes=True)
    clock.now += 1
    assert transfer.status()["bytes_per_second"] == 60
    transfer.remove_lane(cast(Lane, lane))
    assert transfer.status()["bytes_per_second"] == 60
    for _ in range(6):
        clock.now += 2
        transfer.sample()
    assert transfer.status()["bytes_per_second"] == 0


async def test_rate_in_the_log_does_not_count_pauses(
    store: TransferStore, transfer: Transfer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for _ in range(2):
        clock.now += 60
        transfer.sample()
        with transfer.track(Access.WRITE, 0, 10 * MiB) as op:
            op.advance(10 * MiB)
            clock.now += 5
            transfer.sample()
    await store.remove("secret", 1)
    (line,) = [record for record in caplog.records if record.message == "transfer ended"]
    told = vars(line)["fields"]
    assert (told["seconds"], told["paused"], told["mib_per_second"]) == (130, 120, 2.0)


@pytest.mark.parametrize(("kind", "rate"), [(Kind.CHECKSUM, 50), (Kind.ZERO, 0), (Kind.EXTENTS, 0)])
async def test_rate_counts_bytes_of_the_image_only(transfer: Transfer, clock: Clock, kind: Kind, rate: int) -> None:
    with transfer.track(None, kind=kind) as op:
        op.advance(50)
    clock.now += 1
    assert transfer.status()["bytes_per_second"] == rate


async def test_transferred_is_the_union_with_what_runs(transfer: Transfer) -> None:
    with transfer.track(Access.WRITE, 0, 50) as op:
        op.advance(50)
    with transfer.track(Access.WRITE, 25, 75) as op:
        op.advance(35)
        assert transfer.status()["transferred"] == 60


async def test_reads_on_a_write_ticket_are_no_progress(transfer: Transfer) -> None:
    with transfer.track(Access.READ, 0, 50) as op:
        op.advance(50)
        assert transfer.status()["transferred"] == 0
    assert transfer.status()["transferred"] == 0


async def test_ticket_with_both_operations_has_no_progress(store: TransferStore) -> None:
    assert "transferred" not in store.add(ticket(ops=tuple(Access))).status()


async def test_transfer_id_and_file_name_are_told_when_set(store: TransferStore) -> None:
    made = Ticket.from_json(
        {
            "uuid": "a",
            "url": "file:///d",
            "size": 1,
            "ops": [],
            "timeout": 1,
            "transfer_id": "t1",
            "filename": "disk.img",
        },
        inactivity_timeout=60,
    )
    status = store.add(made).status()
    assert (status["transfer_id"], status["filename"]) == ("t1", "disk.img")


async def test_repr_hides_the_ticket_id(transfer: Transfer) -> None:
    assert "secret" not in repr(transfer)


async def test_connections_are_told_that_the_transfer_is_cancelled(transfer: Transfer) -> None:
    told: list[str] = []
    transfer.connections.add("first", lambda: told.append("first"))
    transfer.connections.add("gone", lambda: told.append("gone"))
    transfer.connections.remove("gone")
    transfer.connections.add("silent")
    transfer.cancel()
    assert told == ["first"]
    with pytest.raises(Forbidden):
        transfer.connections.add("late")


async def test_bug_that_keeps_a_transfer_from_its_end_is_told(
    transfer: Transfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise ValueError("a bug")

    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.set_result(str(context["exception"])))
    monkeypatch.setattr(transfer._image, "close", fail)
    transfer.cancel()
    async with asyncio.timeout(10):
        assert await told == "a bug"


# Expired and not used


@pytest.fixture
async def expired(transfer: Transfer, opener: Opener, clock: Clock) -> Transfer:
    """A transfer whose image is open, and whose ticket has expired."""
    await transfer.backend()
    clock.now += 301
    return transfer


async def released(transfer: Transfer) -> None:
    """Let go of the image if that is possible, and wait until it is closed."""
    transfer.release_expired()
    while transfer.end.in_use:
        await asyncio.sleep(0)


async def test_expired_transfer_lets_go_of_its_image_after_a_flush(
    expired: Transfer, store: TransferStore, opener: Opener
) -> None:
    release_expired(store)
    while expired.end.in_use:
        await asyncio.sleep(0)
    assert opener.backend.calls == ["flush", "close"]
    assert expired.opened is None


async def test_living_transfer_keeps_its_image(expired: Transfer, opener: Opener) -> None:
    expired.permission.extend(10)
    await released(expired)
    assert not opener.memory.closed


async def test_connections_keep_no_image_and_those_of_one_image_end(expired: Transfer, opener: Opener) -> None:
    ended: list[str] = []
    expired.connections.add("for any image")
    expired.connections.add("for this one", lambda: ended.append("for this one"))
    await released(expired)
    assert opener.memory.closed
    assert ended == ["for this one"]
    assert expired.status()["connections"] == 2


class IdleLane:
    """A connection that C serves; no request runs."""

    running = 0
    done = 0
    did = Totals()
    storage_wait = 0.0
    waiting = None
    stats = SimpleNamespace(requests=0)

    def totals(self) -> Totals:
        return self.did

    def counted(self) -> list[tuple[int, int]]:
        return []


async def test_idle_lane_is_told_to_end_and_waited_for(expired: Transfer, opener: Opener) -> None:
    lane = cast(Lane, IdleLane())
    assert expired.opened is not None
    ended: list[str] = []
    expired.connections.add("connection", lambda: ended.append("connection"))
    expired.add_lane(lane, expired.opened, changes=True)
    await released(expired)
    assert ended == ["connection"]
    assert not opener.memory.closed
    expired.remove_lane(lane)
    await released(expired)
    assert opener.memory.closed


async def test_lane_with_a_request_keeps_the_image_and_is_left_alone(expired: Transfer) -> None:
    lane = IdleLane()
    lane.running = 1
    assert expired.opened is not None
    ended: list[str] = []
    expired.connections.add("connection", lambda: ended.append("connection"))
    expired.add_lane(cast(Lane, lane), expired.opened, changes=True)
    expired.release_expired()
    assert expired.opened is not None
    assert not ended


async def test_request_that_ends_during_the_check_for_expiry_renews_the_ticket(
    expired: Transfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    expired.connections.add(object(), lambda: ended.append("nbd"))
    requests = [ExitStack()]
    requests[0].enter_context(expired.track(Access.READ))

    def is_expired(permission: Permission) -> bool:
        found = permission._clock() >= permission.lease.expires
        while requests:
            requests.pop().close()  # on another loop
        return found

    monkeypatch.setattr(Permission, "expired", property(is_expired))
    expired.release_expired()
    assert expired.opened is not None
    assert not ended


async def test_nothing_begins_on_an_image_that_was_let_go_of(expired: Transfer, opener: Opener) -> None:
    before = expired.opened
    assert before is not None
    held = opener.backend.hold("close")
    expired.release_expired()
    await held.reached.wait()
    expired.permission.extend(10)
    with pytest.raises(Forbidden):
        expired.add_lane(cast(Lane, IdleLane()), before, changes=True)
    held.release()
    expired.add_lane(cast(Lane, IdleLane()), await expired.backend(), changes=True)


async def test_image_that_was_flushed_is_closed_at_once(expired: Transfer, opener: Opener) -> None:
    opener.memory.unflushed = False
    await released(expired)
    assert opener.backend.calls == ["close"]


async def test_image_that_cannot_be_flushed_at_all_is_closed_and_can_be_opened_again(
    expired: Transfer, store: TransferStore, opener: Opener
) -> None:
    opener.memory.can_flush = False
    await released(expired)
    assert opener.backend.calls == ["close"]
    expired.permission.extend(10)
    await expired.backend()
    assert opener.opened == 2
    await store.remove("secret", 60)


async def test_running_operation_keeps_the_image(expired: Transfer, opener: Opener) -> None:
    with expired.track(None):
        expired.release_expired()
        assert expired.opened is not None
    assert not opener.memory.closed


async def test_revived_transfer_opens_its_image_again(expired: Transfer, opener: Opener) -> None:
    await released(expired)
    expired.permission.extend(10)
    opener.memory.closed = False
    await expired.backend()
    assert opener.opened == 2


async def test_who_revives_a_transfer_while_its_image_is_closed_gets_it_opened_again(
    expired: Transfer, opener: Opener
) -> None:
    held = opener.backend.hold("close")
    expired.release_expired()
    await held.reached.wait()
    expired.permission.extend(10)
    waiting = asyncio.create_task(expired.backend())
    await asyncio.sleep(0)
    held.release()
    await waiting
    assert opener.opened == 2


async def test_removal_ends_the_opening_of_a_revived_transfer(
    expired: Transfer, store: TransferStore, opener: Opener
) -> None:
    held = opener.backend.hold("close")
    expired.release_expired()
    await held.reached.wait()
    expired.permission.extend(10)
    waiting = asyncio.create_task(expired.backend())
    opener.gate.clear()
    held.release()
    while opener.opened < 2:
        await asyncio.sleep(0)
    await store.remove("secret", 10)
    with pytest.raises(Canceled):
        await waiting


async def test_removed_transfer_is_not_opened_again(expired: Transfer, store: TransferStore, opener: Opener) -> None:
    held = opener.backend.hold("close")
    expired.release_expired()
    await held.reached.wait()
    expired.permission.extend(10)
    with pytest.raises(InUse):
        await store.remove("secret", 0.01)
    held.release()
    await store.remove("secret", 10)
    assert opener.opened == 1


async def test_who_waits_for_an_expired_transfer_is_refused(expired: Transfer, opener: Opener) -> None:
    held = opener.backend.hold("close")
    expired.release_expired()
    waiting = asyncio.create_task(expired.backend())
    await held.reached.wait()
    held.release()
    with pytest.raises(Forbidden):
        await waiting


@pytest.mark.parametrize("failure", [StorageError(5, "flush", "fdatasync"), ValueError("a bug")])
async def test_image_that_could_not_be_flushed_is_closed_and_never_opened_again(
    expired: Transfer, store: TransferStore, opener: Opener, failure: Exception
) -> None:
    opener.backend.fail("flush", failure)
    await released(expired)
    assert opener.memory.closed
    expired.permission.extend(10)
    for _ in range(2):
        with pytest.raises(StorageError):
            await expired.backend()
    assert opener.opened == 1
    await store.remove("secret", 60)


async def test_image_is_flushed_before_its_close_when_there_is_a_thread_again(
    expired: Transfer, opener: Opener
) -> None:
    opener.backend.fail("flush", NoThread())
    expired.release_expired()
    while not opener.backend.calls:
        await asyncio.sleep(0)
    opener.backend.mend("flush")
    await released(expired)
    assert opener.memory.flushes == 1
    assert opener.backend.calls == ["flush", "flush", "close"]
    expired.permission.extend(10)
    await expired.backend()


async def test_transfer_whose_image_fails_unexpectedly_to_be_closed_ends(
    transfer: Transfer, store: TransferStore, opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    await transfer.backend()
    opener.backend.fail("close", ValueError("a bug"))
    await store.remove("secret", 60)
    assert transfer.end.has_ended
    assert "ValueError: a bug" in caplog.text


async def test_transfer_that_is_removed_while_its_image_is_closed_ends_after_that(
    expired: Transfer, store: TransferStore, opener: Opener
) -> None:
    held = opener.backend.hold("close")
    expired.release_expired()
    await held.reached.wait()
    with pytest.raises(InUse):
        await store.remove("secret", 0.01)
    held.release()
    await store.remove("secret", 10)
    assert opener.backend.calls == ["flush", "close"]
