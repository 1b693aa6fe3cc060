# SPDX-License-Identifier: Apache-2.0
"""What targets have in common: those that are written in place, and new ones called NAME.part until they are complete.

choosing.py chooses among them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from ...units import MiB
from ..errors import LocalError
from .part_file import PartFile


class Writable(Protocol):
    """What several threads write. Methods raise LocalError."""

    def write(self, offset: int, data: memoryview) -> None:
        """Write data."""

    def zero(self, offset: int, length: int) -> None:
        """Make a range read as zeros."""

    def finish(self) -> None:
        """Flush and close. A new file gets its final name. Call this last."""

    def stop(self) -> None:
        """Make waiting writes raise Stopped."""


class WritableImage(Writable, Protocol):
    """An open image. Methods raise LocalError."""

    @property
    def size(self) -> int:
        """Return the size, in bytes."""

    def flush(self) -> None:
        """Put all that was written on stable storage."""

    def close(self) -> None:
        """Close the image. Later calls do nothing."""


_I = TypeVar("_I", bound=WritableImage)


class ImageTarget(Generic[_I]):
    """A target that is an image. `_image` is None until that is open. Methods raise LocalError."""

    portion = 32 * MiB
    block = 1
    _image: _I | None = None

    @property
    def reads_zero(self) -> bool:
        """Return False: the image may have data."""
        return False

    def write(self, offset: int, data: memoryview) -> None:
        """Write data."""
        self._opened.write(offset, data)

    def zero(self, offset: int, length: int) -> None:
        """Make a range read as zeros."""
        self._opened.zero(offset, length)

    def finish(self) -> None:
        """Flush and close."""
        self._opened.finish()

    def abandon(self) -> None:
        """Close the image. What was written stays."""
        if self._image is not None:
            self._image.close()

    def stop(self) -> None:
        """Make waiting writes raise Stopped."""
        if self._image is not None:
            self._image.stop()

    @property
    def _opened(self) -> _I:
        if self._image is None:
            raise RuntimeError("not started")
        return self._image


class InPlace(ImageTarget[_I]):
    """An existing image that is written in place. Bytes after the end of the new content do not change.

    `name` is the image's name in messages. `remedy` tells how to make it larger.
    """

    remedy = ""

    def __init__(self, name: str, image: _I) -> None:
        self._name = name
        self._image = image

    def start(self, size: int) -> None:
        """Check that the image fits."""
        if size > self._opened.size:
            text = f"{self._name} has {self._opened.size} bytes, the image {size}: it does not fit{self.remedy}"
            raise LocalError(text)


class PartImage(ImageTarget[_I]):
    """A new image. With `continues`, an interrupted download leaves it for the next one; see PartFile."""

    def __init__(self, path: Path, *, continues: bool = False) -> None:
        self._continues = continues
        self._part = PartFile(path, continues=continues)

    @property
    def identity(self) -> Mapping[str, object] | None:
        """Return the identity of the file, or None if it is not continued."""
        return self._part.identity if self._continues else None

    @property
    def is_earlier(self) -> bool:
        """Return whether an earlier download has left this image."""
        return self._part.is_earlier

    @property
    def reads_zero(self) -> bool:
        """Return whether the image is new. One that is left has data, also some that was never flushed."""
        return not self._part.is_earlier

    def flush(self) -> None:
        """Flush the image."""
        self._opened.flush()

    def keep(self) -> bool:
        """Close the image, and sync the file. Return True."""
        try:
            super().abandon()
        finally:
            self._part.keep()
        return True

    def finish(self) -> None:
        """Flush and close the image, and rename the file."""
        super().finish()
        self._closed()
        self._part.publish()

    def abandon(self) -> None:
        """Remove the image."""
        try:
            super().abandon()
        finally:
            self._part.remove()

    def _closed(self) -> None:
        """Do the rest of the work on the complete image after it is closed. Subclasses may override this."""

    def _begin_anew(self) -> None:
        """Close what an earlier download has left, and begin with a new file."""
        if self._part.is_earlier:
            super().abandon()
            self._part.anew()
