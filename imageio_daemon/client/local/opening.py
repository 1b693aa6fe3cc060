# SPDX-License-Identifier: Apache-2.0
"""What a user names becomes a source: a file, a part of one, what qemu reads, a stream."""

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

from ..errors import Usage
from .formats import HEAD, TAIL, check_raw, format_of
from .qemu import QemuSource
from .source import FileSource, Source, StreamSource
from .tar import find_member


def open_source(
    source: str | os.PathLike[str] | BinaryIO,
    format_name: str | None = None,
    member: str | None = None,
    size: int | None = None,
) -> Source:
    """Open a local image. format_name: None: what the suffix of its name says. size: that of a stream, in bytes.

    Raises Usage if the arguments contradict each other or the content, LocalError.
    """
    if isinstance(source, str | os.PathLike):
        if size is not None:
            raise Usage("a size is for streams; a file has its own")
        return _open_file(Path(source), format_name, member)
    if size is None:
        raise Usage("a stream needs --size: the server must know how much comes")
    if member is not None or format_name not in (None, "raw"):
        raise Usage("a stream is raw")
    return StreamSource(source, size)


def _open_file(path: Path, format_name: str | None, member: str | None) -> Source:
    found = find_member(path, member) if member is not None else None
    known = format_name or format_of(found.name if found else path.name)
    if known not in (None, "raw"):
        return QemuSource(path, known, found)
    opened = FileSource(path, offset=found.offset, size=found.size) if found else FileSource(path)
    if format_name is None:
        with contextlib.ExitStack() as stack:
            stack.callback(opened.close)
            check_raw(str(path), _part(opened, 0, HEAD), _part(opened, opened.size - TAIL, TAIL))
            stack.pop_all()
    return opened


def _part(image: FileSource, offset: int, length: int) -> bytes:
    """Return what there is of a range of an image."""
    start, end = max(offset, 0), min(offset + length, image.size)
    buffer = bytearray(max(end - start, 0))
    image.read(start, memoryview(buffer))
    return bytes(buffer)
