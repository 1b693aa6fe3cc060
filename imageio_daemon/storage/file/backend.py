# SPDX-License-Identifier: Apache-2.0
"""Raw files and block devices, through the C engine."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ioutil_ext import ffi, lib

from ...errors import Canceled, Error, NotFound
from ...image.extents import ExtentList, ExtentStream
from .. import lasting
from ..backend import BackendInfo, Context, Memory, Operation
from ..completions import check
from ..durable import DurableRecord
from ..threads import in_thread
from .engine import Engine

log = logging.getLogger(__name__)

#: Extents asked for at once, in 384 KiB of records: an image of a million extents costs 61 thread hops.
EXTENTS_BATCH = 16384
#: C's UINT64_MAX.
UNKNOWN_SPACE = 2**64 - 1
_INFO = ffi.typeof("iou_info *")


class FileBackend:
    """Serve one open file or block device; see Backend for the contract."""

    def __init__(self, engine: Engine, handle: Any, path: str, lasting_identity: str | None = None) -> None:
        self._engine = engine
        self.path = path
        self._handle = handle
        self._lasting = lasting_identity
        # A connection of another loop may ask about the image while it is being closed, which C does without the GIL.
        self._lock = threading.Lock()
        self._closed = False
        self._known: tuple[tuple[object, ...], BackendInfo] | None = None

    @classmethod
    async def open(cls, engine: Engine, path: str, *, writable: bool, shared: bool = False) -> "FileBackend":
        """Open the image at path. StorageError: it is not there, may not be opened, or is no file or block device.

        An image that is writable here is locked against other programs. ImageInUse: one of them uses it. shared: it is
        not locked.
        """
        op = Operation()
        opening = engine.submit_open(path, writable=writable, shared=shared, op=op)
        try:
            handle = await asyncio.shield(opening)
        except asyncio.CancelledError:
            op.cancel()
            engine.cancel_queued()
            # Storage must have closed the image before this returns: the removal of a ticket waits for it.
            await asyncio.wait([opening])
            if opening.exception() is None:
                await engine.submit(lib.IOU_CLOSE, opening.result(), name=path)
            raise
        info = ffi.new("iou_info *")
        lib.iou_handle_info(handle, info)
        if not info.direct:
            log.info("no direct I/O on %s: through the page cache", path)
        if writable:
            _tell_writers(info, path, shared=shared)
        return cls(engine, handle, path, await _lasting(info))

    @property
    def info(self) -> BackendInfo:
        """Return what is known now; asks nobody. Raises Canceled when the image was closed."""
        info = self._info()
        # Each request asks for it, and it is nearly always the same: making it takes ten times as long as comparing.
        changing = (info.size, info.can_punch_hole, info.can_zero_range, info.can_fallocate)
        known = self._known
        if known is None or known[0] != changing:
            known = self._known = (changing, _describe(info, self._lasting))
        return known[1]

    @property
    def generation(self) -> int:
        """Return a number that is another one after any change of the content, by whichever handle; 0: unknown."""
        with self._lock:
            return 0 if self._closed else int(lib.iou_handle_generation(self._handle))

    def refresh(self, op: Operation) -> "asyncio.Future[Any]":
        """Look at the size again: others may have changed the image."""
        return self._ranged(lib.IOU_STAT, op, 0, 0, 0)

    async def available(self, op: Operation) -> int | None:
        """Return what is free in the file system, and what the file has of it; None for block devices."""
        space: int = await self._ranged(lib.IOU_STAT, op, 0, 0, lib.IOU_SPACE)
        return None if space == UNKNOWN_SPACE else space

    async def reads_zero(self, op: Operation) -> bool:
        """Tell whether the image was one hole at the last refresh(), and nothing was written by this process."""
        op.require_running()
        return bool(self._info().reads_zero)

    def pread(self, op: Operation, piece: Memory, offset: int) -> "asyncio.Future[Any]":
        """Fill the piece with the bytes at offset."""
        return self._move(lib.IOU_READ, op, piece, offset, 0)

    def pwrite(self, op: Operation, piece: Memory, offset: int, *, fua: bool = False) -> "asyncio.Future[Any]":
        """Write the piece at offset."""
        return self._move(lib.IOU_WRITE, op, piece, offset, lib.IOU_FUA if fua else 0)

    def zero(
        self, op: Operation, offset: int, length: int, *, allocate: bool, fast_only: bool = False, fua: bool = False
    ) -> "asyncio.Future[Any]":
        """Make the range read as zeros."""
        flags = (
            (lib.IOU_ALLOCATE if allocate else 0)
            | (lib.IOU_FAST_ONLY if fast_only else 0)
            | (lib.IOU_FUA if fua else 0)
        )
        return self._ranged(lib.IOU_ZERO, op, offset, length, flags)

    def trim(self, op: Operation, offset: int, length: int) -> "asyncio.Future[Any]":
        """Free whole blocks inside the range."""
        return self._ranged(lib.IOU_TRIM, op, offset, length, 0)

    def flush(self, op: Operation) -> "asyncio.Future[Any]":
        """Put everything that completed before on stable storage."""
        return self._ranged(lib.IOU_FLUSH, op, op.offset, op.length, 0)

    async def extents(self, op: Operation, offset: int, length: int, context: Context) -> ExtentStream:
        """Tell holes from data; a hole of a raw image is a zero extent, nothing lies behind it."""
        if context is not Context.ZERO:
            raise NotFound("The image has no dirty bitmap")
        end = offset + length
        while offset < end and (found := await self._extents(op, offset, end - offset, EXTENTS_BATCH)):
            offset = found.end
            yield found

    def extent_at(self, op: Operation, offset: int, length: int) -> "asyncio.Future[ExtentList]":
        """Tell whether there is a hole or data, and what follows: after a hole, that it ends is known by that."""
        return self._extents(op, offset, length, 2)

    def keep(self, record: DurableRecord) -> None:
        """Let C record what is durable."""
        if record.shared:
            check(lib.iou_handle_durable(self._handle, record.shared), "record what is durable")

    def interrupt(self) -> None:
        """End operations that were cancelled and wait for a thread."""
        self._engine.cancel_queued()

    async def close(self) -> None:
        """Close the image; the descriptor is closed when this returns."""
        with self._lock:
            self._closed = True
        await self._engine.submit(lib.IOU_CLOSE, self._handle, name=self.path)

    @contextmanager
    def lane_handle(self) -> Iterator[Any]:
        """Keep C's handle of the image open for the block. Raises Canceled when the image was closed."""
        with self._lock:
            if self._closed:
                raise Canceled("The image was closed")
            yield self._handle

    @property
    def name(self) -> str:
        """Return what the image is called in logs."""
        return self.path

    def take_failure(self, control: Any) -> Error | None:
        """Return None: C's completion says why an operation of a file failed."""
        return None

    def _info(self) -> Any:
        info = ffi.new(_INFO)
        with self._lock:
            if self._closed:
                raise Canceled("The image was closed")
            lib.iou_handle_info(self._handle, info)
        return info

    def _move(self, kind: int, op: Operation, piece: Memory, offset: int, flags: int) -> "asyncio.Future[Any]":
        return self._engine.submit(
            kind,
            self._handle,
            flags=flags,
            offset=offset,
            length=len(piece),
            memory=piece.address,
            memory_size=len(piece),
            control=op.control,
            holders=(op, piece.buffer),
            name=self.path,
        )

    def _extents(self, op: Operation, offset: int, length: int, most: int) -> "asyncio.Future[ExtentList]":
        return self._engine.submit_extents(self._handle, op, offset, length, most=most, name=self.path)

    def _ranged(self, kind: int, op: Operation, offset: int, length: int, flags: int) -> "asyncio.Future[Any]":
        return self._engine.submit(
            kind,
            self._handle,
            flags=flags,
            offset=offset,
            length=length,
            control=op.control,
            holders=(op,),
            name=self.path,
        )


