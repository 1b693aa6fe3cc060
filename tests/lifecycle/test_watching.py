# SPDX-License-Identifier: Apache-2.0
"""Tickets that have expired long ago are removed."""

import asyncio
import dataclasses
import json
import logging
from typing import Any

import pytest

from imageio_daemon.errors import InUse
from imageio_daemon.lifecycle import watching
from imageio_daemon.lifecycle.watching import purge_expired
from imageio_daemon.runtime.audit_log import AuditLog
from imageio_daemon.storage.operation import Kind
from imageio_daemon.transfers.store import TransferStore
from imageio_daemon.transfers.ticket import Access
from tests.transfers.test_transfer import Clock, Opener, ticket

DAY = 24 * 3600


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def events() -> AuditLog:
    return AuditLog(None)


@pytest.fixture
def store(clock: Clock, events: AuditLog) -> TransferStore:
    opener = Opener()
    return TransferStore(opener, opener.identify, most_tickets=3, most_connections=2, clock=clock, events=events)


async def test_expired_ticket_is_removed_later_and_the_audit_log_says_why(
    store: TransferStore, clock: Clock, events: AuditLog
) -> None:
    store.add(ticket(timeout=300))
    clock.now += 300 + DAY - 1
    await purge_expired(store, DAY)
    assert store.get("secret") is not None
    clock.now += 1
    await purge_expired(store, DAY)
    assert store.get("secret") is None
    told = [json.loads(line) for line in events.after(1)]
    assert [(event["event"], event["reason"]) for event in told] == [
        ("ticket canceled", "expired"),
        ("ticket removed", "expired"),
    ]


async def test_extended_ticket_lives_on(store: TransferStore, clock: Clock) -> None:
    transfer = store.add(ticket(timeout=300))
    clock.now += 2 * DAY
    transfer.permission.extend(10)
    await purge_expired(store, DAY)
    assert store.get("secret") is transfer


async def test_ticket_whose_request_runs_is_not_removed(store: TransferStore, clock: Clock) -> None:
    transfer = store.add(ticket(timeout=300))
    with transfer.track(Access.WRITE, 0, 1, kind=Kind.WRITE):
        clock.now += 2 * DAY
        await purge_expired(store, DAY)
        assert store.get("secret") is transfer


async def test_ticket_that_replaces_an_expired_one_during_a_removal_lives_on(
    store: TransferStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def remove_slowly(*args: Any) -> None:
        if store.get("other") is expired:
            store.add(other)
        await remove(*args)

    other = dataclasses.replace(ticket("other", timeout=300), url="file:///other")
    store.add(ticket(timeout=300))
    expired = store.add(other)
    clock.now += 2 * DAY
    remove = store.remove
    monkeypatch.setattr(store, "remove", remove_slowly)
    await purge_expired(store, DAY)
    assert store.get("secret") is None
    replacing = store.get("other")
    assert replacing is not None
    assert replacing.permission.valid


async def test_ticket_that_cannot_be_removed_is_told_and_stays(
    store: TransferStore, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise InUse("on purpose")

    store.add(ticket(timeout=300))
    clock.now += 2 * DAY
    monkeypatch.setattr(store, "remove", fail)
    with caplog.at_level(logging.WARNING):
        await purge_expired(store, DAY)
    assert "its expired ticket is not removed: on purpose" in caplog.text


async def test_daemon_looks_again_and_again(
    store: TransferStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "PURGE_INTERVAL", 0)
    watch = asyncio.create_task(watching.watch_expired(store, DAY))
    for _ in range(2):
        store.add(ticket(timeout=300))
        clock.now += 2 * DAY
        while store.get("secret") is not None:
            await asyncio.sleep(0)
    watch.cancel()


async def test_zero_keeps_them(store: TransferStore, clock: Clock) -> None:
    store.add(ticket(timeout=300))
    clock.now += 1000 * DAY
    await watching.watch_expired(store, 0)
    assert store.get("secret") is not None
