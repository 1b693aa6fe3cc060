# SPDX-License-Identifier: Apache-2.0
"""qcow2 images: sources, new ones, and existing ones to update. What the C extension does not do, qemu-nbd does."""

import contextlib
import errno
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ...image.qcow2 import is_marked_corrupt
from ..errors import ImageInUse, LocalError
from .image_source import FormatSource, PresentSource
from .image_target import ImageTarget
from .layers import whole_sectors
from .new_image import NewImage
from .qcow2_image import NeedsQemu, Qcow2Image, Stopping, create_qcow2
from .source import Source, open_image

if TYPE_CHECKING:
    from .qemu_nbd import PrivateQemuNbd

log = logging.getLogger(__name__)


def qcow2_source(path: Path, *, shared: bool = False) -> Source:
    """Open a source. Raises LocalError."""
    os.close(open_image(path))  # so that a missing file is told as for other images
    try:
        image = Qcow2Image(path, str(path), shared=shared)
    except NeedsQemu as e:
        from .qemu import QemuSource  # noqa: PLC0415 - most images do without

        return QemuSource(path, "qcow2", shared=shared, why=_why(path, e))
    with contextlib.ExitStack() as opened:
        opened.callback(image.close)
        source = FormatSource(image, "qcow2", None, shared=shared)
        opened.pop_all()
    return source


class NewQcow2(NewImage["Qcow2Image | PrivateQemuNbd"]):
    """A new image. With `continues`, an interrupted download leaves it for the next one."""

    def __init__(self, path: Path, *, continues: bool = False) -> None:
        super().__init__(path, "qcow2", continues=continues)
        self._stopping = Stopping()

    def stop(self) -> None:
        """Make the opening, waiting writes and later ones raise Stopped."""
        self._stopping.stop()
        super().stop()

    def resume(self, size: int) -> Source | None:
        """Open the image of an earlier download, if there is one that can be written, and it has this size.

        Raises ImageInUse.
        """
        if not self._part.is_earlier:
            return None
        try:
            self._image = self._open(self._part.path)
        except ImageInUse:  # it stays: the next download may have it
            raise
        except LocalError as e:
            log.warning("%s", e)
            return None
        return PresentSource(self._image) if self._image.size == whole_sectors(size) else None

    def _make(self, path: Path, size: int) -> None:
        create_qcow2(path, size)

    def _open(self, path: Path) -> "Qcow2Image | PrivateQemuNbd":
        return _opened(path, writable=True, stopping=self._stopping)


class UpdatedQcow2(ImageTarget["Qcow2Image | PrivateQemuNbd"]):
    """An existing qcow2 image, in which what differs is written in place. start() opens and locks it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stopping = Stopping()

    @staticmethod
    def check(path: Path, size: int) -> None:
        """Raise LocalError unless the image can be written and has this size.

        Changes nothing: qemu marks bitmaps as in use when it opens an image for writing.
        """
        if not os.access(path, os.W_OK):
            raise LocalError(f"can't write {path}: {os.strerror(errno.EACCES)}")
        with contextlib.closing(_opened(path, shared=True)) as image:
            _require_size(str(path), image.size, size)
        _require_sound(path)

    def start(self, size: int) -> None:
        """Open the image. Raise LocalError unless it has this size."""
        self._image = _opened(self._path, writable=True, stopping=self._stopping)
        _require_size(str(self._path), self._opened.size, size)

    def source(self) -> Source:
        """Return a source of the image's present content."""
        return PresentSource(self._opened)

    def stop(self) -> None:
        """Make the opening, waiting writes and later ones raise Stopped."""
        self._stopping.stop()
        super().stop()


def _opened(
    path: Path, *, writable: bool = False, shared: bool = False, stopping: Stopping | None = None
) -> "Qcow2Image | PrivateQemuNbd":
    try:
        return Qcow2Image(path, str(path), writable=writable, shared=shared, stopping=stopping)
    except NeedsQemu as e:
        from .qemu_img import arguments_for  # noqa: PLC0415 - as above
        from .qemu_nbd import PrivateQemuNbd  # noqa: PLC0415 - as above

        arguments = arguments_for(path, "qcow2", shared=shared)
        return PrivateQemuNbd(str(path), arguments, writable=writable, why=_why(path, e))


def _why(path: Path, reason: NeedsQemu) -> str:
    log.info("%s is left to qemu-nbd: %s", path, reason)
    return str(reason)


def _require_size(name: str, has: int, size: int) -> None:
    if has != whole_sectors(size):
        raise LocalError(f"{name} is an image of {has} bytes, and the other one has {size}: qemu-img resize")


def _require_sound(path: Path) -> None:
    """Raise LocalError if an image is marked as corrupt. Such an image can be read, and not opened for writing."""
    with path.open("rb", buffering=0) as file:
        if is_marked_corrupt(lambda offset, length: os.pread(file.fileno(), length, offset)):
            raise LocalError(f"can't open {path}: it is marked as corrupt (repair it: qemu-img check -r all)")
