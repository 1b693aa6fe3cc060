# SPDX-License-Identifier: Apache-2.0
"""The rate limits of tickets and tenants, and how they change."""

import weakref
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ..errors import InvalidRequest
from ..storage.bucket import Bucket
from ..units import MAX_RATE, MAX_TENANT, MAX_TENANTS, MAX_TRANSFERS, MIN_RATE
from .keys import text
from .ticket import Ticket


class LimitChanges(NamedTuple):
    """The changes of the limits of all transfers in a request. None leaves a limit as it is.

    For `rate` and `tenant_rate`, see RateLimits. `transfers` is how many may be active at a time. 0 is no limit.
    `tenants` has the rates of single tenants by their names. A tenant with None has `tenant_rate` again.
    """

    rate: int | None
    tenant_rate: int | None
    transfers: int | None
    tenants: Mapping[str, int | None] | None = None

    @classmethod
    def from_json(cls, data: object) -> "LimitChanges":
        """Check decoded JSON. Raises InvalidRequest."""
        if not isinstance(data, dict):
            raise InvalidRequest("Invalid request: expected a JSON object")
        if data.keys() - set(cls._fields) or not data:
            raise InvalidRequest(f"Invalid request: expected some of {', '.join(cls._fields)}")
        return cls(
            _number(data, "rate", MIN_RATE, MAX_RATE),
            _number(data, "tenant_rate", MIN_RATE, MAX_RATE),
            _number(data, "transfers", 1, MAX_TRANSFERS),
            _tenants(data),
        )

    def as_json(self) -> dict[str, object]:
        """Return the limits that are set."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def _number(data: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    if name not in data:
        return None
    value = data[name]
    if type(value) is not int or (value != 0 and not least <= value <= most):
        raise InvalidRequest(f"Invalid request: '{name}' must be 0, for no limit, or between {least} and {most}")
    return value


def _tenants(data: Mapping[str, Any]) -> Mapping[str, int | None] | None:
    if "tenants" not in data:
        return None
    found = data["tenants"]
    if not isinstance(found, dict):
        raise InvalidRequest("Invalid request: 'tenants' must be an object")
    if len(found) > MAX_TENANTS:
        raise InvalidRequest(f"Invalid request: 'tenants' must have at most {MAX_TENANTS} names")
    for name in found:
        text(name, "tenant", MAX_TENANT, empty=False)
    return {name: None if rate is None else _number(found, name, MIN_RATE, MAX_RATE) for name, rate in found.items()}


class RateLimits:
    """Make the buckets of tickets.

    `rate` is for a ticket without a rate of its own, `tenant_rate` for all tickets of one tenant together, and
    `tenants` has the tenants with a rate of their own. Rates are in bytes per second, and 0 is no limit. A change also
    holds for requests that run.
    """

    def __init__(self, rate: int = 0, tenant_rate: int = 0, tenants: Mapping[str, int] = MappingProxyType({})) -> None:
        #: The rates in force. set_rate() and the like change them.
        self.rate = rate
        self.tenant_rate = tenant_rate
        self.tenants = dict(tenants)
        #: The buckets of tickets without a rate of their own.
        self._default: weakref.WeakSet[Bucket] = weakref.WeakSet()
        #: The buckets of tenants that have a ticket or a lane.
        self._buckets: weakref.WeakValueDictionary[str, Bucket] = weakref.WeakValueDictionary()

    def bucket(self, ticket: Ticket) -> Bucket:
        """Return a new bucket for a ticket. Its parent is the one of the tenant, if the ticket has one."""
        bucket = Bucket(self.rate if ticket.rate is None else ticket.rate, self._tenant(ticket.tenant))
        if ticket.rate is None:
            self._default.add(bucket)
        return bucket

    def limit(self, bucket: Bucket, rate: int) -> None:
        """Give a bucket a rate of its own. Raises InvalidRequest."""
        bucket.rate = rate
        self._default.discard(bucket)

    def set_rate(self, rate: int) -> None:
        """Change the rate of tickets without a rate of their own. Raises InvalidRequest."""
        self.rate = rate
        for bucket in self._default:
            bucket.rate = rate

    def set_tenant_rate(self, rate: int) -> None:
        """Change the rate of all tenants without a rate of their own. Raises InvalidRequest."""
        self.tenant_rate = rate
        self._renew()

    def set_tenants(self, rates: Mapping[str, int]) -> None:
        """Give these tenants rates of their own, and no others. Raises InvalidRequest."""
        self.tenants = dict(rates)
        self._renew()

    def change_tenants(self, changes: Mapping[str, int | None]) -> None:
        """Give these tenants rates of their own, or with None the common rate again.

        Raises InvalidRequest, also for too many tenants.
        """
        changed = {**self.tenants, **changes}
        own = {name: rate for name, rate in changed.items() if rate is not None}
        if len(own) > MAX_TENANTS:
            raise InvalidRequest(f"Invalid request: more than {MAX_TENANTS} tenants would have rates of their own")
        self.tenants = own
        self._renew()

    def _renew(self) -> None:
        """Give the buckets of tenants the present rates, where they differ: setting a rate empties the bucket."""
        for name, bucket in self._buckets.items():
            if bucket.rate != (rate := self.tenants.get(name, self.tenant_rate)):
                bucket.rate = rate

    def _tenant(self, name: str | None) -> Bucket | None:
        """Return the bucket of a tenant."""
        if name is None:
            return None
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = Bucket(self.tenants.get(name, self.tenant_rate))
        return bucket
