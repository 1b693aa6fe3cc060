# SPDX-License-Identifier: Apache-2.0
"""The limit on transfers that are at work at a time. Shared by the event loops; transfers/__init__.py has the rules."""

import threading
import time

from ..errors import TooManyTransfers
from .drain import PAUSE, in_use
from .transfer import Transfer


class AtWork:
    """Keep at most `most` transfers at work; 0: no limit. Thread-safe.

    A transfer is at work from its first request until it has paused; see in_use() in transfers/drain.py.
    """

    def __init__(self, most: int = 0) -> None:
        #: The limit, which can be changed. Transfers that are at work go on.
        self.most = most
        self._lock = threading.Lock()
        self._begun: dict[Transfer, float] = {}  # when each began, in seconds

    def require(self, transfer: Transfer) -> None:
        """Let a transfer work. Raises TooManyTransfers if it does not, and so many others do."""
        if not self.most or transfer in self._begun:
            return
        with self._lock:
            now = time.monotonic()
            self._begun = {one: then for one, then in self._begun.items() if _works(one, now - then)}
            if len(self._begun) >= self.most:
                raise TooManyTransfers(f"Too many transfers, the limit is {self.most}")
            self._begun[transfer] = now


def _works(transfer: Transfer, seconds: float) -> bool:
    """Tell whether a transfer that has begun so many seconds ago works: its first request may not be seen yet."""
    return in_use(transfer) or (seconds < PAUSE and not transfer.permission.canceled)