def _tell_writers(info: Any, path: str, *, shared: bool) -> None:
    if info.writers > 1:
        log.warning("%s is written to by %d tickets at a time", path, info.writers)
    if not shared and not info.locked:
        log.warning("%s cannot be locked on its file system: other programs may change it at the same time", path)


async def _lasting(info: Any) -> str | None:
    device, size = int(info.device), int(info.size)
    if info.type == lib.IOU_FILE:
        return lasting.of_file(device, int(info.inode), info.birth)
    return await in_thread(lambda: lasting.of_device(device, size))


def _describe(info: Any, lasting_identity: str | None) -> BackendInfo:
    is_file = info.type == lib.IOU_FILE
    allocates = info.can_zero_range or (info.can_punch_hole and info.can_fallocate)
    return BackendInfo(
        size=info.size,
        block_size=info.block_size,
        can_grow=is_file,
        # On a device the kernel may write zeros for all but PUNCH_HOLE.
        can_fast_zero=bool(info.can_punch_hole or (is_file and info.can_zero_range)),
        can_fast_allocate=bool(is_file and allocates),
        has_dirty=False,
        unflushed=bool(info.writable),  # by whomever: writers beside us share the pages
        identity=(info.device, info.inode),  # no inode of a file is 0
        lasting=lasting_identity,
    )
