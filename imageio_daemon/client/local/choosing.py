# SPDX-License-Identifier: Apache-2.0
"""Choose a target by its name: a new file in some format, an image that is written in place, or a stream."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from ..errors import LocalError, Usage
from .formats import Named, is_elsewhere, named, on_ceph, on_nbd
from .target import ExistingImage, NewFile, StreamTarget, Target, UpdatedImage, is_existing_device

if TYPE_CHECKING:
    from .nbd_image import Secure


@dataclass(frozen=True)
class Making:
    """How to make or open a local target; see api.download().

    Without a `format`, the name of the target tells it. With `continues`, a file that an earlier download has left is
    taken, and in turn left for the next one. With `update`, an existing target is opened, to write only what differs.
    `secure` makes TLS to an NBD server.
    """

    format: str | None = None
    compress: bool = False
    dirty: bool = False
    continues: bool = False
    update: bool = False
    secure: "Secure | None" = None


class Chosen(NamedTuple):
    """A target that is not opened yet. `path` is that of a file or device. `in_place` tells that it exists.

    `format` is what it gets, in words: the format, and the compression if there is any.
    `packs` tells that the target is compressed, so the room that it needs is unknown. `locks` tells that its start()
    also locks it. `check`, for an update, raises LocalError if an image of a size does not fit, and changes nothing.
    """

    make: Callable[[], Target]
    path: Path | None
    in_place: bool
    packs: bool = False
    locks: bool = False
    check: Callable[[int], None] | None = None
    format: str = "raw"


def choose_target(target: str | os.PathLike[str] | BinaryIO, making: Making) -> Chosen:
    """Return the target for a name and arguments. Its make() opens or makes it, and raises LocalError. Raises Usage."""
    if making.update and (making.dirty or making.compress or not isinstance(target, str | os.PathLike)):
        raise Usage("what differs is written into a raw or qcow2 file or a device that exists, by digests alone")
    if not isinstance(target, str | os.PathLike):
        if making.compress or making.dirty or making.format not in (None, "raw"):
            raise Usage("a stream can't be written in another format, nor where something has changed")
        return Chosen(partial(StreamTarget, target), None, in_place=False)
    if is_elsewhere(target):
        what = "an image on Ceph" if on_ceph(target) else "an export of an NBD server"
        if making.compress or making.format not in (None, "raw"):
            raise Usage(f"{what} is raw")
        if making.update:
            raise Usage(f"what differs is written into a raw or qcow2 file or a device, and not into {what}")
        if on_nbd(target):
            from .nbd_export import NbdTarget  # noqa: PLC0415 - transfers of raw files start earlier without it

            return Chosen(partial(NbdTarget, str(target), making.secure), None, in_place=True)
        from .rbd import RbdTarget  # noqa: PLC0415 - as above

        return Chosen(partial(RbdTarget, str(target)), None, in_place=True)
    path = Path(target)
    says = named(path.name) if making.format is None else Named(None, False, making.format)
    return _choose_path(path, says, making)


def _choose_path(path: Path, says: Named, making: Making) -> Chosen:
    """Return the target for the path of a file or device, and for what its name says. Raises Usage, LocalError."""
    dirty, format_name = making.dirty, says.format or "raw"
    is_raw = format_name == "raw"
    if says.archive or (says.compression and (dirty or not is_raw)):
        raise Usage(f"{path} is no name for an image that is downloaded: it can be compressed, or in another format")
    if making.compress and (format_name != "qcow2" or dirty):
        raise Usage("compressed clusters are those of a whole qcow2 image; other files are compressed by their suffix")
    if making.update and (says.compression or format_name not in ("raw", "qcow2")):
        raise Usage("what differs is written into a raw or qcow2 file or a device that exists")
    is_device = is_existing_device(path)
    if making.update and not path.exists():
        raise LocalError(f"there is no {path} to update: download it without --update first")
    if is_device and not is_raw:
        raise Usage("only raw images are written in place")
    if making.update and is_raw:
        return Chosen(partial(UpdatedImage, path), path, in_place=True, check=partial(_check_raw, path))
    if making.update:
        from .qcow2 import UpdatedQcow2  # noqa: PLC0415 - as above

        check = partial(UpdatedQcow2.check, path)
        return Chosen(partial(UpdatedQcow2, path), path, in_place=True, locks=True, check=check, format=format_name)
    if is_device or (dirty and is_raw):
        return Chosen(partial(ExistingImage, path), path, in_place=True)
    if dirty and format_name != "qcow2":
        raise Usage("what has changed goes into a raw image, in place, or into a new one of the format qcow2")
    make = _new_file(path, format_name, says.compression, making)
    packs = making.compress or says.compression is not None
    shown = ", ".join(filter(None, [format_name, says.compression]))
    return Chosen(make, path, in_place=False, packs=packs, format=shown)


def _check_raw(path: Path, size: int) -> None:
    """Raise LocalError if an image cannot be written, or if it is a device and too small. A file gets the size."""
    image = ExistingImage(path)
    try:
        if is_existing_device(path):
            image.start(size)
    finally:
        image.abandon()


def _new_file(path: Path, format_name: str, compression: str | None, making: Making) -> Callable[[], Target]:
    if format_name == "raw" and not compression:
        return partial(NewFile, path, continues=making.continues)
    if compression:
        from .compressing import CompressedFile  # noqa: PLC0415 - as above

        return partial(CompressedFile, path, compression)
    if making.dirty or making.compress:
        from .qemu_qcow2 import CompressedQcow2, Increment  # noqa: PLC0415 - as above

        return partial(Increment if making.dirty else CompressedQcow2, path)
    if format_name == "qcow2":
        from .qcow2 import NewQcow2  # noqa: PLC0415 - as above

        return partial(NewQcow2, path, continues=making.continues)
    from .qemu import QemuTarget  # noqa: PLC0415 - as above

    return partial(QemuTarget, path, format_name)
