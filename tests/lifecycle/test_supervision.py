# SPDX-License-Identifier: Apache-2.0
"""What the service manager is told while the daemon runs."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from imageio_daemon.lifecycle import supervision
from imageio_daemon.lifecycle.health import Liveness
from imageio_daemon.lifecycle.supervision import Supervision
from imageio_daemon.runtime.degraded import Degraded
from imageio_daemon.runtime.sums import By, Count, Served
from imageio_daemon.transfers.store import TransferStore
from imageio_daemon.units import MiB
from tests.support.manager import Manager
from tests.support.polling import eventually

SIGN = "WATCHDOG=1"


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    with Manager(watchdog=0.06) as manager:
        for name, value in manager.environment().items():
            monkeypatch.setenv(name, value)
        yield manager


@contextlib.asynccontextmanager
async def running(watch: Coroutine[None, None, None]) -> Any:
    task = asyncio.create_task(watch)
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def until(condition: Any, what: str) -> None:
    await asyncio.to_thread(eventually, condition, what)


async def test_signs_of_life_stop_while_lanes_hang(manager: Manager) -> None:
    lanes = threading.Lock()

    def look() -> None:
        with lanes:
            pass

    liveness = Liveness(look)
    async with running(Supervision(Degraded(), wanted=True).watch_life(liveness)):
        await until(lambda: manager.states.count(SIGN) >= 3, "there are signs")
        with lanes:
            assert not await liveness.answered(0.05)
            signs = manager.states.count(SIGN)
            await asyncio.sleep(0.2)
            assert manager.states.count(SIGN) == signs
        await until(lambda: manager.states.count(SIGN) > signs, "there are signs again")


async def test_signs_of_life_stop_while_the_loop_is_blocked(manager: Manager) -> None:
    async with running(Supervision(Degraded(), wanted=True).watch_life(Liveness(lambda: None))):
        await until(lambda: manager.states.count(SIGN) >= 3, "there are signs")
        signs = manager.states.count(SIGN)
        threading.Event().wait(0.2)  # blocks the loop
        assert manager.states.count(SIGN) <= signs + 1
        await until(lambda: manager.states.count(SIGN) > signs + 1, "there are signs again")


@pytest.mark.parametrize("variables", [{}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}])
async def test_no_signs_without_a_watchdog(
    variables: dict[str, str], manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WATCHDOG_USEC")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    await Supervision(Degraded(), wanted=True).watch_life(Liveness(lambda: None))
    assert manager.states == []


class Transfer:
    in_use = True
    traffic = SimpleNamespace(storage_waits=lambda: [0.5, 12.9])


class Source:
    def __init__(self, count: Count) -> None:
        self.count = count

    def served(self) -> Count:
        return self.count


async def test_status_tells_what_moves_when_it_changes(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "STATUS_INTERVAL", 0.02)
    served, told = Served(), Supervision(Degraded(), wanted=True)
    store = SimpleNamespace(drain=None, all=lambda: [Transfer()])
    served.begin(("control", By.PYTHON), Source(Count(1, 10 * MiB, 10 * MiB)))
    told.ready("remote on :: port 1")
    async with running(told.watch_status(cast(TransferStore, store), served)):
        await until(lambda: len(manager.states) == 2, "the status is told")
        assert manager.states == [
            "READY=1\nSTATUS=remote on :: port 1",
            "STATUS=remote on :: port 1; 1 transfers, 0 B/s in, 0 B/s out, storage waits 12 s",
        ]
        served.begin(("remote", By.LANE), Source(Count(1, 10 * MiB, 0)))
        await until(lambda: len(manager.states) == 4, "the change is told, and the end of it")
    assert "MiB/s in, 0 B/s out" in manager.states[2]
    assert manager.states[3] == manager.states[1]


def test_nothing_is_told_if_it_is_not_wanted(manager: Manager) -> None:
    told = Supervision(Degraded(), wanted=False)
    told.ready("")
    told.stopping(1)
    assert manager.states == []
