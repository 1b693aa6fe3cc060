# SPDX-License-Identifier: Apache-2.0
"""The limit on the rate of a transfer: the bucket, with time that passes as a test says."""

import threading

import pytest

from imageio_daemon.client import Usage
from imageio_daemon.client.errors import Stopped
from imageio_daemon.client.server.abilities import MAX_CONNECTIONS
from imageio_daemon.client.server.pace import BURST, LEAST_RATE, LEAST_STEP, MOST_STEP, SHARE, UNLIMITED, Pace, Paced
from imageio_daemon.client.server.session import ClientSession, Settings
from imageio_daemon.client.stopping import Stop
from imageio_daemon.units import KiB, MiB

RATE = 1 * MiB


class Clock(Stop):
    """Time that passes in sleep() only, and late if a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.now = 1000.0
        self.late = 0.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    def sleep(self, seconds: float) -> None:
        self.check()
        self.now += seconds + self.late


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def move(paced: Paced, count: int) -> None:
    """Send bytes, in as many steps as it takes."""
    while count:
        count -= paced.send(count)


@pytest.mark.parametrize("late", [0.0, 0.015])
def test_rate_holds_also_where_threads_wake_late(clock: Clock, late: float) -> None:
    clock.late = late
    paced, began = Paced(Pace(RATE), clock), clock.now
    move(paced, 10 * RATE)
    assert 10 - 2 * BURST <= clock.now - began <= 10 + late


def test_connections_and_directions_share_one_rate(clock: Clock) -> None:
    pace, began = Pace(RATE), clock.now
    first, second = Paced(pace, clock), Paced(pace, clock)
    for _ in range(10 * RATE // (64 * KiB)):
        move(first, 32 * KiB)
        second.received(32 * KiB)
    assert clock.now - began == pytest.approx(10, abs=2 * BURST)


def test_pause_is_not_made_up_for(clock: Clock) -> None:
    paced = Paced(Pace(RATE), clock)
    move(paced, RATE)
    clock.now += 60
    began = clock.now
    move(paced, RATE)
    assert clock.now - began >= 1 - 2 * BURST


@pytest.mark.parametrize(("rate", "step"), [(LEAST_RATE, LEAST_STEP), (RATE, RATE // 50), (2**40, MOST_STEP)])
def test_step_is_a_part_of_a_second(clock: Clock, rate: int, step: int) -> None:
    paced = Paced(Pace(rate), clock)
    assert paced.step == step
    assert paced.send(2**30) == step
    assert paced.send(100) == 100


def test_without_a_limit_nothing_waits(clock: Clock) -> None:
    paced, began = Paced(UNLIMITED, clock), clock.now
    assert paced.send(2**40) == 2**40
    paced.received(2**40)
    assert clock.now == began


def test_wait_ends_when_the_transfer_is_stopped() -> None:
    stop = Stop()
    paced = Paced(Pace(LEAST_RATE), stop)
    timer = threading.Timer(0.1, stop.stop)
    timer.start()
    with pytest.raises(Stopped):
        move(paced, 100 * LEAST_RATE)
    timer.join()


@pytest.mark.parametrize(("rate", "connections"), [(None, 4), (4 * SHARE, 4), (2 * SHARE, 2), (LEAST_RATE, 1)])
def test_low_rate_needs_few_connections(rate: int | None, connections: int) -> None:
    settings = Settings(rate=rate)
    assert ClientSession("https://host/images/x", settings).connections(MAX_CONNECTIONS) == connections


def test_connections_that_were_asked_for_are_used() -> None:
    settings = Settings(rate=LEAST_RATE, connections=7)
    assert ClientSession("https://host/images/x", settings).connections(MAX_CONNECTIONS) == 7


def test_rate_at_which_servers_lose_patience_is_refused() -> None:
    with pytest.raises(Usage, match="at least 4096 bytes per second"):
        ClientSession("https://host/images/x", Settings(rate=LEAST_RATE - 1))
