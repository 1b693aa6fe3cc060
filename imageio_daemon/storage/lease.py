# SPDX-License-Identifier: Apache-2.0
"""The lease of a ticket, in memory that Python and C share."""

import itertools

from ioutil_ext import ffi, lib

_numbers = itertools.count(1)

#: The latest time in a lease, in ns: 73 years. The sum of two such times still fits into a uint64_t of C.
MAX_NANOSECONDS = 2**61


class Lease:
    """Hold the expiry of a ticket and the time of its last use, in memory that Python and C share.

    Times are seconds of time.monotonic(), which is the clock of C (CLOCK_MONOTONIC). `shared` is the iou_lease of C.
    Python changes it only on the event loop. C may renew it at any time, while it serves requests.
    """

    __slots__ = ("shared",)

    def __init__(self, now: float, timeout: float) -> None:
        self.shared = ffi.new("iou_lease *")
        self.shared.number = next(_numbers)
        self.shared.timeout = _nanoseconds(timeout)
        self.expires = now + timeout
        self.active = now

    @property
    def number(self) -> int:
        """Return the number of this lease, which no other lease of the process has had."""
        return int(self.shared.number)

    @property
    def expires(self) -> float:
        """Return the time at which the ticket expires."""
        return float(self.shared.expires / 1e9)

    @expires.setter
    def expires(self, when: float) -> None:
        self.shared.expires = _nanoseconds(when) & ~lib.IOU_LEASE_ENDED

    def end(self, now: float) -> None:
        """Let the ticket expire now. No request renews it any more, even if it began before."""
        self.shared.expires = _nanoseconds(now) | lib.IOU_LEASE_ENDED

    def renew(self, now: float) -> None:
        """Note that a request has ended, and let the ticket live for its timeout from now at least.

        A ticket that end() has ended is not renewed.
        """
        self.active = now
        if not self.shared.expires & lib.IOU_LEASE_ENDED:
            self.expires = self.renewed(now)

    def renewed(self, now: float) -> float:
        """Return the time at which the ticket would expire if a request ended now."""
        ended = self.shared.expires & lib.IOU_LEASE_ENDED
        return self.expires if ended else max(self.expires, now + self.shared.timeout / 1e9)

    @property
    def active(self) -> float:
        """Return the time at which the last request ended."""
        return float(self.shared.active / 1e9)

    @active.setter
    def active(self, when: float) -> None:
        self.shared.active = _nanoseconds(when)


def _nanoseconds(seconds: float) -> int:
    return min(round(seconds * 1e9), MAX_NANOSECONDS)
