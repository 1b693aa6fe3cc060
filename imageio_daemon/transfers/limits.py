# SPDX-License-Identifier: Apache-2.0
"""The limits on the rates of tickets and tenants."""

import threading
import weakref

from ..storage.bucket import Bucket
from .ticket import Ticket


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
