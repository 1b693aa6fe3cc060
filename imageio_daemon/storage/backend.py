# SPDX-License-Identifier: Apache-2.0
"""The interface between operations and storage: an open image, and what all kinds of storage have in common."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from ioutil_ext import ffi, lib

from ..errors import Canceled, Error, NotFound
from ..image.extents import ExtentList, ExtentStream
from .buffers import Slice
from .completions import RECORD_SIZE, check, new_records
from .durable import DurableRecord
from .engine import Engine
from .operation import Holder, Operation, ZeroMethod

#: Extents of one call of C, in 384 KiB of records. An image of a million extents needs 61 calls in worker threads.
EXTENTS_BATCH = 16384


class Context(StrEnum):
    """The property that extents report."""

    ZERO = "zero"
    DIRTY = "dirty"
    DURABLE = "durable"  # from the record of the ticket, not from the backend: operations.durable()


@dataclass(frozen=True)
class BackendInfo:
    """The properties and abilities of an open image. Sizes are in bytes."""

    size: int
    block_size: int  # the least that the storage reads or writes; for an NBD server its minimum
    can_grow: bool  # a write past the end makes the image larger
    can_fast_zero: bool  # as far as is known, zeroing a range needs no data I/O
    can_fast_allocate: bool = False  # as can_fast_zero, for a range that stays provisioned
    unflushed: bool = True  # there may be changes that no flush has covered, or a flush has failed
    identity: object = None  # equal for two backends of the same image; None if unknown
    lasting: str | None = None  # an identity that outlives this process, if there is one; see lasting.py
    can_flush: bool = True  # the storage can put changes on stable storage


class Backend(ABC):
    """What Python does with an image, by a handle of C; lanes write and trim it by the same handle.

    Offsets are bytes from the start of the image. Any alignment works; whole blocks in page-aligned memory are fastest.
    Each method does all of its work, or raises StorageError, Canceled, NotFast or OutOfRange. A method that returns an
    awaitable has started its work when it returns, so the caller can do other work before it awaits. The awaiting task
    may be cancelled at any time, because memory and operation are retained until storage has finished with them. Logs
    call the image by its name.
    """

    #: Flags of the question for extents of Context.ZERO.
    zero_flags: ClassVar[int] = 0

    def __init__(self, engine: Engine, handle: Any, name: str) -> None:
        self.name = name
        self._engine = engine
        self._handle = handle
        self._closed = False
        #: The reason if there is no bitmap.
        self._no_bitmap: Error = NotFound("The image has no dirty bitmap")

    @property
    @abstractmethod
    def info(self) -> BackendInfo:
        """Return what is known now, without I/O. Raises Canceled if the image was closed, which may happen any time."""

    @property
    def generation(self) -> int:
        """Return a number that changes with every change of the content through this daemon.

        It is 0 while a change is under way, or if it is unknown, as by default.
        """
        return 0

    def refresh(self, op: Operation) -> Awaitable[object]:
        """Ask storage for the size again, because other programs may have changed the image."""
        return self.submit(lib.IOU_STAT, op)

    async def available(self, op: Operation) -> int | None:
        """Return for how many bytes of data the image has space, used or free, or None if that is not known.

        On storage that shares blocks between images, writing over bytes of the image may need new blocks. They are not
        counted.
        """
        op.require_running()
        return None

    async def reads_zero(self, op: Operation) -> bool:
        """Return whether the whole image is known to read as zeros, and nothing was written since it was opened.

        Call this after refresh(), because other programs may have changed the image.
        """
        op.require_running()
        return False

    def pread(self, op: Operation, piece: Slice, offset: int) -> Awaitable[object]:
        """Fill the piece with the bytes of the image at offset. It is used until the operation has ended."""
        return self.submit(lib.IOU_READ, op, offset, len(piece), 0, piece.address, len(piece), piece.buffer)

    def read_into(self, op: Operation, offset: int, memory: memoryview, flags: int) -> Awaitable[object]:
        """Fill memory of no buffer with the bytes at offset, in a way that the flags tell."""
        size = len(memory)
        return self.submit(lib.IOU_READ, op, offset, size, flags, ffi.from_buffer("char[]", memory), size)

    def zero(
        self, op: Operation, offset: int, length: int, *, allocate: bool, fast_only: bool = False
    ) -> Awaitable[ZeroMethod]:
        """Make the range read as zeros, and return the method.

        With `allocate` the range stays provisioned. With `fast_only` this raises NotFast if zeroing needs data I/O.
        """
        flags = (lib.IOU_ALLOCATE if allocate else 0) | (lib.IOU_FAST_ONLY if fast_only else 0)
        return self.submit(lib.IOU_ZERO, op, offset, length, flags)

    def flush(self, op: Operation) -> Awaitable[object]:
        """Put all changes that completed before on stable storage. Raises CannotFlush if the storage has no flush.

        The record of durable ranges gets the ranges inside that of the operation, or all if its length is 0.

        After one failure every flush fails, because the storage may report success although data was lost (measured,
        see ioutil_ext/README.md). Each kind of storage remembers the failure: files and qcow2 in io_flush_failed() of
        C, NBD in flush_failed() of nbd_client/operations.c. TransferImage remembers it after a close.
        """
        return self.submit(lib.IOU_FLUSH, op, op.offset, op.length)

    async def extents(self, op: Operation, offset: int, length: int, context: Context) -> ExtentStream:
        """Yield the extents of the range up to the end of the image. Each list starts where the one before it ends.

        Asks storage for the size again. Raises NotFound if the image does not have the context, and BitmapInUse.
        """
        dirty = context is Context.DIRTY
        if dirty:
            self.bitmaps()
        end, flags, asked = offset + length, lib.IOU_DIRTY if dirty else self.zero_flags, length
        while offset < end and (
            found := await self.list_extents(op, offset, min(asked, end - offset), EXTENTS_BATCH, flags)
        ):
            # What an NBD server tells beyond a full batch is asked for again, so it is not asked for much more than
            # fits. Files know no such loss, and are asked a few times more behind a place with many extents.
            asked = (found.end - offset) * (1 if len(found) == EXTENTS_BATCH else 2)
            offset = found.end
            yield found

    def list_extents(self, op: Operation, offset: int, length: int, most: int, flags: int = 0) -> Awaitable[ExtentList]:
        """Return at most `most` extents from the beginning of the range. The last one ends with the image or before."""
        records = new_records(most)
        return self.submit(lib.IOU_EXTENTS, op, offset, length, flags, records, most * RECORD_SIZE)

    def bitmaps(self) -> Sequence[str]:
        """Return the NBD contexts of the bitmaps for Context.DIRTY, in the order of their flags in C.

        Raises NotFound, BitmapInUse if there is none.
        """
        if not (found := self._bitmaps()):
            raise self._no_bitmap.with_traceback(None)
        return found

    def keep(self, record: DurableRecord) -> None:
        """Have C record what is durable. Call this at most once, before the first change.

        The backend does not use the record after close(). Then the caller releases it.
        """
        if record.shared:
            check(lib.iou_handle_durable(self._handle, record.shared), "record what is durable")

    def interrupt(self) -> None:
        """End cancelled operations that wait for a thread or a connection."""
        self._engine.cancel_queued()

    @abstractmethod
    async def close(self) -> None:
        """Close the image. Call this when its operations have ended, and call no other method afterwards."""

    @contextmanager
    def lane_handle(self) -> Iterator[Any]:
        """Keep C's handle of the image open for the block. Raises Canceled if the image was closed."""
        if self._closed:
            raise Canceled("The image was closed")
        yield self._handle

    def explain(self, end: Any) -> Error | None:
        """Return the error of an operation, or None if C's numbers say it all. Thread-safe.

        `end` is C's, with error, syscall and size.
        """
        return None

    def submit(
        self,
        kind: int,
        op: Operation,
        offset: int = 0,
        length: int = 0,
        flags: int = 0,
        memory: Any = ffi.NULL,
        memory_size: int = 0,
        *holders: Holder,
    ) -> Awaitable[Any]:
        """Start an operation on the handle; see Engine.submit()."""
        return self._engine.submit(
            kind,
            self._handle,
            flags=flags,
            offset=offset,
            length=length,
            memory=memory,
            memory_size=memory_size,
            control=op.control,
            holders=(op, *holders),
            name=self.name,
            explain=self.explain,
        )

    def _bitmaps(self) -> Sequence[str]:
        return ()
