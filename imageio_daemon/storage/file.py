# SPDX-License-Identifier: Apache-2.0
"""Raw files and block devices, through the C engine."""

import asyncio
import contextlib
import logging
from typing import Any

from ioutil_ext import ffi, lib

from ..errors import Canceled, Error
from ..image import lasting
from ..runtime.background import in_thread
from .backend import Backend, BackendInfo
from .engine import Engine
from .operation import Operation

log = logging.getLogger(__name__)

#: C's UINT64_MAX.
UNKNOWN_SPACE = 2**64 - 1
_INFO = ffi.typeof("iou_info *")


class FileBackend(Backend):
    """Serve one open file or block device. Backend has the contract."""

    def __init__(self, engine: Engine, handle: Any, path: str, lasting_identity: str | None = None) -> None:
        super().__init__(engine, handle, path)
        self.path = path
        self._lasting = lasting_identity
        self._known: tuple[tuple[object, ...], BackendInfo] | None = None

    @classmethod
    async def open(cls, engine: Engine, path: str, *, writable: bool, shared: bool = False) -> "FileBackend":
        """Open the image at a path. Raises StorageError if that fails, or if it is no file or block device.

        A writable image is locked against other programs, unless it is `shared`. Raises ImageInUse if one of them uses
        it.
        """
        op = Operation()
        handle = await opened(engine, engine.submit_open(path, writable=writable, shared=shared, op=op), op, path)
        info = ffi.new("iou_info *")
        lib.iou_handle_info(handle, info)
        if not info.direct:
            log.info("no direct I/O on %s: it is used through the page cache", path)
        if writable:
            tell_writers(info, path, shared=shared)
        try:
            return cls(engine, handle, path, await _lasting(info))
        except BaseException:
            await _close(engine, handle, path)
            raise

    @property
    def info(self) -> BackendInfo:
        """Return the present properties, without I/O. Raises Canceled if the image was closed."""
        info = self._info()
        # Each request asks for it, and it is nearly always the same. Making it takes ten times as long as comparing.
        changing = (info.size, info.can_punch_hole, info.can_zero_range, info.can_fallocate)
        known = self._known
        if known is None or known[0] != changing:
            known = self._known = (changing, _describe(info, self._lasting))
        return known[1]

    @property
    def generation(self) -> int:
        """Return a number that changes with any change of the content, by any handle; or 0 if it is unknown."""
        return 0 if self._closed else int(lib.iou_handle_generation(self._handle))

    async def available(self, op: Operation) -> int | None:
        """Return the bytes that are free in the file system or already the file's, or None for block devices."""
        space: int = await self.submit(lib.IOU_STAT, op, flags=lib.IOU_SPACE)
        return None if space == UNKNOWN_SPACE else space

    async def reads_zero(self, op: Operation) -> bool:
        """Return whether the image was one hole at the last refresh(), and this process has written nothing."""
        op.require_running()
        return bool(self._info().reads_zero)

    async def close(self) -> None:
        """Close the image. When this returns, its descriptor is closed."""
        self._closed = True
        await self._engine.close(self._handle, self.path)

    def _info(self) -> Any:
        info = ffi.new(_INFO)
        if self._closed:
            raise Canceled("The image was closed")
        lib.iou_handle_info(self._handle, info)
        return info


async def opened(engine: Engine, opening: "asyncio.Future[Any]", op: Operation, path: str) -> Any:
    """Return the handle that is being opened. If the awaiting task is cancelled, close it."""
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        op.cancel()
        engine.cancel_queued()
        # Storage must have closed the image before this returns: the removal of a ticket waits for it. A task that is
        # cancelled once more leaves the close behind.
        await asyncio.shield(_close_opened(engine, opening, path))
        raise


async def _close_opened(engine: Engine, opening: "asyncio.Future[Any]", path: str) -> None:
    await asyncio.wait([opening])
    if opening.exception() is None:
        await _close(engine, opening.result(), path)


async def _close(engine: Engine, handle: Any, path: str) -> None:
    with contextlib.suppress(Error):  # an engine that ends closes it
        await engine.close(handle, path)


def tell_writers(info: Any, path: str, *, shared: bool) -> None:
    """Log what may harm an image that is open for writing."""
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
        unflushed=bool(info.writable),  # other writers of the file share its pages
        identity=(info.device, info.inode),  # no inode of a file is 0
        lasting=lasting_identity,
    )
