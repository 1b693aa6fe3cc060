# SPDX-License-Identifier: Apache-2.0
"""Totals of what storage has done for a lane, for a transfer or for all of them."""

from collections import Counter
from typing import NamedTuple

from .operation import READING, Kind, Operation, ZeroMethod

_NO_BYTES: Counter[ZeroMethod] = Counter()
_NO_FAILURES: Counter[str] = Counter()


class Totals(NamedTuple):
    """Bytes that were read, written, and zeroed by each method, and failed operations of each kind.

    A byte counts each time, and also if it was read for a checksum. `limited` is the seconds in which transfers have
    waited for rate limits. Do not change the counters.
    """

    read: int = 0
    written: int = 0
    zeroed: Counter[ZeroMethod] = _NO_BYTES
    failed: Counter[str] = _NO_FAILURES
    limited: float = 0.0

    def plus(self, other: "Totals") -> "Totals":
        """Return the sum."""
        return Totals(
            self.read + other.read,
            self.written + other.written,
            self.zeroed + other.zeroed if other.zeroed else self.zeroed,
            self.failed + other.failed if other.failed else self.failed,
            self.limited + other.limited,
        )

    @property
    def moved(self) -> int:
        """Return the bytes that were read or written."""
        return self.read + self.written


def totals_of(op: Operation) -> Totals:
    """Return what an operation of Python has read or written so far."""
    if op.kind is Kind.WRITE:
        return Totals(written=op.done)
    return Totals(read=op.done) if op.kind in READING else Totals()
