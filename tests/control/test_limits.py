# SPDX-License-Identifier: Apache-2.0
"""imageioctl limits, and ticket limit."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.conftest import Ctl
from tests.support.daemon import Daemon
from tests.support.images import MiB

NO_LIMITS = {"rate": 0, "tenant_rate": 0, "transfers": 0}


@pytest.fixture(autouse=True)
def _limits(daemon: Daemon) -> Iterator[None]:
    """Set the limits back, for other tests."""
    yield
    assert daemon.control("PATCH", "/limits", b'{"rate": 0, "tenant_rate": 0, "transfers": 0}').json() == NO_LIMITS


def test_limits_are_shown_and_changed(ctl: Ctl) -> None:
    assert ctl("limits", "show").out == "rate: no limit\ntenant_rate: no limit\ntransfers: no limit\n"
    changed = ctl("limits", "set", "--rate", "100M", "--transfers", "8").out
    assert changed == "rate: 100.0 MiB/s\ntenant_rate: no limit\ntransfers: 8\n"
    wanted = {"rate": 100 * MiB, "tenant_rate": 1024 * MiB, "transfers": 8}
    assert ctl("limits", "set", "--tenant-rate", "1G", "--json").json() == [wanted]
    assert ctl("limits", "show", "--json").json() == [wanted]


def test_change_of_limits_needs_one(ctl: Ctl) -> None:
    ctl("limits", "set").failed_with("which limit?", 2)


def test_limit_that_cannot_be_is_refused(ctl: Ctl) -> None:
    ctl("limits", "set", "--rate", "1").failed_with("'rate' must be 0, for no limit, or between", 1)


def test_limit_of_a_ticket_is_changed_while_it_is_used(ctl: Ctl, daemon: Daemon, image: Path) -> None:
    ticket = daemon.add_ticket(image, MiB, transfer_id="limited")
    assert ctl("ticket", "limit", "--rate", "20M", "limited", "--json").json() == [
        {"transfer": "limited", "rate": 20 * MiB}
    ]
    assert daemon.status(ticket)["rate"] == 20 * MiB
    daemon.control("DELETE", f"/tickets/{ticket}")
