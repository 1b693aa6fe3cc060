# SPDX-License-Identifier: Apache-2.0
"""Local images to write to, by the C extension. A write writes all or fails; zeroing uses the storage's best method."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

from ioutil_ext import ffi, lib

from ...units import KiB
from ..errors import LocalError

#: Errors of pwrite(2) on storage that accepts O_DIRECT in open(2) only.
NOT_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)

#: Most bytes of a write through the page cache. Such a write has whole pages, so that no other write has a part of
#: them. The kernel joins many short writes and allocates for all of them at once, while each direct write into a hole
#: waits for the disk under the lock of the file. 4 threads on ext4, with the flush at the end, measured twice: 20,000 x
#: 4 KiB took 1.1 and 1.1 s, direct 9.6 and 3.4 s, with 0.2 and 0.7 s of processor time; 10,000 x 16 KiB 1.1 and 2.1 s,
#: direct 2.2 and 1.3 s; 5,000 x 64 KiB 6.1 and 4.1 s, direct 1.6 and 1.1 s.
SHORT = 16 * KiB
PAGE = 4 * KiB


class LocalImage:
    """A file or block device that several threads write. Thread-safe. Methods block, and raise LocalError.

    Uses direct I/O where the storage supports it, except for short writes. Long writes through the page cache would
    need twice the processor time (docs/performance/experiments.md).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opening = threading.Lock()
        self._handles: list[Any] = []  # the second one, without direct I/O, is opened when it is needed
        self._is_direct = True
        self._open(0)

    @property
    def size(self) -> int:
        """Return the size, in bytes."""
        return size_of(self._handles[0])

    def write(self, offset: int, data: memoryview) -> None:
        """Write all of the data."""
        is_short = len(data) <= SHORT and offset % PAGE == 0 and len(data) % PAGE == 0
        arguments = offset, len(data), ffi.from_buffer(data), len(data)
        self._change(lib.IOU_WRITE, "write", *arguments, direct=not is_short)

    def zero(self, offset: int, length: int) -> None:
        """Make the range read as zeros, and deallocate it where the storage can."""
        self._change(lib.IOU_ZERO, "write zeros to", offset, length, ffi.NULL, 0)

    def flush(self) -> None:
        """Put all that was written, by either handle, on stable storage."""
        self._checked("flush", execute(self._handles[0], lib.IOU_FLUSH))

    def finish(self) -> None:
        """Flush and close."""
        self.flush()
        self.close()

    def stop(self) -> None:
        """Do nothing: writes end by themselves."""

    def close(self) -> None:
        """Close the file. Call this when no other call runs. Later calls do nothing."""
        while self._handles:
            self._checked("close", execute(self._handles.pop(), lib.IOU_CLOSE))

    def _open(self, flags: int) -> None:
        name = ffi.new("char[]", os.fsencode(self._path.absolute()))
        flags |= lib.IOU_WRITABLE | lib.IOU_SHARED  # in_use.py has the locks
        completion = execute(ffi.NULL, lib.IOU_OPEN, flags, 0, len(name) - 1, name, len(name) - 1)
        self._handles.append(self._checked("open", completion).handle)

    def _change(self, kind: int, what: str, *arguments: Any, direct: bool = True) -> None:
        direct = direct and self._is_direct
        completion = execute(self._handles[0] if direct else self._buffered(), kind, 0, *arguments)
        if direct and completion.error in NOT_DIRECT:
            self._is_direct = False
            completion = execute(self._buffered(), kind, 0, *arguments)
        self._checked(what, completion)

    def _buffered(self) -> Any:
        """Return the handle without direct I/O."""
        with self._opening:
            if len(self._handles) == 1:
                self._open(lib.IOU_BUFFERED)
            return self._handles[1]

    def _checked(self, what: str, completion: Any) -> Any:
        if completion.error == errno.ENOTBLK:
            raise LocalError(f"{self._path} is not a regular file or block device")
        if completion.error:
            raise LocalError(f"can't {what} {self._path}: {os.strerror(completion.error)}")
        return completion


def size_of(handle: Any) -> int:
    """Return the size of an open image, in bytes."""
    info = ffi.new("iou_info *")
    lib.iou_handle_info(handle, info)
    return int(info.size)


def execute(
    handle: Any,
    kind: int,
    flags: int = 0,
    offset: int = 0,
    length: int = 0,
    buffer: Any = ffi.NULL,
    size: int = 0,
    control: Any = ffi.NULL,
) -> Any:
    """Run an operation in this thread, and return its completion. Blocks on storage, without the GIL."""
    completion = ffi.new("iou_completion *")
    lib.iou_execute(handle, kind, flags, offset, length, buffer, size, control, completion)
    return completion
