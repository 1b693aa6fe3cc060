# SPDX-License-Identifier: Apache-2.0
"""Sources of uploads: a file, a block device, a part of a file, a stream."""

import errno
import io
import os
import select
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

from ...image.extents import Extent
from ...units import MiB
from ..errors import LocalError, Stopped
from .turns import Turns


class Source(Protocol):
    """An image that several threads read. `is_stream`: each byte can be read once, in order."""

    is_stream: bool

    @property
    def size(self) -> int:
        """Return the size, in bytes."""

    @property
    def portion(self) -> int:
        """Return the bytes of data in one unit of work."""

    @property
    def identity(self) -> Mapping[str, object] | None:
        """Return values that differ after a change or replacement of the image; None if no value shows that."""

    def extents(self) -> Iterator[Extent]:
        """Yield all extents in order, without gaps. Raises LocalError."""

    def read(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer. Raises LocalError."""

    def check(self) -> None:
        """Raise LocalError if the image is known to have changed since it was opened."""

    def stop(self) -> None:
        """Make reads that wait raise Stopped."""

    def close(self) -> None:
        """Close the image; no read may run."""


class FileSource:
    """A raw image in a file or block device, or in a part of one."""

    is_stream = False
    portion = 32 * MiB

    def __init__(self, path: Path, *, offset: int = 0, size: int | None = None) -> None:
        self._path = path
        self._fd = open_image(path)
        try:
            end = os.lseek(self._fd, 0, os.SEEK_END)
            self._offset = offset
            self.size = end - offset if size is None else size
            self._opened = identity(self._fd)
            self.identity = self._opened and self._opened | {"offset": offset, "length": self.size}
        except OSError as e:
            os.close(self._fd)
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
                count = os.preadv(self._fd, [buffer[filled:]], position)
            except OSError as e:
                raise LocalError(
                    f"can't read {self._path} at byte {position}: {e.strerror} (qemu-img or ddrescue can save the rest)"
                ) from e
            if count == 0:
                raise self._shorter(position)
            filled += count

    def check(self) -> None:
        """Raise LocalError if size or mtime have changed."""
        if identity(self._fd) != self._opened:
            raise changed(self._path)

    def stop(self) -> None:
        """Do nothing: reads of a file end by themselves."""

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _seek(self, offset: int, whence: int) -> int:
        try:
            return os.lseek(self._fd, offset, whence)
        except OSError as e:
            if e.errno == errno.ENXIO:  # no data from here on, or the end of the file is before it
                end = os.lseek(self._fd, 0, os.SEEK_END)
                if end < self._offset + self.size:
                    raise self._shorter(end) from e
                return self._offset + self.size
            if e.errno == errno.EINVAL:  # block devices do not support SEEK_DATA
                return offset if whence == os.SEEK_DATA else self._offset + self.size
            raise LocalError(f"can't find the holes of {self._path}: {e.strerror}") from e

    def _shorter(self, end: int) -> LocalError:
        return LocalError(
            f"{self._path} became shorter during the upload: it ends at byte {end}. "
            "Upload anew with --restart when nobody writes to it"
        )


class StreamSource:
    """An image in a binary stream. size: bytes, which the stream must have exactly."""

    is_stream = True
    portion = 4 * MiB
    identity = None

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self.size = size
        self._stream = stream
        self._turns = Turns()
        self._woken, self._wake = os.pipe()

    def extents(self) -> Iterator[Extent]:
        """Yield one extent of data."""
        if self.size:
            yield Extent(0, self.size)

    def read(self, offset: int, buffer: memoryview) -> None:
        """Wait until all bytes before offset were read, and fill the buffer. Raises LocalError, Stopped."""
        with self._turns.turn(offset, len(buffer)):
            filled = 0
            while filled < len(buffer):
                count = self._readinto(buffer[filled:])
                if not count:
                    ended = offset + filled
                    raise LocalError(f"the input ended at byte {ended}, and not at {self.size} as --size says")
                filled += count
            if offset + len(buffer) == self.size and self._readinto(memoryview(bytearray(1))):
                raise LocalError(f"the input is longer than the {self.size} bytes that --size says")

    def check(self) -> None:
        """Do nothing: a stream is read once."""

    def stop(self) -> None:
        """Wake threads that wait for their turn, and one that waits for bytes of an unbuffered file."""
        self._turns.stop()
        os.write(self._wake, b"x")

    def close(self) -> None:
        """Close the pipe; the stream stays open for its owner."""
        os.close(self._woken)
        os.close(self._wake)

    def _readinto(self, buffer: memoryview) -> int:
        try:
            if isinstance(self._stream, io.FileIO):
                self._wait()
            data = self._stream.read(len(buffer))
        except (OSError, EOFError) as e:
            raise LocalError(f"can't read the input: {getattr(e, 'strerror', None) or e}") from e
        buffer[: len(data)] = data
        return len(data)

    def _wait(self) -> None:
        poll = select.poll()
        for fd in (self._stream.fileno(), self._woken):
            poll.register(fd, select.POLLIN)
        if self._woken in dict(poll.poll()):
            raise Stopped("stopped")


def identity(fd: int) -> dict[str, object] | None:
    """Return device, inode, size and mtime of an open file; None for a block device, whose values never change."""
    status = os.fstat(fd)
    if stat.S_ISBLK(status.st_mode):
        return None
    return {"device": status.st_dev, "inode": status.st_ino, "size": status.st_size, "mtime": status.st_mtime_ns}


def changed(path: Path) -> LocalError:
    """Return the error for a source that was written to during the upload."""
    return LocalError(f"{path} was changed during the upload: upload anew with --restart when nobody writes to it")


def identity_of(path: Path) -> dict[str, object] | None:
    """Return the identity of the file with this name. Raises LocalError."""
    fd = open_image(path)
    try:
        return identity(fd)
    finally:
        os.close(fd)


def open_image(path: Path) -> int:
    """Open a regular file or block device for reading. Raises LocalError."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISBLK(mode):
            raise LocalError(f"{path} is not a regular file or block device")
        return os.open(path, os.O_RDONLY)
    except OSError as e:
        raise LocalError(f"can't open {path}: {e.strerror}") from e
