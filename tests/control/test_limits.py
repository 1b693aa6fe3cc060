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


def test_limit_of_one_tenant_is_shown_changed_and_taken_back(ctl: Ctl) -> None:
    assert ctl("limits", "set", "--tenant-rate", "100M").status == 0
    told = ctl("limits", "tenant", "b", "--rate", "20M", "a").out
    common = "rate: no limit\ntenant_rate: 100.0 MiB/s\ntransfers: no limit\n"
    assert told == common + "tenant a: 20.0 MiB/s\ntenant b: 20.0 MiB/s\n"
    assert ctl("limits", "tenant", "b", "--rate", "0").out == common + "tenant a: 20.0 MiB/s\ntenant b: no limit\n"
    assert ctl("limits", "show", "--json").json()[0]["tenants"] == {"a": 20 * MiB, "b": 0}
    assert ctl("limits", "tenant", "a", "b", "never", "--common").out == common


def test_limit_of_a_tenant_needs_a_name_and_a_rate(ctl: Ctl) -> None:
    assert ctl("limits", "tenant", "--rate", "1M").status == 2
    assert ctl("limits", "tenant", "a").status == 2
    ctl("limits", "tenant", "a", "--rate", "1").failed_with("'a' must be 0, for no limit, or between", 1)
    ctl("limits", "tenant", "", "--rate", "1M").failed_with("'tenant'", 1)


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
