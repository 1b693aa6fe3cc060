# SPDX-License-Identifier: Apache-2.0
"""The store keeps tickets in the state directory: a later process has those that are valid, and no other."""

import asyncio
import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from imageio_daemon.errors import InvalidRequest, StorageError, Unavailable
from imageio_daemon.runtime import state
from imageio_daemon.runtime.file_writer import Done, FileWriter
from imageio_daemon.storage.backend import Backend
from imageio_daemon.transfers import kept_tickets
from imageio_daemon.transfers.kept_ticket import Clocks, KeptTicket, file_name
from imageio_daemon.transfers.kept_tickets import KeptTickets
from imageio_daemon.transfers.store import TransferStore
from imageio_daemon.transfers.ticket import Access, Ticket
from imageio_daemon.transfers.transfer import Transfer
from tests.support.backends import MemoryBackend
from tests.support.polling import eventually

#: Seconds that nothing here takes.
SOON = 20.0


async def open_backend(_: Ticket) -> Backend:
    return MemoryBackend(bytes(100))


def ticket(ticket_id: str = "secret", timeout: int = 300) -> Ticket:
    ops = (Access.WRITE,)
    return Ticket(ticket_id=ticket_id, url="file:///disk", size=100, ops=ops, timeout=timeout, inactivity_timeout=60)


