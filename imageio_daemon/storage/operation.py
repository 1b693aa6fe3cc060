# SPDX-License-Identifier: Apache-2.0
"""Operations of requests that run in storage, and totals of what storage has done."""

import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, Protocol

from ioutil_ext import ffi

from ..errors import Canceled
from ..runtime import request_activity
from ..runtime.request_activity import Wait


class Kind(StrEnum):
    """What an operation of Python does. Operations of lanes have the names of C's iou_kind."""

    READ = "read"
    WRITE = "write"
    ZERO = "zero"
    FLUSH = "flush"
    EXTENTS = "extents"
    CHECKSUM = "checksum"
    STAT = "stat"


#: Seconds after which an operation counts as hanging. Usually one of a few MiB takes some ms.
HANGING = 30.0

#: The operations that read bytes of the image.
READING = (Kind.READ, Kind.CHECKSUM)


class WaitingOperation(NamedTuple):
    """An operation that storage has not completed. `seconds` is the time since it, or its last part, began."""

    seconds: float
    kind: str
    offset: int
    length: int


class ZeroMethod(StrEnum):
    """The method by which a range was zeroed, for logs and metrics."""

    NONE = "none"
    PUNCH_HOLE = "punch_hole"
    ZERO_RANGE = "zero_range"
    ALLOCATE = "allocate"
    PUNCH_AND_ALLOCATE = "punch_and_allocate"
    BLKZEROOUT = "blkzeroout"
    WRITE = "write"
    REMOTE = "remote"  # another server zeroed the range, by its own method


class Holder(Protocol):
    """An object that must live until an operation of storage has ended: a buffer or an Operation."""

    def retain(self) -> None:
        """Add one to the count of users."""

    def release(self) -> None:
        """Subtract one from the count of users."""


class Operation:
    """Hold the progress of one request in storage: the bytes that are done, and whether the request is cancelled.

    Each operation of storage retains this object until its completion. So the request ends for its transfer only when
    storage has released it, even if the awaiting task was cancelled. C reads and writes `control`; code in Python uses
    `done` and `canceled`. `offset` and `length` are the range in bytes. The last release() calls `on_end`.
    """

    __slots__ = (
        *("_answered", "_began", "_holders", "_on_end", "_work"),
        *("control", "kind", "length", "offset", "on_cancel"),
    )

    def __init__(
        self,
        offset: int = 0,
        length: int = 0,
        on_end: "Callable[[Operation], None] | None" = None,
        kind: Kind = Kind.STAT,
    ) -> None:
        self.control = ffi.new("iou_control *")
        self.kind = kind
        self.offset = offset
        self.length = length
        #: A function that cancel() calls, to end a wait for the client.
        self.on_cancel: Callable[[], None] | None = None
        self._on_end = on_end
        self._holders = 1
        self._work = request_activity.current()
        # Times of time.monotonic(): when storage got the operation, and when retain() or release() was last called.
        self._began = self._answered = 0.0

    @property
    def done(self) -> int:
        """Return the number of bytes that are done."""
        return int(self.control.done)

    @property
    def progress(self) -> int:
        """Return `done`, but not more than `length` if that is known: bytes that were read again count once."""
        return min(self.done, self.length) if self.length else self.done

    def advance(self, count: int) -> None:
        """Add bytes to `done`. Code in Python that moves bytes calls this."""
        self.control.done += count

    @property
    def canceled(self) -> bool:
        """Return whether the operation is cancelled, and must end at its next step."""
        return bool(self.control.canceled)

    def require_running(self) -> None:
        """Raise Canceled if the operation is cancelled."""
        if self.canceled:
            raise Canceled

    def cancel(self) -> None:
        """Make the operation end at its next step."""
        self.control.canceled = 1
        callback = self.on_cancel
        if callback is not None:
            callback()

    @property
    def in_storage(self) -> bool:
        """Return whether an operation of storage has not completed yet."""
        return self._holders > 1

    @property
    def storage_wait(self) -> float:
        """Return the seconds since storage last began or completed an operation; 0 if none is under way."""
        return time.monotonic() - self._answered if self.in_storage else 0.0

    @property
    def waiting(self) -> WaitingOperation | None:
        """Return what the operation waits for in storage, if it does."""
        return WaitingOperation(self.storage_wait, self.kind, self.offset, self.length) if self.in_storage else None

    def retain(self) -> None:
        """Keep the operation alive until one more release()."""
        self._answered = time.monotonic()
        if self._work is not None and not self.in_storage:
            self._began = self._work.wait(Wait.STORAGE)
        self._holders += 1

    def release(self) -> None:
        """Release one count. The last release() ends the operation."""
        was_there = self.in_storage
        self._holders -= 1
        self._answered = time.monotonic()
        if self._work is not None and was_there and not self.in_storage:
            self._work.go_on(Wait.STORAGE, self._began)
        if self._holders == 0 and self._on_end is not None:
            self._on_end(self)


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
