# SPDX-License-Identifier: Apache-2.0
"""The usage of a connection: its transfers, requests and bytes, for the log line at its end."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from ....runtime.request_activity import Doing, Worker
from ....runtime.served import Count
from ....transfers.transfer import Transfer


class Closable(Protocol):
    """An object that closes without waiting."""

    def close(self) -> None:
        """Release everything."""


Kept = TypeVar("Kept", bound=Closable)


class ConnectionUsage:
    """Keep the transfers of one connection, with an object for each, and count its requests and bytes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.requests = 0
        self.received = 0
        self.sent = 0
        self._refused = 0
        self._failed = 0
        self._by_lanes = Count()
        self._loop = loop
        self._opened = loop.time()
        self._transfers: list[Transfer] = []
        self._kept: dict[Transfer, Any] = {}  # Closable
        #: What serves the connection now, if anything: the activity of a running request, or a lane.
        self.worker: Worker | None = None

    def use(self, transfer: Transfer, service: str, client: str) -> None:
        """Count the connection as one of the transfer's, and no longer as one of cancelled transfers.

        `service` and `client` are the connection's, for the status. Raises TooManyConnections, Forbidden.
        """
        if transfer in self._transfers:
            return
        end = partial(_call, self._loop, partial(self._end, transfer))
        transfer.connections.add(self, end, service=service, client=client, doing=self._doing)
        for old in [old for old in self._transfers if old.permission.canceled]:
            old.connections.remove(self)
            self._transfers.remove(old)
        self._transfers.append(transfer)

    def kept(self, transfer: Transfer, make: Callable[[], Kept]) -> Kept:
        """Return the object kept for a transfer of the connection, made at first use. It is closed when either ends."""
        if transfer not in self._kept:
            self._kept[transfer] = make()
        kept: Kept = self._kept[transfer]
        return kept

    def _end(self, transfer: Transfer) -> None:
        if (kept := self._kept.pop(transfer, None)) is not None:
            kept.close()

    def _doing(self) -> Doing | None:
        worker = self.worker
        return None if worker is None else worker.doing()

    @property
    def has_ticket(self) -> bool:
        """Tell whether any transfer of the connection is in force."""
        return any(transfer.in_force for transfer in tuple(self._transfers))

    def answered(self, status: int) -> None:
        """Count an answer that Python has given, by its HTTP status."""
        self._refused += 400 <= status < 500
        self._failed += status >= 500

    def add(self, by_lane: Count) -> None:
        """Add the requests and bytes of a lane."""
        self._by_lanes = self._by_lanes.plus(by_lane)
        self.requests += by_lane.requests
        self.received += by_lane.received
        self.sent += by_lane.sent

    def served(self) -> Count:
        """Return the requests and bytes that Python has served, without those of lanes."""
        own = Count(self.requests, self.received, self.sent).minus(self._by_lanes)
        return own._replace(refused=self._refused, failed=self._failed)

    def close(self) -> None:
        """Remove the connection from its transfers, because it is lost. fields() may still be called."""
        for transfer in self._transfers:
            transfer.connections.remove(self)
            self._end(transfer)

    def fields(self) -> dict[str, object]:
        """Return the fields of the log line at the connection's end. `seconds` is the time since its start."""
        return {
            "requests": self.requests,
            "received": self.received,
            "sent": self.sent,
            "seconds": round(self._loop.time() - self._opened, 3),
            "transfers": ",".join(transfer.ticket.log_name for transfer in self._transfers),
        }


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(callback)
