# SPDX-License-Identifier: Apache-2.0
"""Requests that are sent again, and their reasons, are told."""

import logging

import pytest

from imageio_daemon.client.server.retries import OTHER_INTERVAL, TOLD_INTERVAL, Retries


class Told:
    """What the log has told as warnings, at the times that a test says."""

    def __init__(self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        self._caplog = caplog
        self._retries = Retries()
        self._now = 0.0
        caplog.set_level(logging.INFO)
        monkeypatch.setattr("time.monotonic", lambda: self._now)

    def fails(self, reason: str, *, after: float) -> None:
        self._now += after
        self._retries.waits(reason, 1.0, is_first=True)

    @property
    def warnings(self) -> list[str]:
        found = (record for record in self._caplog.records if record.levelno == logging.WARNING)
        return [record.getMessage() for record in found]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(caplog, monkeypatch)


def test_reason_is_told_once(told: Told) -> None:
    for _ in range(5):
        told.fails("away", after=TOLD_INTERVAL / 10)
    assert told.warnings == ["away; again in 1.0 s"]


def test_reason_that_lasts_is_told_again(told: Told) -> None:
    told.fails("away", after=0)
    told.fails("away", after=TOLD_INTERVAL)
    assert len(told.warnings) == 2


def test_each_reason_is_told(told: Told) -> None:
    told.fails("away", after=0)
    told.fails("busy", after=OTHER_INTERVAL)
    assert [line.partition(";")[0] for line in told.warnings] == ["away", "busy"]


def test_reasons_that_take_turns_are_told_once_each(told: Told) -> None:
    for reason in ["away", "busy"] * 4:
        told.fails(reason, after=OTHER_INTERVAL)
    assert [line.partition(";")[0] for line in told.warnings] == ["away", "busy"]


def test_server_with_many_reasons_fills_no_log(told: Told) -> None:
    for number in range(1000):
        told.fails(str(number), after=OTHER_INTERVAL / 100)
    assert len(told.warnings) <= 11


def test_reason_lasts_until_all_connections_go_on() -> None:
    retries = Retries()
    assert retries.reason is None
    for _ in range(2):
        retries.waits("away", 0.1, is_first=True)
    retries.waits("still away", 0.1, is_first=False)
    retries.succeeded()
    assert retries.reason == "still away"
    retries.succeeded()
    assert (retries.reason, retries.count) == (None, 3)
