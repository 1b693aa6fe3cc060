# SPDX-License-Identifier: Apache-2.0
"""What is downloaded to: a new file, a file or device that exists, a stream."""

import stat
from pathlib import Path
from typing import BinaryIO, Protocol

from ..units import MiB
from .errors import LocalError
from .localimage import LocalImage
from .ordered import Turns
from .part import PartFile

_ZEROS = bytes(1 * MiB)


class Target(Protocol):
    """An image that is written by several threads. Methods raise LocalError."""

    @property
    def portion(self) -> int:
        """Return how much data one thread takes at a time, in bytes."""

    @property
    def block(self) -> int:
        """Return what is written as a whole where something has changed, in bytes."""

    @property
    def reads_zero(self) -> bool:
        """Tell whether zeros need not be written."""

    def start(self, size: int) -> None:
        """Make room for an image of this size."""

    def write(self, offset: int, data: memoryview) -> None:
        """Write data."""

    def zero(self, offset: int, length: int) -> None:
        """Make a range read as zeros."""

    def finish(self) -> None:
        """Return when all is on stable storage and has its name; to be called last."""

    def abandon(self) -> None:
        """Leave nothing half-done behind, where that is possible; to be called last, if not finish()."""

    def stop(self) -> None:
        """Let writes that wait raise Stopped."""


class NewFile:
    """A raw file that takes its name only when it is complete; until then it is called NAME.part."""

    portion = 32 * MiB
    block = 1
    reads_zero = True

    def __init__(self, path: Path) -> None:
        self._part = PartFile(path)
        try:
            self._image = LocalImage(self._part.path)
        except LocalError:
            self._part.remove()
            raise

    def start(self, size: int) -> None:
        """Give the file its size."""
        self._part.truncate(size)

    def write(self, offset: int, data: memoryview) -> None:
        """Write data."""
        self._image.write(offset, data)

    def zero(self, offset: int, length: int) -> None:
        """Do nothing: what was never written reads as zeros."""

    def finish(self) -> None:
        """Bring the file to stable storage and give it its name."""
        self._image.flush()
        self._image.close()
        self._part.publish()

    def abandon(self) -> None:
        """Remove the file."""
        self._image.close()
        self._part.remove()

    def stop(self) -> None:
        """Do nothing: writes end by themselves."""


class ExistingImage:
    """A block device or a file that is written in place; what lies behind the end of the image stays."""

    portion = 32 * MiB
    block = 1
    reads_zero = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._image = LocalImage(path)

    def start(self, size: int) -> None:
        """Check that the image fits."""
        if size > self._image.size:
            raise LocalError(f"{self._path} has {self._image.size} bytes, the image {size}: it does not fit")

    def write(self, offset: int, data: memoryview) -> None:
        """Write data."""
        self._image.write(offset, data)

    def zero(self, offset: int, length: int) -> None:
        """Make a range read as zeros."""
        self._image.zero(offset, length)

    def finish(self) -> None:
        """Bring all to stable storage."""
        self._image.flush()
        self._image.close()

    def abandon(self) -> None:
        """Close it. What was written stays."""
        self._image.close()

    def stop(self) -> None:
        """Do nothing: writes end by themselves."""


class Stream:
    """Standard output, or another stream."""

    portion = 4 * MiB
    block = 1
    reads_zero = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._turns = Turns()

    def start(self, size: int) -> None:
        """Do nothing."""

    def write(self, offset: int, data: memoryview) -> None:
        """Write data when all before it was written."""
        with self._turns.turn(offset, len(data)):
            self._write(data)

    def zero(self, offset: int, length: int) -> None:
        """Write zeros."""
        with self._turns.turn(offset, length):
            for done in range(0, length, len(_ZEROS)):
                self._write(memoryview(_ZEROS)[: length - done])

    def finish(self) -> None:
        """Hand on what the stream keeps, and leave it to its owner."""
        try:
            self._stream.flush()
        except OSError as e:
            raise _cant_write(e) from e

    def abandon(self) -> None:
        """Leave the stream to its owner."""

    def stop(self) -> None:
        """Wake those who wait for their turn."""
        self._turns.stop()

    def _write(self, data: memoryview) -> None:
        try:
            while data:
                data = data[self._stream.write(data) :]  # a raw stream may take a part
        except OSError as e:
            raise _cant_write(e) from e


def is_existing_device(path: Path) -> bool:
    """Tell whether a path is a block device. Raises LocalError for anything else that is no regular file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    except OSError as e:
        raise LocalError(f"can't write {path}: {e.strerror}") from e
    if not stat.S_ISREG(mode) and not stat.S_ISBLK(mode):
        raise LocalError(f"{path} is not a regular file or block device")
    return stat.S_ISBLK(mode)


def _cant_write(error: OSError) -> LocalError:
    return LocalError(f"can't write the output: {error.strerror or error}")
