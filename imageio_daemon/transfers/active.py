# SPDX-License-Identifier: Apache-2.0
"""Limits on active transfers: a drain lets only some go on, and a limit allows only a number of them at a time."""

import time
from collections.abc import Iterable, Mapping

from ..errors import TooManyTransfers, Unavailable
from .transfer import Transfer

#: Seconds for which a transfer without connections stays active, because its client may connect for each request.
PAUSE = 10.0


class Drain:
    """Let the transfers that are in use now go on until they pause, and refuse the others."""

    def __init__(self, transfers: Iterable[Transfer]) -> None:
        self._going = {transfer for transfer in transfers if in_use(transfer)}

    def require(self, transfer: Transfer) -> None:
        """Raise Unavailable if a transfer may not go on in this process."""
        if transfer not in self._going:
            raise Unavailable("The server takes no more transfers")

    def left(self) -> int:
        """Return how many transfers still go on. A transfer that was seen paused or ended does not go on again."""
        self._going = {transfer for transfer in self._going if in_use(transfer)}
        return len(self._going)


def in_use(transfer: Transfer) -> bool:
    """Return whether a transfer is in use, or had a request in the last PAUSE seconds and may have another one."""
    return transfer.in_use or (transfer.permission.valid and transfer.permission.idle < PAUSE)


class AtWork:
    """Keep at most `most` of the transfers active. 0 is no limit, as at first.

    A transfer is active from its first request until it has paused; see in_use().
    """

    def __init__(self, transfers: Mapping[str, Transfer]) -> None:
        self._transfers = transfers
        self._most = 0
        self._begun: dict[Transfer, float] = {}  # when each has begun, in seconds; empty without a limit

    @property
    def most(self) -> int:
        """Return the limit."""
        return self._most

    @most.setter
    def most(self, most: int) -> None:
        """Change the limit. Active transfers go on."""
        if not most:
            self._begun = {}
        elif not self._most:
            begun = time.monotonic() - PAUSE
            self._begun = {one: begun for one in self._transfers.values() if _has_begun(one) and in_use(one)}
        self._most = most

    def require(self, transfer: Transfer) -> None:
        """Let a transfer be active. Raises TooManyTransfers if it is not active yet and the limit is reached."""
        if not self._most or transfer in self._begun:
            return
        now = time.monotonic()
        self._begun = {one: then for one, then in self._begun.items() if _works(one, now - then)}
        if len(self._begun) >= self._most:
            raise TooManyTransfers(f"Too many transfers, the limit is {self._most}")
        self._begun[transfer] = now


def _has_begun(transfer: Transfer) -> bool:
    """Return whether a transfer is in use, or has had a request."""
    return transfer.in_use or transfer.permission.used > 0


def _works(transfer: Transfer, seconds: float) -> bool:
    """Return whether a transfer that has begun `seconds` ago is active, also before its first request is counted."""
    return in_use(transfer) or (seconds < PAUSE and not transfer.permission.canceled)
