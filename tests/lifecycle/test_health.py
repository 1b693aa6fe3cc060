# SPDX-License-Identifier: Apache-2.0
"""When the daemon is ready, and why not; whether the lanes answer."""

import errno
import threading
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest

from imageio_daemon.errors import StorageError
from imageio_daemon.lifecycle import health
from imageio_daemon.lifecycle.health import Health, Liveness
from imageio_daemon.net.serving import Acceptor
from imageio_daemon.runtime.degraded import Degraded, Feature
from imageio_daemon.transfers.store import TransferStore

FINE: dict[str, str] = {"service": "", "listeners": "", "lanes": "", **dict.fromkeys(Feature, "")}


def listener(*, serves: bool = True) -> Acceptor:
    return cast(Acceptor, SimpleNamespace(is_serving=lambda: serves))


def store(*, drains: bool = False) -> TransferStore:
    return cast(TransferStore, SimpleNamespace(drain=object() if drains else None))


async def test_daemon_is_ready_when_it_serves() -> None:
    liveness = Liveness(lambda: None)
    checked = Health(store(), liveness, Degraded())
    assert await checked.checks() == FINE | {"service": "starting"}
    checked.serves([("remote", listener())])
    assert await checked.checks() == FINE


async def test_daemon_that_drains_is_not_ready() -> None:
    checked = Health(store(drains=True), Liveness(lambda: None), Degraded())
    checked.serves([])
    assert await checked.checks() == FINE | {"service": "draining"}


async def test_service_that_accepts_no_connections_is_named() -> None:
    checked = Health(store(), Liveness(lambda: None), Degraded())
    checked.serves([("remote", listener()), ("nbd", listener(serves=False))])
    assert (await checked.checks())["listeners"] == "no connections are accepted: nbd"


async def test_feature_that_is_not_in_force_is_told() -> None:
    degraded = Degraded()
    degraded.watch(Feature.EVENTS, lambda: "Is a directory")
    checked = Health(store(), Liveness(lambda: None), degraded)
    checked.serves([])
    assert await checked.checks() == FINE | {"events": "Is a directory"}


async def test_lanes_that_hang_are_told_until_they_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LANES_TIMEOUT", 0.1)
    go_on = threading.Event()
    checked = Health(store(), Liveness(go_on.wait), Degraded())
    checked.serves([])
    for _ in range(3):
        assert (await checked.checks())["lanes"] == "no answer"
    go_on.set()
    monkeypatch.setattr(health, "LANES_TIMEOUT", 20)
    assert await checked.checks() == FINE


async def test_lanes_do_not_answer_while_a_lock_is_held() -> None:
    lock = threading.Lock()

    def look() -> None:
        with lock:
            pass

    liveness = Liveness(look)
    with lock:
        assert liveness.ask()
        assert not await liveness.answered(0.05)
        threads = threading.active_count()
        assert not liveness.ask()
        assert threading.active_count() == threads  # no further one waits
    assert await liveness.answered(20)
    assert liveness.ask()


async def test_call_that_raised_is_no_answer_and_the_next_one_may_be(caplog: pytest.LogCaptureFixture) -> None:
    look = Mock(side_effect=[StorageError(errno.ENOMEM, "lanes", "look"), None, None])
    liveness = Liveness(look)
    assert not await liveness.answered(20)
    assert not liveness.ask()
    assert "lanes cannot be asked" in caplog.text
    assert await liveness.answered(20)
