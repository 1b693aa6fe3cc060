# SPDX-License-Identifier: Apache-2.0
"""Targets of downloads: a new file, an existing file or device, a stream."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from ...units import MiB
from ..errors import LocalError
from .image_output import ImageOutput
from .image_target import InPlace, PartImage, Writable
from .local_image import LocalImage
from .source import FileSource, Source
from .turns import Turns

_ZEROS = bytes(1 * MiB)


class Target(Writable, Protocol):
    """An image that is written as a whole. Methods raise LocalError."""

    @property
    def portion(self) -> int:
        """Return how many bytes of data one thread takes at a time while much is left."""

    @property
    def block(self) -> int:
        """Return the granularity of writes, in bytes."""

    @property
    def reads_zero(self) -> bool:
        """Return whether the target is new and reads as zeros, so that zeros need not be written."""

    def start(self, size: int) -> None:
        """Prepare for an image of this size, in bytes."""

    def abandon(self) -> None:
        """Remove the incomplete target if it is new, and close. Call this last, in place of finish()."""


@runtime_checkable
class PartTarget(Target, Protocol):
    """A target that an interrupted download may leave for the next one. Methods raise LocalError."""

    @property
    def identity(self) -> Mapping[str, object] | None:
        """Return the key of a record of the target, as that of a Source, or None if it is not continued."""

    @property
    def is_earlier(self) -> bool:
        """Return whether an earlier download has left this target, and start() was not called."""

    def resume(self, size: int) -> Source | None:
        """Open what an earlier download has left of an image of this size, to compare it, or return None.

        The caller closes the source. A call of start(), instead of this or after it, begins with an empty image.
        """

    def flush(self) -> None:
        """Put all that was written on stable storage."""

    def keep(self) -> bool:
        """Close the target, and leave what it has. Call this last, in place of finish(), also after stop().

        Return whether all that was written is on stable storage.
        """


@runtime_checkable
class UpdatedTarget(Target, Protocol):
    """An existing target, in which only what differs is written. Methods raise LocalError."""

    def source(self) -> Source:
        """Return a source of the target's present content, to compare with. Call this after start(), and close it."""


class NewFile(PartImage[LocalImage]):
    """A new raw file, called NAME.part until it is complete. `continues` is as for PartFile."""

    def __init__(self, path: Path, *, continues: bool = False) -> None:
        super().__init__(path, continues=continues)
        try:
            self._image = LocalImage(self._part.path)
        except LocalError:
            self._part.leave()
            raise

    def resume(self, size: int) -> Source | None:
        """Open the file that is left, if it has this size."""
        if not self._part.is_earlier or self._opened.size != size:
            return None
        return FileSource(self._part.path, shared=True)

    def start(self, size: int) -> None:
        """Begin with an empty file, and set its size."""
        if self._part.is_earlier:
            self._begin_anew()
            self._image = LocalImage(self._part.path)
        self._part.truncate(size)


class ExistingImage(InPlace[LocalImage]):
    """A block device or existing file that is written in place."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), LocalImage(path))
        self._path = path


class UpdatedImage(ExistingImage):
    """A raw file or block device in which what differs is written in place. A file gets the size of the image."""

    def start(self, size: int) -> None:
        """Set the size of a file, or check that the image fits into a device."""
        if is_existing_device(self._path):
            super().start(size)
            return
        try:
            os.truncate(self._path, size)
        except OSError as e:
            raise LocalError(f"can't change the size of {self._path}: {e.strerror}") from e
        self._opened.close()
        self._image = LocalImage(self._path)

    def source(self) -> Source:
        """Return a source of the present content."""
        return FileSource(self._path, shared=True)


class Writer(Protocol):
    """The object to which a Stream writes."""

    def write(self, data: memoryview, /) -> int:
        """Write some bytes, and return their number."""

    def flush(self) -> object:
        """Write buffered bytes."""


class StreamTarget:
    """Standard output, or another stream."""

    portion = 4 * MiB
    block = 1
    reads_zero = False

    def __init__(self, stream: Writer) -> None:
        self._stream = stream
        self._turns = Turns()

    def start(self, size: int) -> None:
        """Do nothing."""

    def write(self, offset: int, data: memoryview) -> None:
        """Wait until all bytes before offset were written, and write data."""
        with self._turns.turn(offset, len(data)):
            self._write(data)

    def zero(self, offset: int, length: int) -> None:
        """Write zeros, after all bytes before offset were written."""
        with self._turns.turn(offset, length):
            for done in range(0, length, len(_ZEROS)):
                self._write(memoryview(_ZEROS)[: length - done])

    def finish(self) -> None:
        """Flush the stream's buffer. The stream stays open for its owner."""
        try:
            self._stream.flush()
        except OSError as e:
            raise _cant_write(e) from e

    def abandon(self) -> None:
        """Do nothing. The stream stays open for its owner."""

    def stop(self) -> None:
        """Wake threads that wait for their turn, or for the reader of standard output."""
        self._turns.stop()
        if isinstance(self._stream, ImageOutput):
            self._stream.stop()

    def _write(self, data: memoryview) -> None:
        try:
            while data:
                data = data[self._stream.write(data) :]  # a raw stream may write only a part
        except OSError as e:
            raise _cant_write(e) from e


def is_existing_device(path: Path) -> bool:
    """Return whether a path is a block device. Raises LocalError if it is neither that nor a regular file."""
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
