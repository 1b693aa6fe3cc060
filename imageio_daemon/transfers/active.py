# SPDX-License-Identifier: Apache-2.0
"""Which transfers are active, and which may become so: all, those that a drain lets go on, or a limited number."""

import time
from collections.abc import Iterable

from ..errors import TooManyTransfers, Unavailable
from .transfer import Transfer

#: Seconds for which a transfer without connections counts as in use: its client may use a connection for each request.
PAUSE = 10.0


class Drain:
    """Let the transfers that are in use now go on until they pause, and refuse the others."""

    def __init__(self, transfers: Iterable[Transfer]) -> None:
        self._going = {transfer for transfer in transfers if in_use(transfer)}

    def require(self, transfer: Transfer) -> None:
        """Raise Unavailable if a transfer does not go on in this process."""
        if transfer not in self._going:
            raise Unavailable("The server takes no more transfers")

    def left(self) -> int:
        """Return how many transfers go on, without those that have paused or ended since the last call."""
        self._going = {transfer for transfer in self._going if in_use(transfer)}
        return len(self._going)


def in_use(transfer: Transfer) -> bool:
    """Tell whether a transfer has a request or a connection, or had a request in the last PAUSE seconds."""
    return transfer.in_use or (transfer.permission.valid and transfer.permission.idle < PAUSE)


class AtWork:
    """Keep at most `most` transfers at work; 0: no limit.

    A transfer is at work from its first request until it has paused; see in_use().
    """

    def __init__(self, most: int = 0) -> None:
        #: The limit, which can be changed. Transfers that are at work go on.
        self.most = most
        self._begun: dict[Transfer, float] = {}  # when each began, in seconds

    def require(self, transfer: Transfer) -> None:
        """Let a transfer be active. Raises TooManyTransfers if it is not and the limit is reached."""
        if not self.most or transfer in self._begun:
            return
        now = time.monotonic()
        self._begun = {one: then for one, then in self._begun.items() if _works(one, now - then)}
        if len(self._begun) >= self.most:
            raise TooManyTransfers(f"Too many transfers, the limit is {self.most}")
        self._begun[transfer] = now


def _works(transfer: Transfer, seconds: float) -> bool:
    """Tell whether a transfer that has begun `seconds` ago is active. Its first request may not be seen yet."""
    return in_use(transfer) or (seconds < PAUSE and not transfer.permission.canceled)
