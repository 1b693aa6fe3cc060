# SPDX-License-Identifier: Apache-2.0
"""What a connection is used for: its transfers, its requests, and how many bytes; the log tells it at the end."""

import asyncio

from ...transfers import Transfer


class Account:
    """Keep the transfers of one connection, and count what goes over it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.requests = 0
        self.received = 0
        self.sent = 0
        self._loop = loop
        self._opened = loop.time()
        self._transfers: list[Transfer] = []

    def use(self, transfer: Transfer) -> None:
        """Count the connection as one of the transfer's, and no more as one of those that were cancelled.

        Raises TooManyConnections, Forbidden.
        """
        if transfer in self._transfers:
            return
        transfer.connect(self)
        for old in [old for old in self._transfers if old.canceled]:
            old.disconnect(self)
            self._transfers.remove(old)
        self._transfers.append(transfer)

    @property
    def has_ticket(self) -> bool:
        """Tell whether a transfer that the connection has used is in force. May be asked in any thread."""
        return any(transfer.in_force for transfer in tuple(self._transfers))

    def add(self, *, requests: int, received: int, sent: int) -> None:
        """Count what somebody else did with the connection."""
        self.requests += requests
        self.received += received
        self.sent += sent

    def close(self) -> None:
        """Count the connection as nobody's: it is lost. What it was used for can still be told."""
        for transfer in self._transfers:
            transfer.disconnect(self)

    def fields(self) -> dict[str, object]:
        """Return what the log tells."""
        return {
            "requests": self.requests,
            "received": self.received,
            "sent": self.sent,
            "seconds": round(self._loop.time() - self._opened, 3),
            "transfers": ",".join(transfer.ticket.log_name for transfer in self._transfers),
        }
