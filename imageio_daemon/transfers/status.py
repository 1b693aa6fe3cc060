# SPDX-License-Identifier: Apache-2.0
"""The status of a transfer, as the control service shows it: its state, its counts and its rate."""

from typing import Any

from ..storage.bucket import Bucket
from .connections import Connections
from .permission import Permission
from .ticket import Access, Ticket
from .traffic import Traffic


def transfer_status(
    ticket: Ticket,
    permission: Permission,
    traffic: Traffic,
    connections: Connections,
    bucket: Bucket,
    durable: int | None,
) -> dict[str, Any]:
    """Return a ticket and its state. Times are in seconds, sizes in bytes.

    `durable` is how many bytes of the image are on stable storage, or None if there is no record of that.
    """
    active, totals = bool(traffic.running), traffic.totals()
    status: dict[str, Any] = ticket.to_json() | {
        "transfer": ticket.log_name,
        "expires": int(permission.lease.expires),
        "expired": permission.expired,
        "active": active,
        "canceled": permission.canceled,
        "connections": len(connections),
        "clients": connections.clients(),
        "idle_time": 0 if active else int(permission.idle),
        "storage_wait": int(max(traffic.storage_waits(), default=0)),
    }
    if bucket.rate:
        status["rate"] = bucket.rate
    if slowest := traffic.slowest:
        status["slowest_operation"] = slowest._replace(seconds=round(slowest.seconds, 3))._asdict()
    status |= {
        "bytes_per_second": traffic.bytes_per_second(totals.moved),
        "limited": round(bucket.limited, 1),
        "read": totals.read,
        "written": totals.written,
        "zeroed": dict(totals.zeroed),
    }
    if durable is not None:
        status["durable"] = durable
    if permission.seal.closed:
        status["finalized"] = True
    if len(ticket.ops) != len(Access):
        status["transferred"] = traffic.transferred()
    return status
