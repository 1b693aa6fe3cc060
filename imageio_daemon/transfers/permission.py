# SPDX-License-Identifier: Apache-2.0
"""The permission of a ticket. It expires; the control service extends it, use renews it, and a cancel ends it.

A finalize ends the permission to write earlier. From then on nothing changes the image through the ticket.
"""

import asyncio

from ..errors import DENIED, Canceled, Forbidden, InUse
from ..storage.lease import Lease
from .ticket import Access, Ticket
from .traffic import Clock, Traffic


class Seal:
    """Decide whether a ticket may still write.

    A seal is open at first, closing while the image is verified, and then closed for good, or open again.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._quiet: asyncio.Event | None = None
        #: Whether the image is finalized. close() sets this, and nothing resets it.
        self.closed = False

    @property
    def open(self) -> bool:
        """Return whether changes may begin."""
        return not self.closed and self._quiet is None

    def require_open(self) -> None:
        """Raise InUse while the image is being verified, Forbidden after that."""
        if self.closed:
            raise Forbidden(f"{DENIED}: the image is finalized")
        if self._quiet is not None:
            raise InUse("The image is being verified")

    def begin_closing(self) -> asyncio.Event:
        """Refuse new changes, and return an event that is set when none runs. Raises as require_open() does.

        Lanes that may write end after their running requests. HTTP connections stay, NBD connections end.
        """
        self.require_open()
        quiet = self._quiet = asyncio.Event()
        lanes = self._traffic.changing_lanes()
        self.settle()
        for lane in lanes:
            lane.refuse()
        return quiet

    def settle(self) -> None:
        """Set the event of begin_closing() if no change runs."""
        if self._quiet is not None and not self._traffic.changing:
            self._quiet.set()

    def reopen(self) -> None:
        """Let changes begin again."""
        self._quiet = None

    def close(self) -> None:
        """Refuse all changes from now on. Call this when none runs: after begin_closing(), or before any has begun."""
        self.closed, self._quiet = True, None


class Permission:
    """Decide whether a ticket may be used.

    The seal can end writing before the ticket ends. The lease has the expiry of the ticket. C reads and renews it, too.
    """

    def __init__(self, ticket: Ticket, seal: Seal, clock: Clock) -> None:
        self._ticket = ticket
        self._clock = clock
        self.seal = seal
        self._created = clock()
        self.lease = Lease(self._created, ticket.timeout)
        #: Whether the transfer was cancelled. This is never reset.
        self.canceled = False

    def require(self, access: Access | None) -> None:
        """Raise Forbidden unless the ticket allows the access now. For None, the ticket only has to be valid.

        Raises InUse for writing while the image is being verified.
        """
        if not self.valid:
            raise Forbidden(DENIED)
        if access is not None:
            self._ticket.require(access)
        if access is Access.WRITE:
            self.seal.require_open()

    def require_not_canceled(self) -> None:
        """Raise Canceled if the transfer was cancelled."""
        if self.canceled:
            raise Canceled(DENIED)

    @property
    def valid(self) -> bool:
        """Return whether the ticket is neither cancelled nor expired."""
        return not (self.canceled or self.expired)

    @property
    def writable(self) -> bool:
        """Return whether the ticket allows writing, and the image is neither finalized nor being verified."""
        return self._ticket.may(Access.WRITE) and self.seal.open

    @property
    def expired(self) -> bool:
        """Return whether the ticket has expired. extend() revives it."""
        return self._clock() >= self.lease.expires

    @property
    def expired_for(self) -> float:
        """Return the seconds since the ticket has expired, negative if it has not."""
        return self._clock() - self.lease.expires

    @property
    def idle(self) -> float:
        """Return the seconds since the last request ended, or since the ticket was added."""
        return self._clock() - self.lease.active

    @property
    def used(self) -> float:
        """Return the seconds from the addition of the ticket to the end of the last request."""
        return self.lease.active - self._created

    def until(self, *, running: bool) -> float:
        """Return when the ticket would expire if the process ended now, or 0 if it was cancelled.

        Pass running=True if a request runs: its end renews the ticket, even one that has expired since it began.
        """
        if self.canceled:
            return 0.0
        return self.lease.renewed(self._clock()) if running else self.lease.expires

    def extend(self, timeout: float) -> None:
        """Let the ticket expire `timeout` seconds from now.

        0 ends the ticket now. Running requests go on, but do not renew it at their end. Only extend() revives it.
        """
        now = self._clock()
        if timeout:
            self.lease.expires = now + timeout
        else:
            self.lease.end(now)

    def renew(self) -> None:
        """Restart the ticket's timeout, because a request has ended."""
        self.lease.renew(self._clock())
