# SPDX-License-Identifier: Apache-2.0
"""What a ticket permits now: it expires, is extended by the control service, renewed by use, and ends when cancelled.

Shared by the event loops; the rules stand in transfers/transfer.py.
"""

import threading
from collections.abc import Callable

from ..errors import DENIED, Forbidden
from ..storage.backend import Lease
from .ticket import Access, Ticket

#: Return the time in seconds, as time.monotonic() does.
Clock = Callable[[], float]


class Permission:
    """Tell whether a ticket may be used. Thread-safe.

    lock: the transfer's, which holds it where a method says so. lease: until when the ticket lives; C reads and renews
    it, too.
    """

    def __init__(self, ticket: Ticket, lock: threading.Lock, clock: Clock) -> None:
        self._ticket = ticket
        self._lock = lock
        self._clock = clock
        self._created = clock()
        self.lease = Lease(self._created, ticket.timeout)
        #: The transfer was cancelled. Set with the lock, and never reset.
        self.canceled = False

    def require(self, access: Access | None) -> None:
        """Raise Forbidden unless the ticket allows the access now. None: any use of a living ticket."""
        if not self.valid:
            raise Forbidden(DENIED)
        if access is not None and not self._ticket.may(access):
            raise Forbidden(f"{DENIED}: ticket forbids {access.value}")

    def require_not_canceled(self) -> None:
        """Raise Forbidden when the transfer was cancelled."""
        if self.canceled:
            raise Forbidden(DENIED)

    @property
    def valid(self) -> bool:
        """Tell whether the ticket was neither cancelled nor has expired."""
        return not (self.canceled or self.expired)

    @property
    def expired(self) -> bool:
        """Tell whether the ticket has expired. Extending it revives it."""
        return self._clock() >= self.lease.expires

    @property
    def idle(self) -> float:
        """Return the seconds since the last request ended, or since the ticket was added."""
        return self._clock() - self.lease.active

    @property
    def used(self) -> float:
        """Return the seconds from when the ticket was added to the end of the last request."""
        return self.lease.active - self._created

    def extend(self, timeout: int) -> None:
        """Let the ticket expire timeout seconds from now.

        0 ends it: requests that run go on, but their end does not renew it. Only another extension revives it.
        """
        with self._lock:
            now = self._clock()
            if timeout:
                self.lease.expires = now + timeout
            else:
                self.lease.end(now)

    def renew(self) -> None:
        """Note that a request has ended: the ticket's timeout begins anew. Called with the lock."""
        self.lease.renew(self._clock())
