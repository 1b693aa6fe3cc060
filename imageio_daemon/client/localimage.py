# SPDX-License-Identifier: Apache-2.0
"""Images on this side, through the storage engine: it writes whole or fails, and knows how each storage zeroes."""

import errno
import os
from pathlib import Path
from typing import Any

from ioutil_ext import ffi, lib

from .errors import LocalError


class LocalImage:
    """A file or block device that is written from several threads; blocks. Raises LocalError.

    Past the page cache where the storage can: data that is copied into it and written from there later costs twice the
    processor time (docs/performance.md).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        name = ffi.new("char[]", os.fsencode(path.resolve()))
        completion = self._execute(
            ffi.NULL, lib.IOU_OPEN, "open", flags=lib.IOU_WRITABLE, buffer=name, size=len(name) - 1
        )
        self._handle = completion.handle

    @property
    def size(self) -> int:
        """Return the size, in bytes."""
        info = ffi.new("iou_info *")
        lib.iou_handle_info(self._handle, info)
        return int(info.size)

    def write(self, offset: int, data: memoryview) -> None:
        """Write all of the data."""
        buffer = ffi.from_buffer(data)
        self._execute(self._handle, lib.IOU_WRITE, "write", offset=offset, buffer=buffer, size=len(data))

    def zero(self, offset: int, length: int) -> None:
        """Make the range read as zeros, and free its space where that is possible."""
        self._execute(self._handle, lib.IOU_ZERO, "write zeros to", offset=offset, length=length)

    def flush(self) -> None:
        """Return when all that was written is on stable storage."""
        self._execute(self._handle, lib.IOU_FLUSH, "flush")

    def close(self) -> None:
        """Close the file, when no other call runs. A second time does nothing."""
        if self._handle != ffi.NULL:
            handle, self._handle = self._handle, ffi.NULL
            self._execute(handle, lib.IOU_CLOSE, "close")

    def _execute(
        self,
        handle: Any,
        kind: int,
        what: str,
        *,
        flags: int = 0,
        offset: int = 0,
        length: int | None = None,
        buffer: Any = ffi.NULL,
        size: int = 0,
    ) -> Any:
        completion = ffi.new("iou_completion *")
        length = size if length is None else length
        lib.iou_execute(handle, kind, flags, offset, length, buffer, size, ffi.NULL, completion)
        if completion.error == errno.ENOTBLK:
            raise LocalError(f"{self._path} is not a regular file or block device")
        if completion.error:
            raise LocalError(f"can't {what} {self._path}: {os.strerror(completion.error)}")
        return completion
