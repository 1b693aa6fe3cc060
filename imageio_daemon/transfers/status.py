# SPDX-License-Identifier: Apache-2.0
"""The status of a transfer, as the control service shows it: its state, its counts and its rate."""

from typing import Any

from ..storage.bucket import Bucket
from .connections import Connections
from .permission import Clock, Permission
from .rate import Pauses, Rate
from .ticket import Access, Ticket
from .traffic import Traffic


class TransferStatus:
    """Tell the state of one transfer from its parts.

    It reports the time in which nothing runs to `pauses`. The clock counts seconds.
    """

    def __init__(
        self,
        traffic: Traffic,
        permission: Permission,
        connections: Connections,
        bucket: Bucket,
        pauses: Pauses,
        clock: Clock,
    ) -> None:
        self._traffic = traffic
        self._permission = permission
        self._connections = connections
        self._bucket = bucket
        self._pauses = pauses
        self._clock = clock
        self._rate = Rate(clock())

    def sample(self) -> None:
        """Take a sample for the rate, and look for a pause. Call this at regular times."""
        now = self._clock()
        self._rate.sample(now, self._traffic.totals().moved)
        if not self._traffic.running:
            self._pauses.look(self._permission.lease.active, now)

    def status(self, ticket: Ticket, durable: int | None) -> dict[str, Any]:
        """Return the ticket and its state, as the control service sends it. Times are in seconds, sizes in bytes.

        `durable` is how many bytes of the image are on stable storage, or None if there is no record of that.
        """
        status = ticket.to_json() | self._state(ticket) | self._done()
        if durable is not None:
            status["durable"] = durable
        if self._permission.seal.closed:
            status["finalized"] = True
        if len(ticket.ops) != len(Access):
            status["transferred"] = self._traffic.transferred()
        return status

    def _state(self, ticket: Ticket) -> dict[str, Any]:
        """Return the present state."""
        active = bool(self._traffic.running)
        state: dict[str, Any] = {
            "transfer": ticket.log_name,
            "expires": int(self._permission.lease.expires),
            "expired": self._permission.expired,
            "active": active,
            "canceled": self._permission.canceled,
            "connections": len(self._connections),
            "clients": self._connections.clients(),
            "idle_time": 0 if active else int(self._permission.idle),
            "storage_wait": int(max(self._traffic.storage_waits(), default=0)),
        }
        if self._bucket.rate:
            state["rate"] = self._bucket.rate
        if slowest := self._traffic.slowest:
            state["slowest_operation"] = slowest._replace(seconds=round(slowest.seconds, 3))._asdict()
        return state

    def _done(self) -> dict[str, Any]:
        """Return what was done so far."""
        totals = self._traffic.totals()
        return {
            "bytes_per_second": self._rate.per_second(self._clock(), totals.moved),
            "limited": round(self._bucket.limited, 1),
            "read": totals.read,
            "written": totals.written,
            "zeroed": dict(totals.zeroed),
        }
