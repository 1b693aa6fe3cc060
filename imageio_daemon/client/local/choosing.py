# SPDX-License-Identifier: Apache-2.0
"""What a user names becomes a target: a new file in some format, an image that is written in place, a stream."""

import os
from pathlib import Path
from typing import BinaryIO

from .. import local
from ..errors import Usage
from .formats import Named, named, on_ceph
from .target import ExistingImage, NewFile, Stream, Target, is_existing_device


def open_target(
    target: str | os.PathLike[str] | BinaryIO, format_name: str | None, *, compress: bool, dirty: bool
) -> Target:
    """Open or make a local target; see api.download(). Raises Usage, LocalError."""
    if not isinstance(target, str | os.PathLike):
        if compress or dirty or format_name not in (None, "raw"):
            raise Usage("a stream can't be written in another format, nor where something has changed")
        return Stream(target)
    if on_ceph(target):
        if compress or format_name not in (None, "raw"):
            raise Usage("an image on Ceph is raw")
        return local.RbdTarget(str(target))
    return _open_path(Path(target), format_name, compress=compress, dirty=dirty)


def _open_path(path: Path, format_name: str | None, *, compress: bool, dirty: bool) -> Target:
    says = named(path.name) if format_name is None else Named(None, False, format_name)
    format_name = says.format or "raw"
    is_raw = format_name == "raw"
    if says.archive or (says.compression and (dirty or not is_raw)):
        raise Usage(f"{path} is no name for an image that is downloaded: it can be compressed, or in another format")
    if compress and (format_name != "qcow2" or dirty):
        raise Usage("compressed clusters are those of a whole qcow2 image; other files are compressed by their suffix")
    is_device = is_existing_device(path)
    if is_device and not is_raw:
        raise Usage("only raw images are written in place")
    if is_device or (dirty and is_raw):
        return ExistingImage(path)
    if dirty:
        if format_name != "qcow2":
            raise Usage("what has changed goes into a raw image, in place, or into a new one of the format qcow2")
        return local.Increment(path)
    if says.compression:
        return local.CompressedFile(path, says.compression)
    if compress:
        return local.CompressedQcow2(path)
    return NewFile(path) if is_raw else local.QemuTarget(path, format_name)