class Processes:
    """Processes on one state directory, one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tickets = path / "tickets"
        self.shift = 0.0  # seconds by which the clock of the store is ahead
        self._ends = ExitStack()

    def start(self, *, most_tickets: int = 10, keep_tickets: bool = True) -> TransferStore:
        """Start the next one: the last one was killed, unless it was stopped."""
        self.kill()
        opened = state.open_state(str(self.path))
        assert opened is not None
        self._ends.callback(opened.close)
        store = TransferStore(
            open_backend,
            most_tickets=most_tickets,
            most_connections=2,
            state=opened,
            keep_tickets=keep_tickets,
            clock=lambda: time.monotonic() + self.shift,
        )
        self._ends.callback(store.kept_tickets.close, SOON)
        store.restore()
        return store

    def kill(self) -> None:
        """End the last one without its end: what it has asked for is on the disk."""
        self._ends.close()

    def files(self) -> list[str]:
        return os.listdir(self.tickets)

    def remaining(self, ticket_id: str = "secret") -> float:
        """Return what the file of a ticket tells of its life, in seconds."""
        data = (self.tickets / file_name(ticket_id)).read_bytes()
        return KeptTicket.decode(data, Clocks.read()).remaining


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    assert state.make_directory(str(tmp_path / "state"))
    made = Processes(tmp_path / "state")
    yield made
    made.kill()


@pytest.fixture
def store(processes: Processes) -> TransferStore:
    return processes.start()


def found(store: TransferStore) -> list[Ticket]:
    return [transfer.ticket for transfer in store.all()]


def until_kept(processes: Processes, store: TransferStore, seconds: float) -> None:
    """Wait until the file of the ticket tells at least this life; the keeper has a thread."""
    store.kept_tickets.renew()
    eventually(lambda: processes.remaining() > seconds, "the file is written")


async def test_installed_ticket_is_there_after_a_crash(processes: Processes, store: TransferStore) -> None:
    await store.install(ticket())
    restored = processes.start().get("secret")
    assert restored is not None
    assert restored.ticket == ticket()
    assert 200 < restored.permission.lease.expires - time.monotonic() <= 300


async def test_ticket_is_there_after_each_of_several_restarts(processes: Processes, store: TransferStore) -> None:
    await store.install(ticket())
    for _ in range(3):
        store = processes.start()
    assert found(store) == [ticket()]


async def test_added_ticket_is_not_kept(processes: Processes, store: TransferStore) -> None:
    transfer = store.add(ticket())
    store.kept_tickets.renew()
    assert not await store.keep(transfer)
    assert found(processes.start()) == []


async def test_added_ticket_replaces_a_kept_one(processes: Processes, store: TransferStore) -> None:
    await store.install(ticket())
    store.add(ticket())
    assert found(processes.start()) == []


async def test_files_are_private(processes: Processes, store: TransferStore) -> None:
    await store.install(ticket())
    (name,) = processes.files()
    assert (processes.tickets / name).stat().st_mode & 0o777 == 0o600
    assert "secret" not in name


async def test_replaced_ticket_does_not_come_back(processes: Processes, store: TransferStore) -> None:
    first = await store.install(ticket(timeout=1000))
    first.kept_state = {"old": True}
    await store.keep(first)
    await store.install(ticket(timeout=10))
    assert not await store.keep(first)
    restored = processes.start().get("secret")
    assert restored is not None
    assert (restored.ticket.timeout, restored.kept_state) == (10, {})


async def test_removed_ticket_does_not_come_back(processes: Processes, store: TransferStore) -> None:
    await store.install(ticket())
    await store.remove("secret", 1)
    assert processes.files() == []
    assert found(processes.start()) == []


async def test_removed_ticket_is_not_kept_by_a_late_request(processes: Processes, store: TransferStore) -> None:
    transfer = await store.install(ticket())
    await store.remove("secret", 1)
    assert not await store.keep(transfer)
    store.kept_tickets.renew()
    assert processes.files() == []


async def test_ticket_that_is_removed_while_it_is_used_does_not_come_back(
    processes: Processes, store: TransferStore
) -> None:
    transfer = await store.install(ticket())
    with transfer.track(Access.WRITE):
        removal = asyncio.create_task(store.remove("secret", SOON))
        while processes.files():  # before the request has ended
            await asyncio.sleep(0)
    await removal
    assert found(processes.start()) == []


async def test_cleared_tickets_do_not_come_back(processes: Processes, store: TransferStore) -> None:
    for ticket_id in "abc":
        await store.install(ticket(ticket_id))
    await store.clear()
    assert processes.files() == []


@pytest.mark.parametrize("all_of_them", [False, True], ids=["remove", "clear"])
async def test_ticket_that_is_installed_during_the_removal_of_another_is_kept(
    processes: Processes, store: TransferStore, all_of_them: bool
) -> None:
    transfer = await store.install(ticket())

    installing: list[asyncio.Task[Transfer]] = []

    def install_another() -> None:
        installing.append(asyncio.create_task(store.install(ticket(timeout=1000))))

    transfer.connections.add("connection", install_another)
    await (store.clear() if all_of_them else store.remove("secret", SOON))
    await installing[0]
    assert processes.remaining() > 300
    assert found(store) == [ticket(timeout=1000)]


async def test_ticket_that_has_expired_is_forgotten(processes: Processes, store: TransferStore) -> None:
    await store.install(ticket())
    processes.shift = 300
    store.kept_tickets.renew()
    eventually(lambda: processes.files() == [], "its file is removed")


async def test_ticket_that_expires_while_no_process_runs_does_not_come_back(
    processes: Processes, store: TransferStore
) -> None:
    await store.install(ticket(timeout=0))
    assert found(processes.start()) == []
    processes.kill()
    assert processes.files() == []


async def test_life_of_tickets_goes_on_while_they_are_read(
    processes: Processes, store: TransferStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ticket_id in "abc":
        await store.install(ticket(ticket_id))
    boottime = Clocks.read().boottime

    def read_slowly(directory: int, name: str, most: int) -> bytes:
        processes.shift += 120
        return state.read_file(directory, name, most)

    def read_clocks() -> Clocks:
        return Clocks.read()._replace(boottime=boottime + processes.shift)

    monkeypatch.setattr(kept_tickets, "read_file", read_slowly)
    monkeypatch.setattr(kept_tickets, "Clocks", SimpleNamespace(read=read_clocks))
    restored = processes.start().all()
    assert len(restored) == 2
    first, second = (transfer.permission.lease.expires for transfer in restored)
    assert abs(first - second) < 1


async def test_ticket_that_is_ended_by_hand_is_forgotten_at_once(processes: Processes, store: TransferStore) -> None:
    transfer = await store.install(ticket())
    transfer.permission.extend(0)
    await store.keep(transfer)
    assert processes.files() == []


async def test_extension_is_kept(processes: Processes, store: TransferStore) -> None:
    transfer = await store.install(ticket())
    transfer.permission.extend(5000)
    assert await store.keep(transfer)
    assert processes.remaining() > 4000


async def test_ticket_that_is_revived_is_kept_again(processes: Processes, store: TransferStore) -> None:
    transfer = await store.install(ticket())
    for timeout in (0, 300):
        transfer.permission.extend(timeout)
        await store.keep(transfer)
    assert processes.remaining() > 200


async def test_restored_ticket_is_renewed_by_its_own_timeout(processes: Processes, store: TransferStore) -> None:
    transfer = await store.install(ticket())
    transfer.permission.extend(10)
    await store.keep(transfer)
    restored = processes.start().get("secret")
    assert restored is not None
    with restored.track(Access.WRITE):
        pass
    assert restored.permission.lease.expires - time.monotonic() > 200


def use(transfer: Transfer) -> None:
    with transfer.track(Access.WRITE):
        pass


async def test_renewal_is_kept_when_it_is_a_part_of_the_timeout(processes: Processes, store: TransferStore) -> None:
    transfer = await store.install(ticket())
    processes.shift = 150
    use(transfer)
    until_kept(processes, store, 200)


async def test_renewals_of_all_are_kept_though_there_are_more_than_can_be_written_at_a_time(
    processes: Processes, store: TransferStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_tickets, "MOST_RENEWED", 1)
    bring, chosen = KeptTickets._bring_in_step, list[Transfer]()

    def noted(kept: KeptTickets, files: FileWriter, transfer: Transfer, *, renews: bool = False) -> Done:
        chosen.extend([transfer] * renews)
        return bring(kept, files, transfer, renews=renews)

    def is_renewed(number: int) -> bool:
        store.kept_tickets.renew()  # no effect while the one before is being written
        return len(chosen) == number

    monkeypatch.setattr(KeptTickets, "_bring_in_step", noted)
    transfers = [await store.install(ticket(name)) for name in ("one", "two", "three")]
    for number in range(1, 4):
        processes.shift += 100
        for transfer in transfers:
            use(transfer)
        eventually(partial(is_renewed, number), "one is renewed")
    assert set(chosen) == set(transfers)


async def test_small_renewal_is_kept_at_the_end_only(processes: Processes, store: TransferStore) -> None:
    transfer = await store.install(ticket())
    before = (processes.tickets / file_name("secret")).read_bytes()
    processes.shift = 10
    use(transfer)
    store.kept_tickets.renew()
    await store.install(ticket("other"))  # a wish after all that there are
    assert (processes.tickets / file_name("secret")).read_bytes() == before
    await store.close()
    store.kept_tickets.close(SOON)
    assert (processes.tickets / file_name("secret")).read_bytes() != before


@pytest.mark.parametrize("stops", [False, True], ids=["crash", "stop"])
async def test_ticket_that_expires_during_a_request_is_kept_as_if_the_request_ended(
    processes: Processes, store: TransferStore, stops: bool
) -> None:
    transfer = await store.install(ticket())
    with transfer.track(Access.WRITE):
        for _ in range(10):
            processes.shift += 100
            store.kept_tickets.renew()
        assert not transfer.permission.valid
        if stops:
            store.interrupt()
        (kept_one,) = processes.start().all()
    assert 100 < kept_one.permission.lease.expires - time.monotonic() - processes.shift <= 300


async def test_ticket_that_is_ended_by_hand_during_a_request_is_forgotten(
    processes: Processes, store: TransferStore
) -> None:
    transfer = await store.install(ticket())
    with transfer.track(Access.WRITE):
        transfer.permission.extend(0)
        await store.keep(transfer)
        store.interrupt()
        assert found(processes.start()) == []


async def test_stop_keeps_all_tickets(processes: Processes, store: TransferStore) -> None:
    await store.install(ticket())
    await store.close()
    assert found(processes.start()) == [ticket()]


# The state of a ticket


async def test_state_is_kept_with_its_ticket(processes: Processes, store: TransferStore) -> None:
    transfer = await store.install(ticket())
    transfer.kept_state = {"finalized": {"checksum": "abc"}}
    assert await store.keep(transfer)
    restored = processes.start().get("secret")
    assert restored is not None
    assert restored.kept_state == {"finalized": {"checksum": "abc"}}


async def test_state_that_is_too_large_is_refused(store: TransferStore) -> None:
    transfer = await store.install(ticket())
    transfer.kept_state = {"a": "x" * 300_000}
    with pytest.raises(InvalidRequest):
        await store.keep(transfer)


# What the directory holds


def plant(processes: Processes, name: str, data: bytes) -> None:
    processes.tickets.mkdir(mode=0o700, exist_ok=True)
    (processes.tickets / name).write_bytes(data)


def test_damaged_files_are_dropped_with_one_line(processes: Processes, caplog: pytest.LogCaptureFixture) -> None:
    good = KeptTicket(ticket(), 100.0, {}).encode(Clocks.read())
    plant(processes, file_name("secret"), good)
    plant(processes, file_name("other"), good)
    plant(processes, "a" * 64, b"")
    plant(processes, "b" * 64, bytes(10_000_000))
    plant(processes, "backup.tar", b"x")
    (processes.tickets / ("c" * 64)).symlink_to("/etc/passwd")
    os.mkfifo(processes.tickets / ("d" * 64))
    assert found(processes.start()) == [ticket()]
    (message,) = [line for line in caplog.messages if "damaged" in line]
    assert caplog.records[caplog.messages.index(message)].__dict__["fields"]["count"] == 6
    processes.kill()
    assert processes.files() == [file_name("secret")]


async def test_more_tickets_than_there_may_be_are_dropped(
    processes: Processes, store: TransferStore, caplog: pytest.LogCaptureFixture
) -> None:
    for ticket_id in "abc":
        await store.install(ticket(ticket_id))
    assert len(processes.start(most_tickets=2).all()) == 2
    assert "there are too many" in caplog.text
    processes.kill()
    assert len(processes.files()) == 2


async def test_tickets_that_are_not_to_be_kept_are_removed(processes: Processes, store: TransferStore) -> None:
    await store.install(ticket())
    other = processes.start(keep_tickets=False)
    assert found(other) == []
    await other.install(ticket())
    processes.kill()
    assert processes.files() == []


def test_directory_that_cannot_be_used_is_logged(processes: Processes, caplog: pytest.LogCaptureFixture) -> None:
    processes.tickets.write_bytes(b"")
    processes.start()
    assert "tickets are not kept" in caplog.text


# A disk that fails


class Disk:
    """Fail system calls of the keeper."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def is_full(self) -> None:
        def write_file(directory: int, name: str, data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        self._monkeypatch.setattr("imageio_daemon.runtime.file_writer.write_file", write_file)

    def is_broken(self) -> None:
        def unlink(name: str, *, dir_fd: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        self.is_full()
        self._monkeypatch.setattr(os, "unlink", unlink)

    def hangs_until_told(self) -> threading.Event:
        told = threading.Event()

        def write_file(*_: object) -> None:
            told.wait(SOON)
            raise OSError(errno.ENOSPC, "No space left on device")

        self._monkeypatch.setattr("imageio_daemon.runtime.file_writer.write_file", write_file)
        return told

    def hangs(self) -> None:
        self._monkeypatch.setattr(kept_tickets, "KEEP_TIMEOUT", 0.0)

    def works(self) -> None:
        self._monkeypatch.undo()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


async def test_ticket_is_served_though_the_disk_is_full(
    processes: Processes, store: TransferStore, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.is_full()
    for ticket_id in "abc":
        await store.install(ticket(ticket_id))
    assert len(store.all()) == 3
    assert caplog.messages == ["tickets cannot be kept in the state directory: No space left on device"]
    assert processes.files() == []


async def test_ticket_is_kept_as_soon_as_there_is_space(processes: Processes, store: TransferStore, disk: Disk) -> None:
    disk.is_full()
    await store.install(ticket())
    disk.works()
    store.kept_tickets.renew()
    eventually(lambda: len(processes.files()) == 1, "its file is written")


async def test_old_ticket_does_not_come_back_though_the_new_one_cannot_be_written(
    processes: Processes, store: TransferStore, disk: Disk
) -> None:
    await store.install(ticket())
    disk.is_full()
    await store.install(ticket(timeout=10))
    assert processes.files() == []


async def test_renewal_that_cannot_be_written_leaves_the_ticket_as_it_was(
    processes: Processes, store: TransferStore, disk: Disk
) -> None:
    transfer = await store.install(ticket())
    disk.is_full()
    processes.shift += 200
    use(transfer)
    store.kept_tickets.renew()
    store.kept_tickets.close(SOON)
    disk.works()
    assert found(processes.start()) == [ticket()]


async def test_replaced_ticket_does_not_come_back_though_use_has_renewed_the_new_one(
    processes: Processes, store: TransferStore, disk: Disk
) -> None:
    await store.install(ticket())
    hanging = disk.hangs_until_told()
    installing = [asyncio.create_task(store.install(ticket(name))) for name in ("other", "secret")]
    await asyncio.sleep(0)
    replacing = asyncio.create_task(store.install(ticket(timeout=10)))
    await asyncio.sleep(0)
    transfer = store.get("secret")
    assert transfer is not None
    processes.shift += 5
    use(transfer)
    store.kept_tickets.renew(at_end=True)
    disk.is_full()
    hanging.set()
    await asyncio.gather(*installing, replacing)
    assert processes.files() == []


async def test_removal_fails_until_the_ticket_can_be_forgotten(
    processes: Processes, store: TransferStore, disk: Disk
) -> None:
    await store.install(ticket())
    disk.is_broken()
    with pytest.raises(StorageError):
        await store.remove("secret", 1)
    transfer = store.get("secret")
    assert transfer is not None
    assert not transfer.permission.valid
    disk.works()
    await store.remove("secret", 1)
    assert processes.files() == []


async def test_clear_fails_until_all_tickets_can_be_forgotten(
    processes: Processes, store: TransferStore, disk: Disk
) -> None:
    for ticket_id in "abc":
        await store.install(ticket(ticket_id))
    for _ in range(2):
        disk.is_broken()
        with pytest.raises(StorageError):
            await store.clear()
        disk.works()
        assert found(store) == []
    await store.clear()
    assert processes.files() == []


async def test_replacement_is_served_though_the_old_ticket_cannot_be_forgotten(
    store: TransferStore, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    await store.install(ticket())
    disk.is_broken()
    await store.install(ticket(timeout=10))
    assert "its ticket is not kept so far" in caplog.text


async def test_expired_ticket_is_forgotten_as_soon_as_the_disk_works(
    processes: Processes, store: TransferStore, disk: Disk
) -> None:
    transfer = await store.install(ticket())
    disk.is_broken()
    transfer.permission.extend(0)
    with pytest.raises(StorageError):
        await store.keep(transfer)
    disk.works()
    store.kept_tickets.renew()
    eventually(lambda: processes.files() == [], "its file is removed")


async def test_answer_does_not_wait_for_a_disk_that_hangs(store: TransferStore, disk: Disk) -> None:
    disk.hangs()
    transfer = await store.install(ticket())
    with pytest.raises(Unavailable):
        await store.keep(transfer)
    with pytest.raises(Unavailable):
        await store.remove("secret", 1)


async def test_stop_does_not_wait_for_a_disk_that_hangs_and_tells_so(
    store: TransferStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = threading.Event()
    monkeypatch.setattr("imageio_daemon.runtime.file_writer.write_file", lambda *_: hanging.wait())
    installing = asyncio.create_task(store.install(ticket()))
    await asyncio.sleep(0)  # it is added
    assert not store.kept_tickets.close(0)
    hanging.set()
    await installing
    assert store.kept_tickets.close(SOON)
