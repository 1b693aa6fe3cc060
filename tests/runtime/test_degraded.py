# SPDX-License-Identifier: Apache-2.0
"""What is not in force is told when it comes and when it goes."""

import logging
from typing import Any

import pytest

from imageio_daemon.runtime.degraded import Degraded, Feature


class Part:
    """A part of the daemon that may be broken."""

    def __init__(self) -> None:
        self.reason = ""

    def why(self) -> str:
        return self.reason


@pytest.fixture
def part() -> Part:
    return Part()


@pytest.fixture
def degraded(part: Part) -> Degraded:
    made = Degraded()
    made.watch(Feature.STATE_DIR, part.why)
    return made


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, Any]]:
    found = [(record.levelname, record.message, record.__dict__["fields"]) for record in caplog.records]
    caplog.clear()
    return found


def test_each_feature_has_a_reason_or_none(degraded: Degraded, part: Part) -> None:
    assert degraded.reasons() == dict.fromkeys(Feature, "")
    assert degraded.summary() == ""
    part.reason = "it is read-only"
    assert degraded.reasons() == dict.fromkeys(Feature, "") | {Feature.STATE_DIR: "it is read-only"}
    assert degraded.summary() == "state_dir: it is read-only"


def test_all_that_lacks_is_in_the_summary(degraded: Degraded, part: Part) -> None:
    part.reason = "it is read-only"
    degraded.watch(Feature.CEPH, lambda: "none")
    assert degraded.summary() == "state_dir: it is read-only, ceph: none"


def test_what_comes_and_goes_is_logged_once(degraded: Degraded, part: Part, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    degraded.look()
    assert lines(caplog) == []
    for reason in ("full", "silent"):
        part.reason = reason
        degraded.look()
        degraded.look()
        assert lines(caplog) == [("WARNING", "not in force", {"feature": "state_dir", "reason": reason})]
    part.reason = ""
    degraded.look()
    degraded.look()
    assert lines(caplog) == [("INFO", "in force again", {"feature": "state_dir"})]
