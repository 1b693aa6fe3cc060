# SPDX-License-Identifier: Apache-2.0
"""What targets have in common: those that are written in place, and new ones called NAME.part until they are complete.

choosing.py chooses among them.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from ...units import MiB
from ..errors import LocalError
from .layers import SECTOR
from .part_file import PartFile

log = logging.getLogger(__name__)


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


class ClosingImage(WritableImage, Protocol):
    """An open image that tells how it was closed. Methods raise LocalError."""

    @property
    def ended_well(self) -> bool:
        """Tell whether the image was flushed and closed."""


_I = TypeVar("_I", bound=WritableImage)
_C = TypeVar("_C", bound=ClosingImage)


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
        """Tell whether an earlier download has left this image."""
        return self._part.is_earlier

    @property
    def reads_zero(self) -> bool:
        """Tell whether the image is new. One that is left has data, also some that was never flushed."""
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


class NewImage(PartImage[_C]):
    """A new image with a format, called NAME.part until it is complete."""

    def __init__(self, path: Path, format_name: str, *, continues: bool = False) -> None:
        super().__init__(path, continues=continues)
        self._format = format_name

    def start(self, size: int) -> None:
        """Make the image, and open it. Log its size if the format cannot have the wanted size."""
        self._begin_anew()
        self._create(size)
        self._tell(size, self._opened.size)

    def keep(self) -> bool:
        """Close the image, which flushes, and sync the file. Return whether all was flushed."""
        return super().keep() and (self._image is None or self._image.ended_well)

    def _create(self, size: int) -> None:
        self._make(self._part.path, size)
        self._image = self._open(self._part.path)

    def _make(self, path: Path, size: int) -> None:
        """Make an image in an empty file."""
        raise NotImplementedError

    def _open(self, path: Path) -> _C:
        """Open an image to write to it."""
        raise NotImplementedError

    def _tell(self, size: int, made: int) -> None:
        if made != size:
            text = "%s gets %d bytes, and the image has %d: the format %s has whole sectors of %d bytes"
            log.warning(text, self._part.final, made, size, self._format, SECTOR)
