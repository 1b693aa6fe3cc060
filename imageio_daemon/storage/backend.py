# SPDX-License-Identifier: Apache-2.0
"""The interface between operations and storage: Backend, and the objects that both sides use."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ioutil_ext import ffi

from ..errors import Canceled
from ..image.extents import ExtentStream
from ..runtime import request_activity
from ..runtime.request_activity import Wait
from .buffers import Slice
from .durable import DurableRecord
from .operation import Kind, WaitingOperation


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


class Context(StrEnum):
    """The property that extents report."""

    ZERO = "zero"
    DIRTY = "dirty"
    DURABLE = "durable"  # from the record of the ticket, not from the backend: operations.durable()


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
        """Tell whether the operation is cancelled, and must end at its next step."""
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
        """Tell whether an operation of storage has not completed yet."""
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
        self._answered = time.monotonic()  # first, so that another thread which reads storage_wait sees no old time
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


@dataclass(frozen=True)
class BackendInfo:
    """The properties and abilities of an open image. Sizes are in bytes."""

    size: int
    block_size: int  # the least that the storage reads or writes; of an NBD server its minimum
    can_grow: bool  # a write past the end makes the image larger
    can_fast_zero: bool  # as far as is known, zeroing a range needs no data I/O
    can_fast_allocate: bool = False  # as can_fast_zero, for a range that stays provisioned
    unflushed: bool = True  # there may be changes that no flush has covered, or a flush has failed
    identity: object = None  # equal for two backends of the same image; None if unknown
    lasting: str | None = None  # an identity that outlives this process, if there is one; see lasting.py
    can_flush: bool = True  # the storage can put changes on stable storage


class Backend(Protocol):
    """What Python does with an image; lanes write and trim it by the handle of C.

    Offsets are bytes from the start of the image. Any alignment works; whole blocks in page-aligned memory are fastest.
    Each method does all of its work, or raises StorageError, Canceled, NotFast or OutOfRange. A method that returns an
    awaitable has started its work when it returns, so the caller can do other work before it awaits. The awaiting task
    may be cancelled at any time, because memory and operation are retained until storage has finished with them.
    """

    @property
    def info(self) -> BackendInfo:
        """Return what is known now, without I/O. Raises Canceled if the image was closed, which may happen any time."""
        ...

    @property
    def generation(self) -> int:
        """Return a number that changes with every change of the content through this daemon.

        It is 0 while a change is under way, or if it is unknown.
        """
        ...

    def refresh(self, op: Operation) -> Awaitable[object]:
        """Ask storage for the size again, because other programs may have changed the image."""
        ...

    def available(self, op: Operation) -> Awaitable[int | None]:
        """Return for how many bytes of data the image has space, used or free, or None if that is not known.

        On storage that shares blocks between images, writing over bytes of the image may need new blocks. They are not
        counted.
        """
        ...

    def reads_zero(self, op: Operation) -> Awaitable[bool]:
        """Tell whether the whole image is known to read as zeros, and nothing was written since it was opened.

        Call this after refresh(), because other programs may have changed the image.
        """
        ...

    def pread(self, op: Operation, piece: Slice, offset: int) -> Awaitable[object]:
        """Fill the piece with the bytes of the image at offset. It is used until the operation has ended."""
        ...

    def zero(
        self, op: Operation, offset: int, length: int, *, allocate: bool, fast_only: bool = False
    ) -> Awaitable[ZeroMethod]:
        """Make the range read as zeros, and return the method.

        With `allocate` the range stays provisioned. With `fast_only` this raises NotFast if zeroing needs data I/O.
        """
        ...

    def flush(self, op: Operation) -> Awaitable[object]:
        """Put all changes that completed before on stable storage. Raises CannotFlush if the storage has no flush.

        The record of durable ranges gets the ranges inside that of the operation, or all if its length is 0.

        After one failure every flush fails, because the storage may report success although data was lost (measured,
        see ioutil_ext/README.md). Each kind of storage remembers the failure: files and qcow2 in io_flush_failed() of
        C, NBD in flush_failed() of nbd_client/operations.c. TransferImage remembers it after a close.
        """
        ...

    def extents(self, op: Operation, offset: int, length: int, context: Context) -> ExtentStream:
        """Return the extents of the range up to the end of the image. Each list starts where the one before it ends.

        Asks storage for the size again. Raises NotFound if the image does not have the context.
        """
        ...

    def bitmaps(self) -> Sequence[str]:
        """Return the NBD contexts of the bitmaps for Context.DIRTY. Raises NotFound, BitmapInUse."""
        ...

    def keep(self, record: DurableRecord) -> None:
        """Record what is durable. Call this at most once, before the first change.

        The backend does not use the record after close(). Then the caller releases it.
        """
        ...

    def interrupt(self) -> None:
        """End cancelled operations that wait for a thread or a connection."""
        ...

    def close(self) -> Awaitable[None]:
        """Close the image. Call this when its operations have ended, and call no other method afterwards."""
        ...
