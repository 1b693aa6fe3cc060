# SPDX-License-Identifier: Apache-2.0
"""What sources have in common that an NBD server has, a qemu-nbd of ours or another one."""

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from ...image.extents import Extent
from ...units import MiB
from .nbd_image import NbdImage

_I = TypeVar("_I", bound=NbdImage)


class ImageSource(Generic[_I]):
    """A source that is an image of an NBD server. Methods raise LocalError."""

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
