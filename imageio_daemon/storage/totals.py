# SPDX-License-Identifier: Apache-2.0
"""What storage has done for a lane, a transfer or all of them."""

from collections import Counter
from dataclasses import dataclass, field

from .backend import Operation, ZeroMethod
from .running import READING, Kind


@dataclass
class Totals:
    """Bytes that were read, written, and zeroed by each method; operations that storage has failed, by kind.

    Bytes count each time. Those that are read for a checksum count, too.
    """

    read: int = 0
    written: int = 0
    zeroed: Counter[ZeroMethod] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    def count(self, op: Operation) -> None:
        """Add the bytes that an operation of Python has read or written so far."""
        if op.kind is Kind.WRITE:
            self.written += op.done
        elif op.kind in READING:
            self.read += op.done

    def plus(self, other: "Totals") -> "Totals":
        """Return the sum."""
        return Totals(
            self.read + other.read,
            self.written + other.written,
            self.zeroed + other.zeroed if other.zeroed else self.zeroed,
            self.failed + other.failed if other.failed else self.failed,
        )

    @property
    def moved(self) -> int:
        """Return the bytes that were read or written."""
        return self.read + self.written
