# SPDX-License-Identifier: Apache-2.0
"""Sources of uploads that are read in any order: a file, a block device, a part of a file."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from ...image.extents import Extent
from ...image.ranges import RangeSet
from ...units import MiB
from ..errors import LocalError
from ..file_part import FilePart

#: Alignment of direct reads, in bytes: that of the largest sectors and of memory pages. One thread read 2 GiB of a loop
#: device, not cached, in 3.6 s through the page cache, with 3.6 s of processor time; past it in 0.7 to 1.6 s, with 0.1
#: s.
BLOCK = 4096
#: What to do about a source that has changed.
_ANEW = "start anew, an upload with --restart, when nobody writes to it"


class Source(Protocol):
    """An image that several threads read. If it `is_stream`, each byte can be read only once, in order."""

    is_stream: bool

    @property
    def size(self) -> int:
        """Return the size, in bytes."""

    @property
    def portion(self) -> int:
        """Return how many bytes of data one thread takes at a time while much is left."""

    @property
    def identity(self) -> Mapping[str, object] | None:
        """Return values that differ after a change or replacement of the image, or None if there are none."""

    def extents(self) -> Iterator[Extent]:
        """Yield all extents in order, without gaps. Raises LocalError."""

    def read(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer. Raises LocalError."""

    def check(self) -> None:
        """Raise LocalError if the image is known to have changed since it was opened."""

    def stop(self) -> None:
        """Make waiting reads raise Stopped."""

    def close(self) -> None:
        """Close the image. Call this when no read runs."""


@runtime_checkable
class MarkedSource(Source, Protocol):
    """A source that may have a bitmap of what has changed in it since some state, its base."""

    def changed(self) -> RangeSet | None:
        """Return the changed ranges, or larger ones, or None if unknown. Raises LocalError, and as RemoteImage."""


class FileSource:
    """A raw image in a file or block device, or in a part of one. Devices are read past the page cache."""

    is_stream = False
    portion = 32 * MiB

    def __init__(self, path: Path, *, offset: int = 0, size: int | None = None, shared: bool = False) -> None:
        self._path = path
        self._shared = shared
        self._fd = open_image(path)
        self._direct = _open_direct(self._fd)
        try:
            end = os.lseek(self._fd, 0, os.SEEK_END)
            self._offset = offset
            self._is_whole = size is None
            self.size = end - offset if size is None else size
            self._opened = identity(self._fd)
            self.identity = self._opened and self._opened | {"offset": offset, "length": self.size}
        except OSError as e:
            self.close()
            raise LocalError(f"can't read {path}: {e.strerror}") from e

    def extents(self) -> Iterator[Extent]:
        """Yield data and holes (SEEK_DATA, SEEK_HOLE of lseek(2))."""
        offset, end = self._offset, self._offset + self.size
        while offset < end:
            data = min(self._seek(offset, os.SEEK_DATA), end)
            if data > offset:
                yield Extent(offset - self._offset, data - offset, zero=True)
            offset = min(self._seek(data, os.SEEK_HOLE), end) if data < end else end
            if offset > data:
                yield Extent(data - self._offset, offset - data)

    def read(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer."""
        filled = 0
        while filled < len(buffer):
            position = self._offset + offset + filled
            try:
                count = self._read(buffer[filled:], position)
            except OSError as e:
                raise self._failed(position, e) from e
            if count == 0:
                raise self._failed(position, None)
            filled += count

    @property
    def is_cached(self) -> bool:
        """Return whether reads go through the page cache, from which the kernel can send."""
        return self._direct is None

    def part(self, offset: int, length: int) -> FilePart:
        """Return a range for the kernel to send. The kernel begins to read it now, because single bytes are checked."""
        os.posix_fadvise(self._fd, self._offset + offset, length, os.POSIX_FADV_WILLNEED)
        return FilePart(self._fd, self._offset + offset, length, self._failed)

    def check(self) -> None:
        """Raise LocalError if the size has changed, or the mtime unless others may write to the image."""
        end = self._offset + self.size
        try:
            now = os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as e:
            raise self._failed(end, e) from e
        if now < end:
            raise self._shorter(now)
        if now > end and self._is_whole:
            raise LocalError(f"{self._path} became longer while it was read: it had {self.size} bytes: {_ANEW}")
        if not self._shared and identity(self._fd) != self._opened:
            raise changed(self._path)

    def stop(self) -> None:
        """Do nothing: reads of a file end by themselves."""

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
        if self._direct is not None:
            os.close(self._direct)

    def _read(self, buffer: memoryview, position: int) -> int:
        """Read some bytes. Whole blocks are read past the page cache, if possible."""
        whole = len(buffer) // BLOCK * BLOCK
        if self._direct is not None and whole and position % BLOCK == 0:
            try:
                # A count of 0 means that the end is in this block.
                if count := os.preadv(self._direct, [buffer[:whole]], position):
                    return count
            except OSError as e:
                if e.errno != errno.EINVAL:  # which means that the memory is not aligned
                    raise
        return os.preadv(self._fd, [buffer], position)

    def _seek(self, offset: int, whence: int) -> int:
        try:
            return os.lseek(self._fd, offset, whence)
        except OSError as e:
            if e.errno == errno.ENXIO:  # there is no data from here on, or the file ends before
                end = os.lseek(self._fd, 0, os.SEEK_END)
                if end < self._offset + self.size:
                    raise self._shorter(end) from e
                return self._offset + self.size
            if e.errno == errno.EINVAL:  # block devices do not support SEEK_DATA
                return offset if whence == os.SEEK_DATA else self._offset + self.size
            raise LocalError(f"can't find the holes of {self._path}: {e.strerror}") from e

    def _failed(self, position: int, error: OSError | None) -> LocalError:
        if error is None:
            return self._shorter(position)
        return LocalError(
            f"can't read {self._path} at byte {position}: {error.strerror} (qemu-img or ddrescue can save the rest)"
        )

    def _shorter(self, end: int) -> LocalError:
        return LocalError(f"{self._path} became shorter while it was read: it ends at byte {end}: {_ANEW}")


def _open_direct(fd: int) -> int | None:
    """Open a block device once more, for direct I/O. Return None for a file, or if that fails (EINVAL of open(2))."""
    if not stat.S_ISBLK(os.fstat(fd).st_mode):
        return None
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return None


def identity(file: int | Path) -> dict[str, object] | None:
    """Return device, inode, size and mtime of a file, or None for a block device, whose values never change.

    `file` is a descriptor of it, or a link to that in /proc.
    """
    status = os.stat(file)
    if stat.S_ISBLK(status.st_mode):
        return None
    return {"device": status.st_dev, "inode": status.st_ino, "size": status.st_size, "mtime": status.st_mtime_ns}


def changed(path: Path) -> LocalError:
    """Return the error for a source that was changed while it was read."""
    return LocalError(f"{path} was changed while it was read: {_ANEW}")


def open_image(path: Path) -> int:
    """Open a regular file or block device for reading. Raises LocalError."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISBLK(mode):
            raise LocalError(f"{path} is not a regular file or block device")
        return os.open(path, os.O_RDONLY)
    except OSError as e:
        raise LocalError(f"can't open {path}: {e.strerror}") from e


@contextlib.contextmanager
def opened_image(path: Path) -> Iterator[int]:
    """Open a regular file or block device for the block, and yield its descriptor.

    Raises LocalError, also for an OSError of the block.
    """
    fd = open_image(path)
    try:
        yield fd
    except OSError as e:
        raise LocalError(f"can't read {path}: {e.strerror}") from e
    finally:
        os.close(fd)
