# SPDX-License-Identifier: Apache-2.0
"""What sources have in common that are images: exports of NBD servers, and images with a format."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from ...image.extents import Extent
from ...image.formats import PARSERS
from ...units import MiB
from .archive import Member
from .layers import are_all
from .source import changed


class ReadableImage(Protocol):
    """An open image. Methods raise LocalError."""

    @property
    def size(self) -> int:
        """Return the size, in bytes."""

    def extents(self) -> Iterator[Extent]:
        """Yield all extents, in order and without gaps."""

    def read(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer."""

    def stop(self) -> None:
        """Make waiting and later calls raise Stopped."""

    def close(self) -> None:
        """Close the image. Later calls do nothing."""


class ImageOfFiles(ReadableImage, Protocol):
    """An open image, and the files of which it consists. Methods raise LocalError."""

    def files(self) -> list[Path]:
        """Return links to the open files."""

    def identity(self, file: Path) -> dict[str, object] | None:
        """Return the identity() of one of the files."""


_I = TypeVar("_I", bound=ReadableImage)
_F = TypeVar("_F", bound=ImageOfFiles)


class ImageSource(Generic[_I]):
    """A source that is an open image. Methods raise LocalError."""

    is_stream = False
    portion = 32 * MiB
    identity: Mapping[str, object] | None = None

    def __init__(self, image: _I) -> None:
        self._image = image
        self.size = image.size

    def extents(self) -> Iterator[Extent]:
        """Yield all extents, in order and without gaps, or one extent of data if the server has no extents."""
        return self._image.extents()

    def read(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer."""
        self._image.read(offset, buffer)

    def stop(self) -> None:
        """Make waiting and later reads raise Stopped."""
        self._image.stop()

    def check(self) -> None:
        """Do nothing: without an identity, nothing shows whether the image was changed."""

    def close(self) -> None:
        """Disconnect. A qemu-nbd of ours then ends."""
        self._image.close()


class PresentSource(ImageSource[ReadableImage]):
    """The present content of a target, for comparisons while the target is written."""

    def close(self) -> None:
        """Do nothing: the target closes the image."""


class FormatSource(ImageSource[_F]):
    """A source with a format, which consists of files that must not change, unless it is `shared`."""

    def __init__(self, image: _F, format_name: str, member: Member | None, *, shared: bool) -> None:
        super().__init__(image)
        self._shared = shared
        self._files = {file: image.identity(file) for file in image.files()}
        is_known = format_name in PARSERS and are_all(self._files, member.offset if member else 0)
        if is_known and None not in self._files.values():
            self.identity = {
                "format": format_name,
                "member": list(member) if member else None,
                "files": list(self._files.values()),
            }

    def check(self) -> None:
        """Raise LocalError if size or mtime of a file of the backing chain has changed."""
        for file, opened in self._files.items():
            if not self._shared and self._image.identity(file) != opened:
                raise changed(file.readlink())
