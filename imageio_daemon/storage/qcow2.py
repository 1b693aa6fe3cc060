# SPDX-License-Identifier: Apache-2.0
"""Images in the format qcow2 that the C engine opens itself, without a qemu-nbd."""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from ioutil_ext import ffi, lib

from ..errors import ImageInUse, StorageError, Unusable
from ..image.chain import NOT_SERVED, Chain, ChainMemory
from ..nbdproto.constants import DIRTY_BITMAP
from .backend import BackendInfo
from .completions import check
from .engine import Engine
from .file import FileBackend, opened, tell_writers
from .operation import Operation

log = logging.getLogger(__name__)

#: Seconds for which opening a locked image is tried again, and seconds between two tries: `qemu-img info` locks an
#: image for milliseconds.
LOCKED = 1.0
RETRY = 0.1

#: The possible results of opening an image, for metrics.
VERDICTS = ("native", "fallback", "refused")


class NotNative(Exception):
    """The engine cannot do all that the image needs. Nothing was changed, and qemu may open it."""


_verdicts = Counter(dict.fromkeys(VERDICTS, 0))


def verdicts() -> dict[str, int]:
    """Return the number of images with each verdict so far."""
    return dict(_verdicts)


def fall_back(path: str, why: str) -> NotNative:
    """Count and log that qemu has to open an image, and return the error. `why` is for the log."""
    _verdicts["fallback"] += 1
    log.info("%s is left to qemu-nbd: %s", path, why)
    return NotNative(why)


class Qcow2Backend(FileBackend):
    """Serve an image and the files below it by the engine. Backend has the contract."""

    _identity: object
    _first: int  # the _changes at the opening of an image that may read as zeros, else 0
    _bitmap: str | None  # the name of the bitmap for Context.DIRTY

    @classmethod
    async def start(
        cls, engine: Engine, found: Chain, *, writable: bool, shared: bool, bitmap: str | None = None
    ) -> Self:
        """Open the files of a chain, with a bitmap for Context.DIRTY. An image that lacks it is served without.

        Raises NotNative, ImageInUse, StorageError, and Unusable if the image is damaged.
        """
        path = found.files[0].path
        if not found.is_native:
            raise fall_back(path, "a file below it has another format")
        memory = ChainMemory(found.files, bitmap)
        handle = await _unlocked(engine, memory, path, writable=writable, shared=shared)
        counts = ffi.new("iou_qcow2_counts *")
        check(lib.iou_qcow2_get_counts(handle, counts), "count")
        leaks = f"; {counts.leaked} clusters leak, see qemu-img check -r leaks" if counts.leaked else ""
        log.info("%s is opened by the daemon itself%s", path, leaks)
        backend = cls(engine, handle, path, found.lasting)
        if writable:
            tell_writers(backend._info(), path, shared=shared)
        backend._identity = found.identity
        backend._first = backend._changes if writable and found.alone else 0
        backend._bitmap = bitmap
        if bitmap is not None and (why := memory.why_no_bitmap()) is not None:
            backend._bitmap, backend._no_bitmap = None, why
            log.warning("%s is served without the bitmap %s: %s", path, bitmap, why)
        return backend

    @property
    def info(self) -> BackendInfo:
        """Return the present properties, without I/O. Raises Canceled if the image was closed."""
        return replace(
            super().info,
            can_grow=False,
            identity=self._identity,
            can_fast_zero=True,
            can_fast_allocate=True,
        )

    @property
    def generation(self) -> int:
        """Return 0: the content also changes with the files below the image, and by a qemu-nbd of another ticket."""
        return 0

    @property
    def _changes(self) -> int:
        """Return a number that changes with any change of the file itself by the engine."""
        return super().generation

    async def reads_zero(self, op: Operation) -> bool:
        """Return whether the image reads as zeros by its tables, and was not changed since it was opened."""
        op.require_running()
        size = self.info.size
        if not self._first or self._changes != self._first:
            return False
        kinds = await self.list_extents(op, 0, size, 3)
        return kinds.end == size and all(extent.zero for extent in kinds)

    def _bitmaps(self) -> Sequence[str]:
        return () if self._bitmap is None else (DIRTY_BITMAP + self._bitmap,)


async def _unlocked(engine: Engine, memory: ChainMemory, path: str, *, writable: bool, shared: bool) -> Any:
    """Open a chain. If another program has locked it, try again for LOCKED seconds."""
    tries = round(LOCKED / RETRY)
    while True:
        try:
            return await _judged(engine, memory, path, writable=writable, shared=shared)
        except ImageInUse:
            tries -= 1
            if not tries:
                raise
            await asyncio.sleep(RETRY)


async def _judged(engine: Engine, memory: ChainMemory, path: str, *, writable: bool, shared: bool) -> Any:
    op = Operation()
    opening = engine.submit_open_qcow2(memory, path, writable=writable, shared=shared, op=op)
    try:
        handle = await opened(engine, opening, op, path)
    except StorageError:
        if memory.judgment == lib.IOU_QCOW2_FALLBACK:
            raise fall_back(path, memory.reason) from None
        if memory.judgment == lib.IOU_QCOW2_REFUSE:
            _verdicts["refused"] += 1
            told = f"{NOT_SERVED}{memory.reason}"
            raise Unusable(told, f"open {path}", "image header") from None
        raise
    _verdicts["native"] += 1
    return handle
