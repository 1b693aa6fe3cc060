# SPDX-License-Identifier: Apache-2.0
"""The contract between operations and storage."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from ioutil_ext import ffi, lib

from ..errors import Canceled
from ..image.extents import ExtentList, ExtentStream
from .buffers import MAX_BUFFER

#: 73 years: a ticket that is renewed for so long lives for ever, and twice that is still a number of C.
MAX_NANOSECONDS = 2**61


class ZeroMethod(StrEnum):
    """The method by which a range was zeroed, for logs and metrics."""

    NONE = "none"
    PUNCH_HOLE = "punch_hole"
    ZERO_RANGE = "zero_range"
    ALLOCATE = "allocate"
    PUNCH_AND_ALLOCATE = "punch_and_allocate"
    BLKZEROOUT = "blkzeroout"
    WRITE = "write"
    REMOTE = "remote"  # another server did it, in its way


class Context(StrEnum):
    """The property that extents are asked for."""

    ZERO = "zero"
    DIRTY = "dirty"


class Holder(Protocol):
    """An object that must live until an operation has ended: a buffer, an operation, plain memory."""

    def retain(self) -> None:
        """Count one more user."""

    def release(self) -> None:
        """Count one less."""


class Memory(Protocol):
    """Name the bytes in memory of one storage operation: a Slice of a buffer, or what C lends.

    The caller of the operation keeps them until it has ended. Code that uses them longer retains `buffer`.
    """

    def __len__(self) -> int:
        """Return how many."""
        ...

    @property
    def views(self) -> Sequence[memoryview]:
        """Return the memory, in parts."""
        ...

    @property
    def view(self) -> memoryview:
        """Return the memory. For one part only."""
        ...

    @property
    def address(self) -> Any:
        """Return the same for C."""
        ...

    @property
    def buffer(self) -> Holder:
        """Return the holder to retain."""
        ...


class Operation:
    """Follow one request through storage: bytes done, and whether it is cancelled.

    Counted like a buffer: each storage operation retains it until its completion, so that the request ends for its
    transfer only when storage has let go of it, whatever became of the task that awaited. `control` is what C reads and
    writes; other backends use `done` and `canceled`. Lives on one loop; `cancel` may be called from any thread.
    """

    __slots__ = ("_answered", "_holders", "_on_end", "control", "length", "offset", "on_cancel")

    def __init__(self, offset: int = 0, length: int = 0, on_end: "Callable[[Operation], None] | None" = None) -> None:
        self.control = ffi.new("iou_control *")
        self.offset = offset
        self.length = length
        #: Called, in any thread, when the operation is cancelled; ends a wait for the client.
        self.on_cancel: Callable[[], None] | None = None
        self._on_end = on_end
        self._holders = 1
        self._answered = 0.0  # when storage was last asked or last answered

    @property
    def done(self) -> int:
        """Return the bytes finished so far."""
        return int(self.control.done)

    def advance(self, count: int) -> None:
        """Add count bytes, for backends that are not C."""
        self.control.done += count

    @property
    def canceled(self) -> bool:
        """Tell whether the operation must end at its next step."""
        return bool(self.control.canceled)

    def require_running(self) -> None:
        """Raise Canceled when it must end."""
        if self.canceled:
            raise Canceled

    def cancel(self) -> None:
        """Ask the operation to end at its next step."""
        self.control.canceled = 1
        callback = self.on_cancel
        if callback is not None:
            callback()

    @property
    def in_storage(self) -> bool:
        """Tell whether storage owes an answer."""
        return self._holders > 1

    @property
    def storage_wait(self) -> float:
        """Return for how many seconds storage has owed an answer; 0 when nothing was asked."""
        return time.monotonic() - self._answered if self.in_storage else 0.0

    def retain(self) -> None:
        """Keep the operation running until one more release()."""
        self._answered = time.monotonic()  # first: storage_wait in another thread must not see an old start
        self._holders += 1

    def release(self) -> None:
        """Let go. The last one ends the operation."""
        self._holders -= 1
        self._answered = time.monotonic()
        if self._holders == 0 and self._on_end is not None:
            self._on_end(self)

    def ended(self, _: object) -> None:
        """Let go, as the callback of a future."""
        self.release()


class Lease:
    """Hold until when a ticket lives, and when it was used last: for C, too, which renews it while it serves requests.

    Seconds, on the clock of C where that is used: time.monotonic(). `shared` is what C reads and writes. What Python
    changes it changes under the transfer's lock; C renews at any time.
    """

    __slots__ = ("shared",)

    def __init__(self, now: float, timeout: float) -> None:
        self.shared = ffi.new("iou_lease *")
        self.shared.timeout = _nanoseconds(timeout)
        self.expires = now + timeout
        self.active = now

    @property
    def expires(self) -> float:
        """Return when the ticket expires."""
        return float(self.shared.expires / 1e9)

    @expires.setter
    def expires(self, when: float) -> None:
        self.shared.expires = _nanoseconds(when) & ~lib.IOU_LEASE_ENDED

    def end(self, now: float) -> None:
        """Let the ticket expire now. No request that ends later renews it, whenever it began."""
        self.shared.expires = _nanoseconds(now) | lib.IOU_LEASE_ENDED

    def renew(self, now: float) -> None:
        """Note that a request has ended: the ticket lives on from now, unless it was ended or lives longer anyway."""
        self.active = now
        if not self.shared.expires & lib.IOU_LEASE_ENDED:
            self.expires = max(self.expires, now + self.shared.timeout / 1e9)

    @property
    def active(self) -> float:
        """Return when the last request ended."""
        return float(self.shared.active / 1e9)

    @active.setter
    def active(self, when: float) -> None:
        self.shared.active = _nanoseconds(when)


def _nanoseconds(seconds: float) -> int:
    return min(round(seconds * 1e9), MAX_NANOSECONDS)


@dataclass(frozen=True)
class BackendInfo:
    """What a backend is and can do. Sizes in bytes."""

    size: int
    block_size: int
    can_grow: bool  # a write past the end makes the image larger
    can_fast_zero: bool  # nothing has shown yet that zeroing a range needs data I/O
    has_dirty: bool
    max_readers: int | None = None  # None: as many as the configuration allows
    max_writers: int | None = None
    can_fast_allocate: bool = False  # can_fast_zero, where the range stays provisioned
    unflushed: bool = True  # maybe no flush has covered all changes, or one has failed
    identity: object = None  # which image it is: equal for two backends of one; None: nobody knows
    reads_zero: bool = False  # all of it reads as zeros, and nothing was written since it was opened
    #: For a long write beside which no other runs: its pieces end at multiples of this; so many under way at a time.
    write_piece: int = MAX_BUFFER
    writes: int = 1
    can_flush: bool = True  # there is a way to put what was written on stable storage


class Backend(Protocol):
    """Move bytes between buffers and an image.

    Offsets are bytes from the start of the image; any alignment works, whole blocks from page-aligned memory are the
    fast way. Each method moves everything or raises: StorageError, Canceled, NotFast, OutOfRange. A method that
    returns an awaitable has started when it returns, so that the caller can do other work before it awaits. The
    awaiting task may be cancelled at any time: buffer and operation are held until the storage has let go of them.
    """

    @property
    def info(self) -> BackendInfo:
        """Return what is known now; asks nobody. Raises Canceled when the image was closed: connections see it late."""
        ...

    @property
    def generation(self) -> int:
        """Return a number that is another one after any change of the content through this server.

        0: it changes just now, or nobody knows.
        """
        ...

    def refresh(self, op: Operation) -> Awaitable[object]:
        """Ask storage for the size again: other programs may have changed the image."""
        ...

    def pread(self, op: Operation, piece: Memory, offset: int) -> Awaitable[object]:
        """Fill the piece with the bytes at offset."""
        ...

    def pwrite(self, op: Operation, piece: Memory, offset: int, *, fua: bool = False) -> Awaitable[object]:
        """Write the piece at offset. fua: on stable storage at the end."""
        ...

    def zero(
        self, op: Operation, offset: int, length: int, *, allocate: bool, fast_only: bool = False, fua: bool = False
    ) -> Awaitable[ZeroMethod]:
        """Make the range read as zeros. allocate: it stays provisioned. fast_only: NotFast rather than data I/O."""
        ...

    def trim(self, op: Operation, offset: int, length: int) -> Awaitable[object]:
        """Free whole blocks inside the range where the storage can; no promise on what they read as."""
        ...

    def flush(self, op: Operation) -> Awaitable[object]:
        """Put everything that completed before on stable storage. Raises CannotFlush: the storage has no flush.

        Once it has failed it fails for ever: the next flush may succeed although data was lost (measured, see
        ioutil_ext/README.md). Each kind of storage remembers the failure itself: files in C, in io_flush_failed(); NBD
        in ReconnectingSession.failed(); HTTP in HttpBackend.flush(). TransferImage remembers it beyond a close.
        """
        ...

    def extents(self, op: Operation, offset: int, length: int, context: Context) -> ExtentStream:
        """Tell what is in the range as far as the image goes, each list from where the one before ends.

        The size is looked at again. NotFound: the context is not to be had.
        """
        ...

    def extent_at(self, op: Operation, offset: int, length: int) -> Awaitable[ExtentList]:
        """Return the extent at offset, of Context.ZERO, and maybe those after it. Empty: the image ends before.

        For clients that ask for one extent after the other: only what is needed for one is looked up.
        """
        ...

    def interrupt(self) -> None:
        """End operations that were cancelled and wait for a thread or a connection. Thread-safe."""
        ...

    def close(self) -> Awaitable[None]:
        """Close the image, after its operations have ended. No other method may be called after it."""
        ...
