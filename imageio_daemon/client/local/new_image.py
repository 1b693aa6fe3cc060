# SPDX-License-Identifier: Apache-2.0
"""New images with a format, by the C extension or by qemu-nbd."""

import logging
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Protocol, TypeVar

from .image_target import PartImage, WritableImage
from .layers import SECTOR

log = logging.getLogger(__name__)


class ClosingImage(WritableImage, Protocol):
    """An open image that tells how it was closed. Methods raise LocalError."""

    @property
    def ended_well(self) -> bool:
        """Return whether the image was flushed and closed."""


_C = TypeVar("_C", bound=ClosingImage)


class NewImage(PartImage[_C], ABC):
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

    @abstractmethod
    def _make(self, path: Path, size: int) -> None:
        """Make an image in an empty file."""

    @abstractmethod
    def _open(self, path: Path) -> _C:
        """Open an image to write to it."""

    def _tell(self, size: int, made: int) -> None:
        if made != size:
            text = "%s gets %d bytes, and the image has %d: the format %s has whole sectors of %d bytes"
            log.warning(text, self._part.final, made, size, self._format, SECTOR)
