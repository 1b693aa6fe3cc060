# SPDX-License-Identifier: Apache-2.0
"""The limits of tenants: one for all, and those of single ones."""

from typing import Any

import pytest

from imageio_daemon.errors import InvalidRequest
from imageio_daemon.storage.bucket import Bucket
from imageio_daemon.transfers.rate_limits import LimitChanges, RateLimits
from imageio_daemon.transfers.ticket import Ticket
from imageio_daemon.units import MAX_RATE, MAX_TENANT, MAX_TENANTS, MIN_RATE, MiB


def ticket(tenant: str) -> Ticket:
    data = {"uuid": tenant, "size": 1, "url": "file:///images/x", "timeout": 300, "ops": ["read"], "tenant": tenant}
    return Ticket.from_json(data, inactivity_timeout=60)


class Tenants:
    """Tenants a and b with a ticket each, and their limits."""

    def __init__(self, limits: RateLimits) -> None:
        self.limits = limits
        self._kept: list[Bucket] = [limits.bucket(ticket(name)) for name in ("a", "b")]

    @property
    def rates(self) -> tuple[int, int]:
        a, b = (self.limits._buckets[name].rate for name in ("a", "b"))
        return a, b


def test_tenant_with_a_rate_of_its_own_has_that_one() -> None:
    assert Tenants(RateLimits(0, 2 * MiB, {"b": 3 * MiB})).rates == (2 * MiB, 3 * MiB)


def test_changes_hold_for_tenants_that_have_tickets() -> None:
    tenants = Tenants(RateLimits())
    tenants.limits.change_tenants({"a": MiB, "c": MiB})
    assert tenants.rates == (MiB, 0)
    tenants.limits.set_tenant_rate(2 * MiB)
    assert tenants.rates == (MiB, 2 * MiB)
    tenants.limits.change_tenants({"a": None, "b": 0})
    assert tenants.rates == (2 * MiB, 0)
    assert tenants.limits.tenants == {"b": 0, "c": MiB}
    tenants.limits.set_tenants({"a": 3 * MiB})
    assert tenants.rates == (3 * MiB, 2 * MiB)
    assert tenants.limits.tenants == {"a": 3 * MiB}


def test_ticket_of_a_tenant_that_comes_later_has_its_rate() -> None:
    limits = RateLimits()
    limits.change_tenants({"a": MiB})
    assert Tenants(limits).rates == (MiB, 0)


def test_tenants_are_bounded() -> None:
    limits = RateLimits()
    limits.change_tenants({str(number): MiB for number in range(MAX_TENANTS)})
    with pytest.raises(InvalidRequest, match="more than 10000 tenants"):
        limits.change_tenants({"one more": MiB})
    limits.change_tenants({"one more": MiB, "0": None})
    assert len(limits.tenants) == MAX_TENANTS


@pytest.mark.parametrize(
    "tenants",
    [
        [],
        "a",
        {"": MiB},
        {"x" * (MAX_TENANT + 1): MiB},
        {"\ud800": MiB},
        {"a": MIN_RATE - 1},
        {"a": MAX_RATE + 1},
        {"a": True},
        {"a": "1M"},
        {str(number): None for number in range(MAX_TENANTS + 1)},
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_limit_of_tenants_is_refused(tenants: Any) -> None:
    with pytest.raises(InvalidRequest):
        LimitChanges.from_json({"tenants": tenants})
