# SPDX-License-Identifier: Apache-2.0
"""The usage of a connection: its transfers, requests and bytes, which are logged at its end."""

import asyncio

from ...service.served import Count
from ...service.work import Doing, Worker
from ...transfers.transfer import Transfer


class Usage:
    """Keep the transfers of one connection, and count its requests and bytes."""

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
        #: What serves the request that runs, or a lane; None: neither is there.
        self.worker: Worker | None = None

    def use(self, transfer: Transfer, service: str, client: str) -> None:
        """Count the connection as one of the transfer's, and no longer as one of cancelled transfers.

        service, client: of the connection, for the status. Raises TooManyConnections, Forbidden.
        """
        if transfer in self._transfers:
            return
        transfer.connections.add(self, service=service, client=client, doing=self._doing)
        for old in [old for old in self._transfers if old.permission.canceled]:
            old.connections.remove(self)
            self._transfers.remove(old)
        self._transfers.append(transfer)

    def _doing(self) -> Doing | None:
        worker = self.worker
        return None if worker is None else worker.doing()

    @property
    def has_ticket(self) -> bool:
        """Tell whether a transfer that the connection has used is in force. May be called in any thread."""
        return any(transfer.in_force for transfer in tuple(self._transfers))

    def answered(self, status: int) -> None:
        """Count an answer that Python has given. status: of HTTP."""
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

    def fields(self) -> dict[str, object]:
        """Return the fields of the log line at the end of the connection. seconds: since its start."""
        return {
            "requests": self.requests,
            "received": self.received,
            "sent": self.sent,
            "seconds": round(self._loop.time() - self._opened, 3),
            "transfers": ",".join(transfer.ticket.log_name for transfer in self._transfers),
        }
