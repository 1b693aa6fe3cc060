# SPDX-License-Identifier: Apache-2.0
"""The limits on the rates of tickets and tenants, and how they change."""

import threading
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import InvalidRequest
from ..storage.bucket import Bucket
from ..units import MAX_RATE, MAX_TRANSFERS, MIN_RATE
from .ticket import Ticket


class LimitChanges(NamedTuple):
    """What a request changes of the limits of all transfers; None: not this.

    rate, tenant_rate: see Limits. transfers: how many may be at work at a time. 0: no limit.
    """

    rate: int | None
    tenant_rate: int | None
    transfers: int | None

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
        )

    def as_json(self) -> dict[str, int]:
        """Return those that are told."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def _number(data: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    if name not in data:
        return None
    value = data[name]
    if type(value) is not int or (value != 0 and not least <= value <= most):
        raise InvalidRequest(f"Invalid request: '{name}' must be 0, for no limit, or between {least} and {most}")
    return value


class Limits:
    """Make the buckets of tickets. Thread-safe.

    rate: of a ticket that tells none. tenant_rate: of all tickets of one tenant together. Bytes per second; 0: none.
    Both can be changed, and then hold for what runs, too.
    """

    def __init__(self, rate: int = 0, tenant_rate: int = 0) -> None:
        self._rate = rate
        self._tenant_rate = tenant_rate
        self._lock = threading.Lock()
        #: The buckets of tickets that tell no rate.
        self._default: weakref.WeakSet[Bucket] = weakref.WeakSet()
        #: The buckets of tenants that have a ticket or a lane.
        self._tenants: weakref.WeakValueDictionary[str, Bucket] = weakref.WeakValueDictionary()

    def bucket(self, ticket: Ticket) -> Bucket:
        """Return a new bucket for a ticket. Its parent is the one of the tenant, if the ticket has one."""
        with self._lock:
            bucket = Bucket(self._rate if ticket.rate is None else ticket.rate, self._tenant(ticket.tenant))
            if ticket.rate is None:
                self._default.add(bucket)
        return bucket

    def limit(self, bucket: Bucket, rate: int) -> None:
        """Give a bucket a rate of its own. Raises InvalidRequest."""
        with self._lock:
            bucket.rate = rate
            self._default.discard(bucket)

    @property
    def rate(self) -> int:
        """Return the rate of tickets that tell none."""
        return self._rate

    @property
    def tenant_rate(self) -> int:
        """Return the rate of each tenant."""
        return self._tenant_rate

    def set_rate(self, rate: int) -> None:
        """Change the rate of tickets that tell none. Raises InvalidRequest."""
        with self._lock:
            self._rate = rate
            for bucket in self._default:
                bucket.rate = rate

    def set_tenant_rate(self, rate: int) -> None:
        """Change the rate of all tenants. Raises InvalidRequest."""
        with self._lock:
            self._tenant_rate = rate
            for bucket in self._tenants.values():
                bucket.rate = rate

    def _tenant(self, name: str | None) -> Bucket | None:
        """Return the bucket of a tenant. Called with the lock."""
        if name is None:
            return None
        bucket = self._tenants.get(name)
        if bucket is None:
            bucket = self._tenants[name] = Bucket(self._tenant_rate)
        return bucket
