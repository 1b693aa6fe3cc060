# SPDX-License-Identifier: Apache-2.0
"""The common base of backends whose images C opens: operations through the engine, and the handle for lanes."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from ioutil_ext import ffi, lib

from ..errors import Canceled, Error, NotFound
from ..image.extents import ExtentList, ExtentStream
from .backend import Context, Holder, Operation
from .buffers import Slice
from .completions import RECORD_SIZE, check, new_records
from .durable import DurableRecord
from .engine import Engine

#: Extents of one call of C, in 384 KiB of records. An image of a million extents needs 61 calls in worker threads.
EXTENTS_BATCH = 16384


class EngineImage:
    """An image with a handle of C. Backend has the contract. Logs call it by its name."""

    #: Flags of the question for extents of Context.ZERO.
    zero_flags: ClassVar[int] = 0

    def __init__(self, engine: Engine, handle: Any, name: str) -> None:
        self.name = name
        self._engine = engine
        self._handle = handle
        self._closed = False
        #: The reason if there is no bitmap.
        self._no_bitmap: Error = NotFound("The image has no dirty bitmap")

    def refresh(self, op: Operation) -> "asyncio.Future[Any]":
        """Ask for the size again, because others may have changed the image. Fails if the image's server is gone."""
        return self.submit(lib.IOU_STAT, op)

    def pread(self, op: Operation, piece: Slice, offset: int) -> "asyncio.Future[Any]":
        """Fill the piece with the bytes at offset."""
        return self.submit(lib.IOU_READ, op, offset, len(piece), 0, piece.address, len(piece), piece.buffer)

    def read_into(self, op: Operation, offset: int, memory: memoryview, flags: int) -> "asyncio.Future[Any]":
        """Fill memory of no buffer with the bytes at offset, in a way that the flags tell."""
        size = len(memory)
        return self.submit(lib.IOU_READ, op, offset, size, flags, ffi.from_buffer("char[]", memory), size)

    def zero(
        self, op: Operation, offset: int, length: int, *, allocate: bool, fast_only: bool = False
    ) -> "asyncio.Future[Any]":
        """Make the range read as zeros."""
        flags = (lib.IOU_ALLOCATE if allocate else 0) | (lib.IOU_FAST_ONLY if fast_only else 0)
        return self.submit(lib.IOU_ZERO, op, offset, length, flags)

    def flush(self, op: Operation) -> "asyncio.Future[Any]":
        """Put everything that completed before on stable storage."""
        return self.submit(lib.IOU_FLUSH, op, op.offset, op.length)

    async def extents(self, op: Operation, offset: int, length: int, context: Context) -> ExtentStream:
        """Yield the extents. For Context.DIRTY, raises NotFound or BitmapInUse if no bitmap has what has changed."""
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

    def list_extents(
        self, op: Operation, offset: int, length: int, most: int, flags: int = 0
    ) -> "asyncio.Future[ExtentList]":
        """Return at most `most` extents from the beginning of the range. The last one ends with the image or before."""
        records = new_records(most)
        return self.submit(lib.IOU_EXTENTS, op, offset, length, flags, records, most * RECORD_SIZE)

    def bitmaps(self) -> Sequence[str]:
        """Return the bitmaps, in the order of their flags in C. Raises NotFound, BitmapInUse if there is none."""
        if not (found := self._bitmaps()):
            raise self._no_bitmap.with_traceback(None)
        return found

    def keep(self, record: DurableRecord) -> None:
        """Have C record what is durable."""
        if record.shared:
            check(lib.iou_handle_durable(self._handle, record.shared), "record what is durable")

    def interrupt(self) -> None:
        """End cancelled operations that wait for a thread."""
        self._engine.cancel_queued()

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
    ) -> "asyncio.Future[Any]":
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
