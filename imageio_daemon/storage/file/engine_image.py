# SPDX-License-Identifier: Apache-2.0
"""The common base of backends whose images C opens: operations through the engine, and the handle for lanes."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ioutil_ext import lib

from ...errors import Canceled, Error
from ...image.extents import ExtentList
from ..backend import Memory, Operation
from ..completions import check
from ..durable import DurableRecord
from .engine import Engine

#: Extents of one call of C, in 384 KiB of records. An image of a million extents needs 61 calls in worker threads.
EXTENTS_BATCH = 16384


class EngineImage:
    """An image with a handle of C. Backend has the contract. Logs call it by its name."""

    def __init__(self, engine: Engine, handle: Any, name: str) -> None:
        self.name = name
        self._engine = engine
        self._handle = handle
        self._closed = False

    def refresh(self, op: Operation) -> "asyncio.Future[Any]":
        """Ask for the size again, because others may have changed the image. Fails if the image's server is gone."""
        return self._ranged(lib.IOU_STAT, op, 0, 0, 0)

    def pread(self, op: Operation, piece: Memory, offset: int) -> "asyncio.Future[Any]":
        """Fill the piece with the bytes at offset."""
        return self._engine.submit(
            lib.IOU_READ,
            self._handle,
            offset=offset,
            length=len(piece),
            memory=piece.address,
            memory_size=len(piece),
            control=op.control,
            holders=(op, piece.buffer),
            name=self.name,
            explain=self.explain,
        )

    def zero(
        self, op: Operation, offset: int, length: int, *, allocate: bool, fast_only: bool = False
    ) -> "asyncio.Future[Any]":
        """Make the range read as zeros."""
        flags = (lib.IOU_ALLOCATE if allocate else 0) | (lib.IOU_FAST_ONLY if fast_only else 0)
        return self._ranged(lib.IOU_ZERO, op, offset, length, flags)

    def flush(self, op: Operation) -> "asyncio.Future[Any]":
        """Put everything that completed before on stable storage."""
        return self._ranged(lib.IOU_FLUSH, op, op.offset, op.length, 0)

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

    def _extents(
        self, op: Operation, offset: int, length: int, most: int, flags: int = 0
    ) -> "asyncio.Future[ExtentList]":
        return self._engine.submit_extents(
            self._handle, op, offset, length, most=most, name=self.name, flags=flags, explain=self.explain
        )

    def _ranged(self, kind: int, op: Operation, offset: int, length: int, flags: int) -> "asyncio.Future[Any]":
        return self._engine.submit(
            kind,
            self._handle,
            flags=flags,
            offset=offset,
            length=length,
            control=op.control,
            holders=(op,),
            name=self.name,
            explain=self.explain,
        )
