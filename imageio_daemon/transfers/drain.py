# SPDX-License-Identifier: Apache-2.0
"""Draining: transfers that are in use go on, others are refused, until none is in use. Shared by the event loops."""

import threading
from collections.abc import Iterable

from ..errors import Unavailable
from .transfer import Transfer

#: Seconds for which a transfer without connections counts as in use: its client may use a connection for each request.
PAUSE = 10.0


class Drain:
    """Decide which transfers go on, from now until they pause. Thread-safe. transfers: all that there are."""

    def __init__(self, transfers: Iterable[Transfer]) -> None:
        self._lock = threading.Lock()
        self._going = {transfer for transfer in transfers if in_use(transfer)}

    def require(self, transfer: Transfer) -> None:
        """Raise Unavailable if a transfer does not go on in this process."""
        if transfer not in self._going:
            raise Unavailable("The server takes no more transfers")

    def left(self) -> int:
        """Return how many transfers go on, without those that have paused or ended since the last call."""
        with self._lock:
            self._going = {transfer for transfer in self._going if in_use(transfer)}
            return len(self._going)


def in_use(transfer: Transfer) -> bool:
    """Tell whether a transfer has a request or a connection, or had a request in the last PAUSE seconds."""
    return transfer.in_use or (transfer.permission.valid and transfer.permission.idle < PAUSE)
