# SPDX-License-Identifier: Apache-2.0
"""When the daemon is ready, and why not."""

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from imageio_daemon.monitoring import health
from imageio_daemon.monitoring.health import Health
from imageio_daemon.monitoring.liveness import Liveness
from imageio_daemon.net.accepting import Listener
from imageio_daemon.net.loops import serving_loops
from imageio_daemon.net.tls_contexts import ServerTls
from imageio_daemon.transfers.store import TransferStore

FINE = {"service": "", "listeners": "", "loops": "", "certificate": ""}


def listener(*, serves: bool = True) -> Listener:
    return cast(Listener, SimpleNamespace(is_serving=lambda: serves))


def store(*, drains: bool = False) -> TransferStore:
    return cast(TransferStore, SimpleNamespace(drain=object() if drains else None))


def certificate(seconds: float) -> ServerTls:
    """TLS whose certificate expires in so many seconds."""
    tls: Any = SimpleNamespace(context=SimpleNamespace(expires=int(time.time() + seconds)))
    return cast(ServerTls, tls)


async def test_daemon_is_ready_when_it_serves() -> None:
    liveness = Liveness(None)
    checked = Health(store(), liveness, certificate(3600))
    assert await checked.checks() == FINE | {"service": "starting"}
    async with serving_loops(2) as loops:
        liveness.watch(loops)
        checked.serves([("remote", listener())])
        assert await checked.checks() == FINE


async def test_daemon_that_drains_is_not_ready() -> None:
    checked = Health(store(drains=True), Liveness(None), None)
    checked.serves([])
    assert await checked.checks() == FINE | {"service": "draining"}


async def test_service_that_accepts_no_connections_is_named() -> None:
    checked = Health(store(), Liveness(None), None)
    checked.serves([("remote", listener()), ("nbd", listener(serves=False))])
    assert (await checked.checks())["listeners"] == "no connections are accepted: nbd"


async def test_expired_certificate_is_told() -> None:
    checked = Health(store(), Liveness(None), certificate(-1))
    checked.serves([])
    assert await checked.checks() == FINE | {"certificate": "expired"}


async def test_loop_that_hangs_is_told_until_it_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LOOP_TIMEOUT", 0.1)
    liveness = Liveness(None)
    checked = Health(store(), liveness, None)
    checked.serves([])
    async with serving_loops(2) as loops:
        liveness.watch(loops)
        go_on = threading.Event()
        loops[1]._loop.call_soon_threadsafe(go_on.wait)
        for _ in range(3):
            assert (await checked.checks())["loops"] == "no answer from loop 2"
        go_on.set()
        monkeypatch.setattr(health, "LOOP_TIMEOUT", 20)
        assert await checked.checks() == FINE
